"""The base class of servers that tests start."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import random
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

_PORTS = range(10_000, 32_768)  # Linux: ip_local_port_range begins at 32768
_BLOCK = 256  # ports


class OwnServer(ABC):
    """One or more processes; in a ``with`` block they run, and are closed at its end."""

    @abstractmethod
    def start(self) -> None:
        """Start, and wait until it serves."""

    @abstractmethod
    def close(self) -> None:
        """End, and remove the data. May be called more than once."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def free_port() -> int:
    """A free loopback port, reserved until its server listens on it.

    Ports of clients come from a higher range: there, a client that reconnects to a stopped server
    could get the server's port, and connect to itself. Other test processes have
    blocks of their own.
    """
    ports = _own_block()
    while True:
        port = next(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def _own_block() -> Iterator[int]:
    """The ports of this process, in turns: a block that it keeps locked until it ends."""
    folder = Path(tempfile.gettempdir(), f"broker_client-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    blocks = list(range(_PORTS.start, _PORTS.stop - _BLOCK, _BLOCK))
    random.SystemRandom().shuffle(blocks)
    for first in blocks:
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + _BLOCK))
    raise RuntimeError(f"every block of ports is in use: {folder}")


def url_of_guest(port: int, vhost: str = "/") -> str:
    """The address of `vhost` on this machine, with the login of the default user."""
    return f"amqp://guest:guest@127.0.0.1:{port}/{quote(vhost, safe='')}"
