"""Rates of messages, from counters that are looked at every few seconds."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from broker_client.core.queue import Queue
from broker_client.node.node import Node
from broker_client.runtime.pace import paced

_INTERVAL = 5.0  # seconds, as RabbitMQ's collect_statistics_interval


class Counts(NamedTuple):
    """Counters of a queue, or of all; or what they grow by in a second."""

    publish: float
    deliver_get: float
    ack: float


ZERO = Counts(0, 0, 0)


class Rates:
    """Looks at the counters of a node's queues while it runs."""

    def __init__(self, node: Node) -> None:
        """
        Args:
            node: whose queues.
        """
        self._node = node
        self._last: dict[Queue, Counts] = {}
        self._rates: dict[Queue, Counts] = {}
        self._looked_at: float | None = None

    def of(self, queue: Queue) -> Counts:
        """The recent growth per second of the counters of `queue`."""
        return self._rates.get(queue, ZERO)

    async def run(self) -> None:
        """Look at the counters until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL)

    async def look(self) -> None:
        """Look at the counters once."""
        queues = list(self._node.view.queues())
        now = self._node.now()
        seconds = 0.0 if self._looked_at is None else now - self._looked_at
        counts: dict[Queue, Counts] = {}
        rates: dict[Queue, Counts] = {}
        async for queue in paced(queues):
            counts[queue] = new = counts_of(queue)
            old = self._last.get(queue, ZERO)
            if seconds > 0 and new != old:
                grown = (max(0.0, b - a) / seconds for a, b in zip(old, new, strict=True))
                rates[queue] = Counts(*grown)
        self._last, self._rates, self._looked_at = counts, rates, now


def counts_of(queue: Queue) -> Counts:
    """The counters of a queue since it was declared."""
    return Counts(queue.enqueued, queue.delivered, queue.acked)
