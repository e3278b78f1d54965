"""Servers within the test's own event loop, with what settings it likes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from broker_client.config.listen import ListenAddress, parse_listen_address
from broker_client.config.server import ServerConfig
from broker_client.core.settings import EngineSettings
from broker_client.node.node import Node
from broker_client.server.server import Server


class Listening:
    """A server, its node, and where it is."""

    def __init__(self, node: Node, server: Server) -> None:
        self.node, self.server = node, server

    @property
    def address(self) -> ListenAddress:
        return self.server.addresses[0]

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"


Listen = Callable[..., Awaitable[Listening]]


@pytest.fixture
async def listen() -> AsyncIterator[Listen]:
    """Starts a server: ``listen(*addresses, engine={...}, **settings)``."""
    started: list[Listening] = []

    async def listen(
        *addresses: str, engine: dict[str, Any] | None = None, **settings: Any
    ) -> Listening:
        node = Node(settings=EngineSettings(**(engine or {})))
        node.add_vhost("/")
        node.access.add_default_user()
        where = [parse_listen_address(each) for each in addresses or ("127.0.0.1:0",)]
        server = Server(node, where, ServerConfig(**settings))
        await server.start()
        started.append(Listening(node, server))
        return started[-1]

    yield listen
    for each in started:
        await each.server.stop(0.0)
        await each.node.close()
