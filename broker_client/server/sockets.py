"""Sockets to listen on: made for an address, or inherited from systemd."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from typing import NamedTuple

from broker_client.config.listen import UNIX, ListenAddress
from broker_client.errors import ListenError

_BACKLOG = 1024  # connections that wait to be accepted


class ListeningSocket(NamedTuple):
    """A socket that listens, and its address as clients know it."""

    socket: socket.socket
    address: ListenAddress
    is_inherited: bool = False
    """Made by systemd, which goes on to listen on it when this process is gone."""

    def close(self) -> None:
        """Close it, and remove the path of a Unix socket that was made here."""
        self.socket.close()
        if self.address.scheme == UNIX and not self.is_inherited:
            with contextlib.suppress(OSError):
                os.unlink(self.address.path)


def open_sockets(address: ListenAddress) -> list[ListeningSocket]:
    """Listen on `address`: on every address of a host name, with the same port.

    Raises:
        ListenError: it cannot be listened on; nothing is left open.
    """
    opened: list[ListeningSocket] = []
    try:
        if address.scheme == UNIX:
            opened.append(_unix_socket(address))
        else:
            for family, host in _hosts(address):
                port = opened[0].address.port if opened else address.port
                found = address._replace(host=host if opened else address.host, port=port)
                opened.append(_tcp_socket(found, family, host))
    except OSError as error:
        for each in opened:
            each.close()
        if isinstance(error, ListenError):
            raise
        raise ListenError(str(address), _reason(error)) from error
    return opened


def has_inherited_sockets() -> bool:
    """True where systemd has passed on sockets, and nobody has taken them yet."""
    count = os.environ.get("LISTEN_FDS", "")
    return os.environ.get("LISTEN_PID") == str(os.getpid()) and count.isdecimal()


def inherited_sockets() -> list[ListeningSocket]:
    """The sockets that systemd has passed on to this process (sd_listen_fds(3)).

    One that is called ``amqps`` (``FileDescriptorName=``) speaks TLS.
    """
    if not has_inherited_sockets():
        return []
    count = os.environ["LISTEN_FDS"]
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    for key in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(key, None)  # not for our children
    found = []
    for index in range(int(count)):
        name = names[index] if index < len(names) else ""
        listening = socket.socket(fileno=_FIRST_FD + index)
        listening.setblocking(False)
        os.set_inheritable(listening.fileno(), False)
        found.append(ListeningSocket(listening, _address_of(listening, name), True))
    return found


_FIRST_FD = 3


def _address_of(listening: socket.socket, name: str) -> ListenAddress:
    where = listening.getsockname()
    if listening.family == socket.AF_UNIX:
        return ListenAddress(UNIX, path=str(where))
    return ListenAddress("amqps" if name == "amqps" else "amqp", where[0], where[1])


def _hosts(address: ListenAddress) -> Iterator[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(
            address.host,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except socket.gaierror as error:
        raise ListenError(str(address), f"no such host ({error.strerror})") from error
    yield from dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found)


def _tcp_socket(address: ListenAddress, family: int, host: str) -> ListeningSocket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, address.port))
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return ListeningSocket(listening, address._replace(port=listening.getsockname()[1]))


def _unix_socket(address: ListenAddress) -> ListeningSocket:
    _remove_left_behind(address)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.bind(address.path)
        listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return ListeningSocket(listening, address)


def _remove_left_behind(address: ListenAddress) -> None:
    """Remove the socket of a server that is gone.

    Raises:
        ListenError: a server is there.
    """
    try:
        if not stat.S_ISSOCK(os.stat(address.path).st_mode):
            raise ListenError(str(address), "a file that is not a socket has that path")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address.path)
            return
    raise ListenError(str(address), _TAKEN)


_TAKEN = "another program listens there"


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return _TAKEN
    return os.strerror(error.errno) if error.errno else str(error)
