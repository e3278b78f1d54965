"""Reads what a client offers in connection.start-ok: SASL's PLAIN, and RabbitMQ's AMQPLAIN."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from broker_client.amqp.tables import decode_table, malformed
from broker_client.errors import MalformedFrameError

PLAIN = "PLAIN"
AMQPLAIN = "AMQPLAIN"
EXTERNAL = "EXTERNAL"


class Login(NamedTuple):
    """A user name and a password as a client gave them."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, password='***')"


def read_login(mechanism: str, response: bytes) -> Login | None:
    """The login in `response`, or None when it is malformed or `mechanism` has no password.

    PLAIN (RFC 4616) is an authorization identity, which RabbitMQ ignores, a user and a password,
    separated by NUL. AMQPLAIN is a field table without its length, with the entries ``LOGIN`` and
    ``PASSWORD``.
    """
    try:
        if mechanism == PLAIN:
            _, user, password = response.split(b"\0")
            return Login(user.decode(), password.decode())
        if mechanism == AMQPLAIN:
            with malformed():
                table, _ = decode_table(struct.pack(">I", len(response)) + response, 0)
            match table:
                case {"LOGIN": str(name), "PASSWORD": str(secret)}:
                    return Login(name, secret)
    except (ValueError, MalformedFrameError):
        pass
    return None


def is_loopback(host: str) -> bool:
    """True for a peer on this machine: a loopback address, or "" for a Unix domain socket."""
    if not host:
        return True
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
