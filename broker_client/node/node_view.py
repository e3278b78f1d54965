"""A read-only view of a node, for code that shows or checks its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker_client.core.engine import Engine
from broker_client.core.queue import ChannelState, Queue
from broker_client.core.settings import EngineSettings
from broker_client.core.virtual_host import VirtualHost


class Totals(NamedTuple):
    """How many of each there are."""

    connections: int
    channels: int
    queues: int
    late_settles: int
    """Settlements ignored since their delivery had timed out before."""


class NodeView:
    """Queries of a node's state, as it is at present.

    What is returned is the node's own, and changes with it; a list does not grow or shrink.
    """

    def __init__(self, engine: Engine) -> None:
        """
        Args:
            engine: of the node.
        """
        self._engine = engine

    def __repr__(self) -> str:
        return f"<NodeView vhosts={len(self._engine.state.vhosts)} {self.totals()}>"

    @property
    def settings(self) -> EngineSettings:
        """Limits of the engine."""
        return self._engine.state.settings

    def vhost(self, name: str) -> VirtualHost | None:
        """The vhost of that name, or None."""
        return self._engine.state.vhosts.get(name)

    def vhosts(self) -> list[VirtualHost]:
        """All vhosts, by name."""
        return [vhost for _, vhost in sorted(self._engine.state.vhosts.items())]

    def queues(self) -> Iterator[Queue]:
        """All queues, by vhost; not to be kept over a turn of the event loop."""
        for vhost in self.vhosts():
            yield from vhost.queues.values()

    def channels(self) -> list[ChannelState]:
        """All open channels."""
        return list(self._engine.state.channels.values())

    def totals(self) -> Totals:
        """Counts of what is open or declared."""
        engine = self._engine
        return Totals(
            engine.connection_count, engine.channel_count, engine.queue_count, engine.late_settles
        )
