"""What the servers that tests start have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self
from urllib.parse import quote


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


def url_of_guest(port: int, vhost: str = "/") -> str:
    """The address of `vhost` on this machine, with the login of the default user."""
    return f"amqp://guest:guest@127.0.0.1:{port}/{quote(vhost, safe='')}"
