"""Authenticates a client from connection.start-ok: PLAIN, AMQPLAIN or EXTERNAL."""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from broker_client.amqp.table_decoding import decode_table, malformed
from broker_client.errors import MalformedFrameError
from broker_client.node.access_control import AccessControl

PLAIN = "PLAIN"
AMQPLAIN = "AMQPLAIN"
EXTERNAL = "EXTERNAL"


class Login(NamedTuple):
    """A user name and a password as a client gave them."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, password='***')"


class LoginOutcome(NamedTuple):
    """The user of a login, and whether it is granted."""

    user: str
    """Empty where none can be read."""
    refusal: str
    """Why it is refused, for the log; empty where it is granted."""


def check_login(
    access: AccessControl, mechanism: str, response: bytes, *, host: str, certificate_user: str
) -> LoginOutcome:
    """Decide whether a login is granted.

    Args:
        access: knows the users.
        mechanism: that the client chose.
        response: of connection.start-ok.
        host: address of the client; "" for a Unix domain socket.
        certificate_user: common name of the client's certificate; "" without one.
    """
    refusal = ""
    if mechanism == EXTERNAL and certificate_user:
        user = certificate_user
        if user not in access.users:
            refusal = "there is no such user"
    else:
        login = read_login(mechanism, response)
        if login is None:
            return LoginOutcome("", "malformed")
        user = login.user
        if access.authenticate(*login) is None:
            refusal = "user or password is wrong"
    if not refusal and access.is_loopback_only(user) and not is_loopback(host):
        refusal = "the user may log in from this machine only"
    return LoginOutcome(user, refusal)


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
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
