"""Keeps the topology of a vhost declared: on new links, after deletions and refusals.

A queue that the broker refuses must not take all others down: it is reported once, and declared
again with growing pauses until the broker accepts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker_client.config import VhostConfig
from broker_client.connection.delay_queues import DelayQueues
from broker_client.connection.retry import Backoff
from broker_client.connection.topology import Part, Topology
from broker_client.errors import TopologyError, TransportError
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Link

log: logging.Logger = logging.getLogger("broker_client.vhost")

_RESTORE_EVERY = 1.0  # seconds; the topology is not declared again more often than this

Emit = Callable[..., object]
"""A broker's `emit`: the event's name and its arguments; true if there is a listener."""


class Declarations:
    """The topology and the delay queues of one vhost, on the links that are up.

    Args:
        config: what is declared.
        links: the links to declare on and the part for each; waits for the first to be up.
        emit: where refusals are reported.
        tasks: owner of the task that declares again what was refused.
    """

    def __init__(
        self,
        config: VhostConfig,
        links: Callable[[], Awaitable[list[tuple[Link, Part]]]],
        emit: Emit,
        tasks: TaskGroup,
    ) -> None:
        self._vhost = config.name
        self._links = links
        self._emit = emit
        self._tasks = tasks
        self.topology: Topology = Topology(config)
        self.delays: DelayQueues = DelayQueues(config.name)
        self.lenient: bool = config.startup == "retry"
        """Continue without what the broker refuses. At the start, all must be as declared."""
        self._purged: set[Part] = set()
        self._refused: dict[Part, list[TopologyError]] = {}
        self._reported: set[str] = set()
        self._restoring = asyncio.Lock()
        self._restored_at = float("-inf")
        self._backoff = Backoff(config.connections[0].retry)
        self._repair: asyncio.Task[None] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Declarations {self._vhost}: {len(self.refused)} refused>"

    @property
    def refused(self) -> list[TopologyError]:
        """What the broker refuses at present."""
        return [error for errors in self._refused.values() for error in errors]

    async def establish(self, link: Link, part: Part) -> None:
        """Declare `part` on a new link.

        Raises:
            TopologyError: something cannot be declared, and `lenient` is off.
            TransportError: the link failed.
        """
        self._refused[part] = await self.topology.establish(
            link, purge=part not in self._purged, part=part, lenient=self.lenient
        )
        self._purged.add(part)
        if part != "own":
            await self.delays.restore(link)

    async def restore(self) -> None:
        """Declare everything again on the links that are up; several callers share one run.

        Raises:
            TopologyError: something cannot be declared; the rest was.
            TransportError: the link failed meanwhile.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._restoring:
            if self._restored_at < asked:
                wait = self._restored_at + _RESTORE_EVERY - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                for link, part in await self._links():
                    self._refused[part] = await self.topology.establish(
                        link, purge=False, part=part, lenient=True
                    )
                    if part != "own":
                        await self.delays.restore(link)
                self._report()
                self._restored_at = loop.time()
            for error in self.refused:
                raise error

    def link_up(self) -> None:
        """A new link is up: report what was refused on it, and start to repair it."""
        self._report()
        if self.refused and (self._repair is None or self._repair.done()):
            self._backoff.reset()
            self._repair = self._tasks.spawn(self._mend(), f"repair topology of {self._vhost}")

    async def close(self) -> None:
        """Stop repairing. May be called more than once."""
        self._closed = True
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.wait([self._repair])

    def _report(self) -> None:
        for error in self.refused:
            if str(error) not in self._reported:
                self._emit("error", error, self._vhost)
        self._reported = {str(error) for error in self.refused}

    async def _mend(self) -> None:
        while self.refused and not self._closed:
            await asyncio.sleep(self._backoff.next())
            try:
                await self.restore()
            except (TransportError, TopologyError) as error:
                log.info("%s: %s", self._vhost, error)
