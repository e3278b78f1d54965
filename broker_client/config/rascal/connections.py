"""Connections and management APIs of a rascal configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from broker_client.config.rascal.draft import Draft
from broker_client.config.rascal.rules import (
    NOTHING,
    Dropped,
    Kept,
    Rules,
    Without,
    applied,
    milliseconds,
    retry,
    seconds,
    shown,
    text,
    whole,
)

ADDRESS = ("url", "scheme", "hostname", "port", "user", "password", "vhost")
_WITH_URL = ("protocol", "hostname", "port", "user", "password", "vhost")


def _frame_max(value: object) -> int:
    found = whole(value)
    if 0 < found < 4096:
        raise Without("AMQP needs at least 4096 bytes")
    return found


_OPTIONS: Rules = {
    "heartbeat": Kept("heartbeat", seconds),
    "channelMax": Kept("channel_max", whole),
    "frameMax": Kept("frame_max", _frame_max),
    "connection_timeout": Kept("connect_timeout", milliseconds),
    "locale": Dropped("it is always en_US"),
}

_AS_FILE = Dropped("write tls: {cafile: ..., certfile: ..., keyfile: ...} with files")
_SOCKET_OPTIONS: Rules = {
    "timeout": Kept("connect_timeout", milliseconds),
    "clientProperties": "client_properties",
    "cert": _AS_FILE,
    "key": _AS_FILE,
    "ca": _AS_FILE,
    "pfx": _AS_FILE,
    "passphrase": _AS_FILE,
    "noDelay": Dropped("always so"),
    "keepAlive": Dropped("heartbeats find a dead link"),
    "rejectUnauthorized": "verify",
}

_MANAGEMENT: Rules = {
    "url": "url",
    "protocol": "scheme",
    "hostname": "hostname",
    "port": Kept("port", whole),
    "user": Kept("user", text),
    "password": Kept("password", text),
    "slashes": NOTHING,
    "auth": NOTHING,
    "loggableUrl": NOTHING,
}

_CONNECTION: Rules = {
    **_MANAGEMENT,
    "vhost": Kept("vhost", lambda value: value or "/"),
    "retry": Kept("retry", retry),
    "pathname": NOTHING,
    "query": NOTHING,
}


def connection(value: object, vhost: str) -> Draft | str:
    """One connection: just its URL if that is all, or a mapping.

    Args:
        value: a URL or a mapping of rascal's.
        vhost: key of the vhost it is for.
    """
    given = {"url": value} if isinstance(value, str) else value
    found = Draft()
    if not isinstance(given, Mapping):
        return applied(_CONNECTION, given, found)
    rest = dict(given)
    if rest.get("url"):
        _take_url(rest, found, vhost)
    for key, rules in (("options", _OPTIONS), ("socketOptions", _SOCKET_OPTIONS)):
        more = applied(rules, rest.pop(key, None), Draft())
        found.notes += more.notes
        # The time for the handshake includes that of the socket.
        found.update({name: each for name, each in more.items() if name not in found})
    if rest.get("management") is not None:
        found["management"] = _management(rest.pop("management"))
    applied(_CONNECTION, rest, found)
    _tidy(found)
    address_first = {key: found[key] for key in ADDRESS if key in found}
    result = Draft({**address_first, **found})
    result.notes = found.notes
    return str(found["url"]) if [*found] == ["url"] and not found.notes else result


def _take_url(rest: dict[str, Any], found: Draft, vhost: str) -> None:
    """The URL without its query, which are options to rascal. Its parts win."""
    url, _, query = str(rest.pop("url")).partition("?")
    scheme, _, behind = url.partition("://")
    _leave_out_parts(rest, found)
    if "/" not in behind and vhost != "/":
        url += "/"
        found.note(
            f"rascal connects an address without a path to vhost '/'; take the path out of the url "
            f"to use vhost {vhost!r}"
        )
    found["url"] = f"{scheme}://{behind}" if url == f"{scheme}://{behind}" else url
    rest["options"] = {**dict(parse_qsl(query)), **(rest.get("options") or {})}


def _leave_out_parts(rest: dict[str, Any], found: Draft) -> None:
    for key in _WITH_URL:
        if rest.pop(key, None) is not None:
            found.note(f"left out: {key}: the url wins over it")


def _management(value: object) -> Draft | str:
    if isinstance(value, str):
        return value
    found = Draft()
    rest = dict(value) if isinstance(value, Mapping) else value
    if isinstance(rest, dict):
        options = rest.pop("options", None)
        found = applied({"timeout": Kept("timeout", milliseconds)}, options, found)
        if rest.get("url"):
            _leave_out_parts(rest, found)
    return applied(_MANAGEMENT, rest, found)


def _tidy(found: Draft) -> None:
    """Move what socket options say to its place here."""
    verify = found.pop("verify", None)
    scheme = str(found.get("url") or found.get("scheme"))
    if verify is False and scheme.startswith("amqps"):
        found["tls"] = {"verify": False}
    elif verify is False:
        found.note(f"left out: {shown('rejectUnauthorized', verify)}: no amqps address")
    properties = found.get("client_properties")
    if isinstance(properties, Mapping) and isinstance(properties.get("connection_name"), str):
        found["name"] = properties["connection_name"]
        found["client_properties"] = {
            key: each for key, each in properties.items() if key != "connection_name"
        }
        if not found["client_properties"]:
            del found["client_properties"]
