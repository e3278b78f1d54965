"""A server within the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from broker_client.config.listen import ListenAddress, parse_listen_address
from broker_client.config.server import ServerConfig
from broker_client.core.settings import EngineSettings
from broker_client.node.node import Node
from broker_client.server.server import Server
from tests.support.own_server import url_of_guest


class Listening:
    """A server, its node, and its addresses."""

    def __init__(self, node: Node, server: Server) -> None:
        self.node, self.server = node, server

    @classmethod
    @asynccontextmanager
    async def started(
        cls,
        addresses: Sequence[str] = ("127.0.0.1:0",),
        engine: dict[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Self]:
        """Serve an empty node with the user guest.

        Args:
            addresses: to listen on.
            engine: settings of the node's engine.
            settings: of the server.
        """
        node = Node(settings=EngineSettings(**(engine or {})))
        node.administration.add_vhost("/")
        node.access.add_default_user()
        where = [parse_listen_address(each) for each in addresses]
        server = Server(node, where, ServerConfig(**settings))
        await server.start()
        try:
            yield cls(node, server)
        finally:
            await server.stop(0.0)
            await node.close()

    @property
    def address(self) -> ListenAddress:
        """The first one."""
        return self.server.addresses[0]

    @property
    def port(self) -> int:
        """Of the first address."""
        return self.address.port

    @property
    def url(self) -> str:
        """The URL with the login of the default user."""
        return url_of_guest(self.port)
