"""What the servers that tests start have in common."""

from __future__ import annotations

import contextlib
import random
import socket
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self
from urllib.parse import quote

_PORTS = (10_000, 32_768)  # Linux: ip_local_port_range begins at 32768


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def free_port() -> int:
    """A loopback port that was free a moment ago, and that the system gives to nobody.

    It gives clients theirs from above: there, one that connects again and again to a server that
    is down may be given the server's port, and meet itself.
    """
    while True:
        port = random.randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def url_of_guest(port: int, vhost: str = "/") -> str:
    """The address of `vhost` on this machine, with the login of the default user."""
    return f"amqp://guest:guest@127.0.0.1:{port}/{quote(vhost, safe='')}"
