"""The separate connection of a vhost's consumers.

RabbitMQ blocks connections that publish; consumers on a connection of their own go on. It follows
the publishing connection to its address, and declares only what AMQP ties to the connection of its
consumers: exclusive queues.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_client.config import VhostConfig
from broker_client.connection.addresses import Addresses
from broker_client.connection.connection import Connection
from broker_client.connection.declarations import Declarations, Emit
from broker_client.errors import TransportError
from broker_client.transport.base import Connector, Link


class ConsumersConnection:
    """Owner of the consumers' connection.

    Args:
        config: the vhost's.
        connectors: its addresses, in the order of the configuration.
        leader: the publishing connection, which declares the topology.
        declarations: what is declared in the vhost.
        emit: where events go.
    """

    def __init__(
        self,
        config: VhostConfig,
        connectors: Sequence[Connector],
        leader: Connection,
        declarations: Declarations,
        emit: Emit,
    ) -> None:
        self._vhost = config.name
        self._leader = leader
        self._declarations = declarations
        self._emit = emit
        self.connection: Connection = Connection(
            f"{config.name} consuming", Addresses.of(config, connectors), self, leader=leader
        )

    def __repr__(self) -> str:
        return f"<ConsumersConnection {self._vhost}: {self.connection.state}>"

    def follow(self) -> None:
        """Move to the address of the publishing connection: the topology is declared there."""
        connection = self.connection
        if connection.link is not None and connection.current != self._leader.current:
            connection.abort("following the publishing connection to another broker")

    async def wait_up(self) -> Link:
        """The link as soon as it is up; the first call opens it."""
        if self._leader.is_begun:
            self.connection.start()
        return await self.connection.wait_up()

    # ------------------------------------------------------------------ for the connection

    async def prepare(self, link: Link) -> None:
        await self._declarations.establish(link, "own")

    def link_up(self, link: Link) -> None:
        self._emit("consumers_connected", self._vhost, link.url)
        self._declarations.link_up()

    def link_down(self, link: Link, error: TransportError) -> None:
        self._emit("consumers_disconnected", self._vhost, link.url)
        report_loss(self._emit, self._vhost, error)

    def attempt_failed(self, error: Exception) -> None:
        self._emit("error", error, self._vhost)

    def blocked(self, link: Link, reason: str) -> None: ...
    def unblocked(self, link: Link) -> None: ...


def report_loss(emit: Emit, vhost: str, error: TransportError) -> None:
    """Emit `close` if the broker closed in order and there is a listener; else `error`."""
    in_order = getattr(error, "in_order", False)
    if not (in_order and emit("close", error, vhost)):
        emit("error", error, vhost)
