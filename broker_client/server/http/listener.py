"""Serves ASGI applications on a port: the management API in the event loop of the node."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from broker_client.errors import ListenError
from broker_client.runtime.forks import leave_to_parent
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


class AsgiListener:
    """One address on which an application is served."""

    def __init__(self, application: ASGIApp, host: str, port: int) -> None:
        """
        Args:
            application: answers.
            host: to listen on.
            port: 0 has the system choose one.
        """
        self._application = application
        self._host, self._wanted_port = host, port
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port: int = 0
        """On which it listens, once it does."""

    def __repr__(self) -> str:
        return f"<AsgiListener {self._host}:{self.port}>"

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
        leave_to_parent(listening.fileno())
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._application,
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
        self._serving = asyncio.create_task(self._uvicorn.serve([listening]), name="HTTP")
        await self._uvicorn.listening.wait()

    async def stop(self) -> None:
        """End it, once the requests under way are answered. May be called more than once."""
        if self._uvicorn is None or self._serving is None:
            return
        self._uvicorn.should_exit = True
        await asyncio.wait([self._serving])
        self._uvicorn = None
        self._serving.result()


class HttpListener:
    """One address on which the management API of a node is served."""

    def __init__(
        self, management: Management, host: str, port: int, application: ASGIApp | None = None
    ) -> None:
        """
        Args:
            management: answers.
            host: to listen on.
            port: 0 has the system choose one.
            application: what is served, if that is more than the API.
        """
        self._management = management
        self._host = host
        self._listener = AsgiListener(application or make_application(management), host, port)
        self._rates: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<HttpListener {self._host}:{self.port}>"

    @property
    def port(self) -> int:
        """On which it listens, once it does."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        return self._listener.url

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: the address cannot be listened on.
        """
        await self._listener.start()
        self._management.addresses.append(("http", self._host, self.port))
        rates = self._management.rates.run()
        self._rates = asyncio.create_task(rates, name="management API: rates")

    async def stop(self) -> None:
        """End it, once the requests under way are answered. May be called more than once."""
        if self._rates is None:
            return
        self._rates.cancel()
        await self._listener.stop()
        await asyncio.wait([self._rates])
        self._rates = None


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
