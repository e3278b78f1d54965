"""One vhost of the client: its connection, its topology, its pools, its publish queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker_client.config import VhostConfig
from broker_client.connection import Connection
from broker_client.delay import DelayQueues, DelayStep
from broker_client.errors import TransportError
from broker_client.outbox import Outbox
from broker_client.pool import ChannelPool
from broker_client.publish_queue import PublishQueue
from broker_client.stats import VhostStats
from broker_client.tasks import TaskGroup
from broker_client.topology import Topology
from broker_client.transport.base import Channel, Connector, Link

log = logging.getLogger("broker_client.vhost")

_RESTORE_EVERY = 1.0  # seconds; the topology is not declared again more often than this


class VhostEvents(Protocol):
    """Where a vhost's events go: the broker's `emit`, with the vhost as last argument."""

    def __call__(self, event: str, *args: Any) -> Any: ...


class Vhost:
    """Keeps one vhost of the broker usable.

    Args:
        config: what is declared in it.
        connectors: its addresses.
        emit: where its events go (rascal R-222).
        tasks: owner of the tasks that send.
        queue: what to make the publish queue with.
    """

    def __init__(
        self,
        config: VhostConfig,
        connectors: Sequence[Connector],
        emit: VhostEvents,
        tasks: TaskGroup,
        queue: Callable[..., PublishQueue] = PublishQueue,
    ) -> None:
        self.config = config
        self._connectors = connectors
        self._emit = emit
        self._topology = Topology(config)
        self._delays = DelayQueues()
        self._purged = False
        self._down_since: float | None = None
        self._last_error: Exception | None = None
        self._blocked: str | None = None
        self._restoring = asyncio.Lock()
        self._restored_at = float("-inf")
        first = config.connections[0]
        self.connection = Connection(
            config.name,
            connectors,
            self,
            retry=first.retry,
            connect_timeout=first.connect_timeout,
        )
        pools = config.publication_channel_pools
        self._regular = ChannelPool(
            f"{config.name} regular", self._opener(confirm=False), pools.regular
        )
        self._confirm = ChannelPool(
            f"{config.name} confirm", self._opener(confirm=True), pools.confirm
        )
        self.publish_queue = queue(
            config.name,
            config.publish_queue,
            self,
            regular=self._regular,
            confirm=self._confirm,
            tasks=tasks,
        )
        self.outbox: Outbox | None = None
        self._pause()

    def __repr__(self) -> str:
        return f"<Vhost {self.config.name}: {self.link_state}>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def url(self) -> str:
        """The address in use, masked."""
        return self.connection.url

    @property
    def link_state(self) -> str:
        """In words, for errors."""
        if self._blocked is not None:
            return f"up, but blocked by the broker: {self._blocked}"
        if self.connection.state != "down" or self._down_since is None:
            return self.connection.state
        seconds = asyncio.get_running_loop().time() - self._down_since
        why = f", last error: {self._last_error}" if self._last_error else ""
        return f"down for {seconds:.1f} s{why}"

    def stats(self) -> VhostStats:
        """A snapshot."""
        return VhostStats(
            self.name,
            self.url,
            self.connection.state,
            self.connection.epoch,
            self.publish_queue.stats(),
            (self._regular.stats(), self._confirm.stats()),
        )

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect, declare the topology, let publishing begin.

        Raises:
            TransportError: no address answered.
            TopologyError: the broker cannot be made as declared.
        """
        await self.connection.open()

    async def open_outbox(self, connector: Connector, tasks: TaskGroup) -> None:
        """Put an outbox, in the file that `connector` leads to, in front of the publish queue.

        Raises:
            ConnectFailedError: the file cannot be used.
        """
        outbox = Outbox(
            connector,
            self.publish_queue,
            tasks,
            lambda error: self._emit("error", error, self.name),
        )
        await outbox.open()
        self.outbox = outbox

    async def close(self) -> None:
        """Close pools, queue and connection; what is still queued ends as an error."""
        if self.outbox is not None:
            await self.outbox.close()
        await self.publish_queue.close()
        self._regular.close()
        self._confirm.close()
        await self.connection.close()

    async def wait_up(self) -> Link:
        """The link, as soon as it is up."""
        return await self.connection.wait_up()

    async def open_link(self) -> Link:
        """A link of its own, not kept alive: for purge, nuke and `Broker.connect`."""
        failure: Exception | None = None
        for connector in self._connectors:
            try:
                return await connector.connect(timeout=self.config.connections[0].connect_timeout)
            except TransportError as error:
                failure = error
        assert failure is not None
        raise failure

    @property
    def is_embedded(self) -> bool:
        """True when its broker is the built-in one."""
        return all(connection.is_embedded for connection in self.config.connections)

    async def prepare_delay(self, step: DelayStep) -> None:
        """Have the waiting place of a delayed publish there: now, or with the next link."""
        link = self.connection.link
        await self._delays.prepare(link if link is not None and link.is_open else None, step)

    async def purge(self) -> int:
        """Empty every declared queue; returns how many ready messages went."""
        link = await self.open_link()
        try:
            return await self._topology.purge(link)
        finally:
            await link.close()

    async def delete(self) -> None:
        """Delete every declared exchange and queue."""
        link = await self.open_link()
        try:
            await self._topology.delete(link)
        finally:
            await link.close()

    async def restore_topology(self) -> None:
        """Declare everything again on the link that is up; several callers share one run.

        Raises:
            TopologyError: it cannot be made as declared.
            TransportError: the link failed meanwhile.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._restoring:
            if self._restored_at >= asked:
                return
            wait = self._restored_at + _RESTORE_EVERY - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            link = await self.wait_up()
            await self._topology.establish(link, purge=False)
            await self._delays.restore(link)
            self._restored_at = loop.time()

    def _opener(self, *, confirm: bool) -> Callable[[], Any]:
        async def open_channel() -> Channel:
            link = await self.connection.wait_up()
            return await link.open_channel(confirm=confirm)

        return open_channel

    # ------------------------------------------------------------------ from the connection

    async def prepare(self, link: Link) -> None:
        await self._topology.establish(link, purge=not self._purged)
        await self._delays.restore(link)
        self._purged = True

    def link_up(self, link: Link) -> None:
        self._down_since = self._last_error = self._blocked = None
        self._emit("connect", self.name, link.url)
        self._regular.resume()
        self._confirm.resume()
        self.publish_queue.resume()
        self._emit("resumed", self.name)
        self._emit("vhost_initialised", self.name)

    def link_down(self, link: Link, error: TransportError) -> None:
        self._down_since = asyncio.get_running_loop().time()
        self._last_error, self._blocked = error, None
        self._pause()
        self._emit("disconnect", self.name, link.url)
        self._emit("paused", self.name)
        self._emit("error", error, self.name)

    def attempt_failed(self, error: Exception) -> None:
        self._last_error = error
        if self._down_since is not None:  # at start-up, `open` raises it
            self._emit("error", error, self.name)

    def blocked(self, link: Link, reason: str) -> None:
        """Publishing would only fill the socket, and hold up acks behind it: stop it here."""
        self._blocked = reason
        self.publish_queue.pause()
        self._emit("blocked", reason, self.name)

    def unblocked(self, link: Link) -> None:
        self._blocked = None
        self.publish_queue.resume()
        self._emit("unblocked", self.name)

    def _pause(self) -> None:
        self.publish_queue.pause()
        self._regular.pause()
        self._confirm.pause()
