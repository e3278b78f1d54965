"""Serves the management API on a port, in the event loop of the node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import uvicorn

from broker_client.errors import ListenError
from broker_client.server.http.application import make_application
from broker_client.server.http.management import Management

_GRACE = 5  # seconds for requests that are under way when it stops


class _Uvicorn(uvicorn.Server):
    """Says when it listens, and leaves the signals to the command that runs it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """One address on which the management API is served."""

    def __init__(self, management: Management, host: str, port: int) -> None:
        """
        Args:
            management: answers.
            host: to listen on.
            port: 0 has the system choose one.
        """
        self._management = management
        self._host, self._wanted_port = host, port
        self._uvicorn: _Uvicorn | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """On which it listens, once it does."""

    def __repr__(self) -> str:
        return f"<HttpListener {self._host}:{self.port}>"

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: the address cannot be listened on.
        """
        address = f"http://{self._host}:{self._wanted_port}"
        try:
            listening = _listening_socket(self._host, self._wanted_port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another program listens there" if taken else os.strerror(error.errno or 0)
            raise ListenError(address, reason) from error
        self.port = listening.getsockname()[1]
        self._management.addresses.append(("http", self._host, self.port))
        config = uvicorn.Config(
            make_application(self._management),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=_GRACE,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._uvicorn = _Uvicorn(config)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._uvicorn.serve([listening]), name="management API"),
            loop.create_task(self._management.rates.run(), name="management API: rates"),
        ]
        await self._uvicorn.listening.wait()

    async def stop(self) -> None:
        """End it, once the requests under way are answered. May be called more than once."""
        if self._uvicorn is None:
            return
        serving, rates = self._tasks
        self._uvicorn.should_exit = True
        rates.cancel()
        await asyncio.wait([serving, rates])
        self._uvicorn = None
        serving.result()


def _listening_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening
