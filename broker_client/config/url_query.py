"""The query of a broker URL: RabbitMQ's parameters, as keys of a connection.

https://www.rabbitmq.com/docs/uri-query-parameters names them. Parameters of other clients, and
those that have no counterpart here, are refused by name: one that is silently left out may be the
one that was to turn TLS on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from broker_client.config.problems import hint


class _Parameter(NamedTuple):
    key: str
    """The key of `ConnectionConfig`, or of its `tls` after a dot; "" for one that says nothing."""
    read: Callable[[str], Any]


def _seconds(text: str) -> str:
    return f"{_whole(text)}s"


def _milliseconds(text: str) -> str:
    return f"{_whole(text)}ms"


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError("must be a whole number")
    return int(text)


def _one_of(**meanings: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text.lower() not in meanings:
            raise ValueError(f"must be one of: {', '.join(meanings)}")
        return meanings[text.lower()]

    return read


_PARAMETERS = {
    "heartbeat": _Parameter("heartbeat", _seconds),
    "connection_timeout": _Parameter("connect_timeout", _milliseconds),
    "channel_max": _Parameter("channel_max", _whole),
    "frame_max": _Parameter("frame_max", _whole),
    "auth_mechanism": _Parameter("", _one_of(plain=None)),
    "cacertfile": _Parameter("tls.cafile", str),
    "certfile": _Parameter("tls.certfile", str),
    "keyfile": _Parameter("tls.keyfile", str),
    "verify": _Parameter("tls.verify", _one_of(verify_peer=True, verify_none=False)),
    # For servers: a client that verifies its peer always wants its certificate.
    "fail_if_no_peer_cert": _Parameter("", _one_of(true=None, false=None)),
}
_OF_TLS = {"cacertfile", "certfile", "keyfile", "verify", "fail_if_no_peer_cert"}

_ELSEWHERE = {  # what it is called here, or why it is not there
    "ssl": "write amqps:// for TLS",
    "tls": "write amqps:// for TLS",
    "use_ssl": "write amqps:// for TLS",
    "ssl_options": "write amqps:// and cacertfile, certfile, keyfile, verify",
    "no_verify_ssl": "write verify=verify_none",
    "cafile": "write cacertfile",
    "ca_certs": "write cacertfile",
    "timeout": "write connection_timeout, in milliseconds",
    "auth": "the mechanism is always PLAIN; leave it out",
    "server_name_indication": "the name that is sent and verified is that of the address; "
    "tls: {verify_hostname: false} accepts another",
    "password": "keys with a password are not supported; keep the file readable for its owner only",
    "name": "write the key `name` beside the url",
    "vhost": "write the vhost as path of the url, or the key `vhost` beside it",
    "locale": "it is always en_US; leave it out",
}


def connection_keys(query: str, scheme: str) -> dict[str, Any]:
    """The keys of a connection that the query of its URL stands for; `tls` is a mapping of its own.

    Raises:
        ValueError: a parameter is unknown, given twice, or has a wrong value. Values are not shown.
    """
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name in seen:
            raise ValueError(f"the URL gives {name} twice")
        seen.add(name)
        parameter = _PARAMETERS.get(name)
        if parameter is None:
            advice = _ELSEWHERE.get(name.lower())
            shown = name if name.isidentifier() and len(name) <= 40 else "something"
            why = f": {advice}" if advice else hint(shown, list(_PARAMETERS))
            raise ValueError(f"the query of the URL has {shown}, which is not known{why}")
        if name in _OF_TLS and scheme != "amqps":
            raise ValueError(f"{name} in the URL is for amqps://; this one is {scheme}://")
        try:
            value = parameter.read(text)
        except ValueError as error:
            raise ValueError(f"{name} in the URL {error}") from None
        section, _, key = parameter.key.rpartition(".")
        if key:
            (found.setdefault(section, {}) if section else found)[key] = value
    return found
