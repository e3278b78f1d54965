"""Addresses on which the built-in broker listens."""

from __future__ import annotations

from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator

from broker_client.config.url import DEFAULT_PORTS

UNIX = "unix"
_FORMS = "amqp://HOST:PORT, amqps://HOST:PORT, HOST:PORT or unix:///path/of/socket"


class ListenAddress(NamedTuple):
    """Where to listen: a host and a port, or the path of a Unix domain socket."""

    scheme: str
    """``amqp``, ``amqps`` or ``unix``."""
    host: str = ""
    port: int = 0
    """0 lets the system choose one."""
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == UNIX:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress:
    """Read an address to listen on; without a scheme it is ``amqp``'s.

    Raises:
        ValueError: it has none of the forms; says which exist.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "amqp", text
    scheme = scheme.lower()
    if scheme == UNIX:
        if not rest.startswith("/"):
            raise ValueError(f"{text!r}: a unix:// address is the absolute path of a socket")
        return ListenAddress(UNIX, path=unquote(rest))
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"{scheme!r} is not a scheme to listen on; write {_FORMS}")
    if "@" in rest:
        raise ValueError("an address to listen on has no user or password")
    try:
        split = urlsplit(f"{scheme}://{rest}")
        host, port = split.hostname, split.port
    except ValueError:
        raise ValueError(f"{text!r} is not an address to listen on; write {_FORMS}") from None
    if not host or split.path.rstrip("/") or split.query or split.fragment:
        raise ValueError(f"{text!r} is not an address to listen on; write {_FORMS}")
    return ListenAddress(scheme, host, DEFAULT_PORTS[scheme] if port is None else port)


def _addresses(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _checked(value: tuple[str, ...]) -> tuple[str, ...]:
    for address in value:
        parse_listen_address(address)
    return value


ListenAddresses = Annotated[tuple[str, ...], BeforeValidator(_addresses), AfterValidator(_checked)]
"""One address to listen on, or a list of them."""
