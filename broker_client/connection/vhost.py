"""One vhost of the client: its connections, its topology, its pools of channels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker_client.config import VhostConfig
from broker_client.connection.addresses import Addresses
from broker_client.connection.connection import Connection
from broker_client.connection.connectors import Connectors
from broker_client.connection.consumers import ConsumersConnection, report_loss
from broker_client.connection.declarations import Declarations, Emit
from broker_client.connection.delay_queues import DelayStep
from broker_client.connection.topology import Part
from broker_client.errors import ChannelsExhaustedError, ConnectFailedError, TransportError
from broker_client.events.health import ConnectionHealth, VhostHealth
from broker_client.events.stats import ConnectionStats, PoolStats, PublishQueueStats, VhostStats
from broker_client.pool import ChannelPool
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel, Link

log: logging.Logger = logging.getLogger("broker_client.vhost")


class Vhost:
    """Keeps one vhost of the broker usable.

    Topology belongs to the publishing connection; consumers have a connection of their own where
    `connectors` has some for it, else there is one connection for both.

    Args:
        config: what is declared in it, and its brokers.
        connectors: its addresses, in the order of the configuration.
        emit: where its events go (as in rascal).
        tasks: owner of background tasks.
    """

    def __init__(
        self, config: VhostConfig, connectors: Connectors, emit: Emit, tasks: TaskGroup
    ) -> None:
        self.config = config
        self._connectors = connectors
        self._emit = emit
        self._blocked: str | None = None
        self._exhausted: ChannelsExhaustedError | None = None  # until a channel is opened again
        self.on_pause: Callable[[], None] | None = None
        """Called when publishing must stop: the link is lost, or the broker blocks it."""
        self.on_resume: Callable[[], None] | None = None
        """Called when publishing may go on: the link is up and the topology is there."""
        self._declarations = Declarations(config, self._links_to_declare_on, emit, tasks)
        self.connection: Connection = Connection(
            config.name, Addresses.of(config, connectors.main), self
        )
        self._consumers: ConsumersConnection | None = None
        if connectors.consuming:
            self._consumers = ConsumersConnection(
                config, connectors.consuming, self.connection, self._declarations, emit
            )
        pools = config.publication_channel_pools
        self.regular: ChannelPool
        self.confirm: ChannelPool
        self.regular, self.confirm = (
            ChannelPool(
                f"{config.name} {mode}",
                self._opener(confirm=mode == "confirm"),
                pool,
                vhost=config.name,
                mode=mode,
                notify=self._pool_changed,
                tasks=tasks,
            )
            for mode, pool in (("regular", pools.regular), ("confirm", pools.confirm))
        )
        self._pause_pools()

    def __repr__(self) -> str:
        return f"<Vhost {self.config.name}: {self.link_state}>"

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def is_embedded(self) -> bool:
        """True when its broker is the built-in one."""
        return all(connection.is_embedded for connection in self.config.connections)

    @property
    def link_state(self) -> str:
        """State for error texts."""
        if self._blocked is not None:
            return f"up, but blocked by the broker: {self._blocked}"
        if self._exhausted is not None and self.connection.state == "up":
            return f"up, but {self._exhausted}"
        outage = self.connection.outage
        if self.connection.state != "down" or outage is None:
            return self.connection.state
        return f"down for {outage.seconds:.1f} s, last error: {outage.error}"

    # ------------------------------------------------------------------ how it is

    def stats(self, publish_queue: PublishQueueStats) -> VhostStats:
        return VhostStats(
            self.name,
            self.connection.url,
            self.connection.state,
            self.connection.epoch,
            publish_queue,
            (self.regular.stats(), self.confirm.stats()),
            tuple(
                ConnectionStats(role, each.url, each.state, each.epoch)
                for role, each in self._connections()
            ),
        )

    def health(self) -> VhostHealth:
        return VhostHealth(
            self.name,
            tuple(
                ConnectionHealth(
                    role,
                    each.url,
                    each.state,
                    each.outage.seconds if each.outage is not None else 0.0,
                    str(each.outage.error) if each.outage is not None else "",
                    self._why_blocked if each is self.connection else "",
                    each.outage.refused_for if each.outage is not None else 0.0,
                )
                for role, each in self._connections()
            ),
            tuple(str(error) for error in self._declarations.refused),
        )

    @property
    def _why_blocked(self) -> str:
        return self._blocked or (str(self._exhausted) if self._exhausted is not None else "")

    def connections(self) -> list[tuple[str, str]]:
        """(vhost, masked address) of each connection."""
        return [(self.name, each.url) for _, each in self._connections()]

    def _connections(self) -> list[tuple[str, Connection]]:
        if self._consumers is None:
            return [("both", self.connection)]
        found = [("publishing", self.connection)]
        if self._consumers.connection.is_begun:
            found.append(("consuming", self._consumers.connection))
        return found

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect, declare the topology, let publishing begin.

        Raises:
            TransportError: no address answered, or with `startup: retry` none in time.
            TopologyError: the topology cannot be declared.
            ManagementError: the vhost could not be asserted, or is missing.
        """
        loop, timeout = asyncio.get_running_loop(), self.config.startup_timeout
        began, patient = loop.time(), self.config.startup == "retry"
        await self.connection.open(retry=patient, timeout=timeout if patient else None)
        if self._consumers is not None and self._declarations.topology.has_own:
            left = None
            if patient and timeout is not None:
                left = max(0.0, timeout - (loop.time() - began))
            await self._consumers.connection.open(retry=patient, timeout=left)
        self._declarations.lenient = True

    def drop(self) -> None:
        """Drop its connections, so that `close` does not wait for the network."""
        for _, connection in self._connections():
            connection.drop()

    async def close(self) -> None:
        """Close pools and connections. May be called more than once."""
        await self._declarations.close()
        self.regular.close()
        self.confirm.close()
        connections = [self.connection]
        if self._consumers is not None:
            connections.append(self._consumers.connection)
        await asyncio.gather(*(each.close() for each in connections))

    def cut(self, reason: str) -> None:
        """Cut its connections, as a network fault would."""
        for _, connection in self._connections():
            connection.abort(reason)

    async def wait_all_up(self, deadline: float, timeout: float) -> None:
        """Return once every connection in use is up.

        Args:
            deadline: loop time until which to wait.
            timeout: seconds that this is, for the error.

        Raises:
            ConnectFailedError: they were not up in time; they are still tried.
        """
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                for _, connection in self._connections():
                    await connection.wait_up()
        except TimeoutError as error:
            if not limit.expired():
                raise
            reason = f"not back within {timeout:g} s after a bounce; it is {self.link_state}"
            raise ConnectFailedError(self.connection.url, reason) from error

    async def wait_up(self) -> Link:
        """The link that consumers are to use, as soon as it is up."""
        return await (self._consumers or self.connection).wait_up()

    async def open_link(self) -> Link:
        """A link of its own, not kept alive: for purge, nuke and `Broker.connect`.

        Raises:
            TransportError: no address answered; each is given its `connect_timeout`.
        """
        addresses = Addresses.of(self.config, self._connectors.main)
        return await addresses.connect(once=True, first=self._address_in_use)

    async def _address_in_use(self) -> int:
        return self.connection.current

    async def prepare_delay(self, step: DelayStep) -> None:
        """Declare the delay queue of `step`: now, or with the next link."""
        link = self.connection.link
        delays = self._declarations.delays
        await delays.prepare(link if link is not None and link.is_open else None, step)

    async def restore_topology(self) -> None:
        """Declare everything again on the links that are up; several callers share one run.

        Raises:
            TopologyError: something cannot be declared; the rest was.
            TransportError: the link failed meanwhile.
        """
        await self._declarations.restore()

    async def purge(self, queue: str | None = None) -> int:
        """Empty one declared queue, or all; returns how many ready messages were removed."""
        topology = self._declarations.topology
        link = await self.open_link()
        try:
            count = await topology.purge(link, part="shared", only=queue)
        finally:
            await link.close()
        own = self._consumers_link
        if own is not None and topology.has_own:  # without it the queues are gone
            count += await topology.purge(own, part="own", only=queue)
        return count

    async def delete(self) -> None:
        """Delete every declared exchange and queue."""
        link = await self.open_link()
        try:
            await self._declarations.topology.delete(link)
        finally:
            await link.close()

    async def nuke(self) -> None:
        """Close, then delete what is declared, and the vhost itself if it is asserted.

        Closed first, since a connection that is kept alive would declare everything again.
        """
        await self.close()
        await self.delete()
        if self.config.assert_:
            await self._connectors.delete_vhost()

    # ------------------------------------------------------------------ for the connections

    @property
    def _consumers_link(self) -> Link | None:
        """The link that consumers use, if it is up now."""
        link = (self._consumers or self).connection.link
        return link if link is not None and link.is_open else None

    @property
    def _part(self) -> Part:
        """What is declared on the publishing connection."""
        return "all" if self._consumers is None else "shared"

    async def _links_to_declare_on(self) -> list[tuple[Link, Part]]:
        found: list[tuple[Link, Part]] = [(await self.connection.wait_up(), self._part)]
        own = self._consumers_link
        if self._consumers is not None and own is not None and self._declarations.topology.has_own:
            found.append((own, "own"))
        return found

    def _opener(self, *, confirm: bool) -> Callable[[], Awaitable[Channel]]:
        async def open_channel() -> Channel:
            link = await self.connection.wait_up()
            try:
                channel = await link.open_channel(confirm=confirm)
            except ChannelsExhaustedError as error:
                if self._exhausted is None:
                    log.warning("%s: publishing has to wait: %s", self.name, error)
                self._exhausted = error
                raise
            self._exhausted = None
            return channel

        return open_channel

    def _pool_changed(self, event: str, stats: PoolStats) -> None:
        self._emit(event, stats, self.name)

    async def prepare(self, link: Link) -> None:
        await self._declarations.establish(link, self._part)

    def link_up(self, link: Link) -> None:
        self._blocked = self._exhausted = None
        self._emit("connect", self.name, link.url)
        self.regular.resume()
        self.confirm.resume()
        self._resume()
        self._emit("resumed", self.name)
        self._emit("vhost_initialised", self.name)
        self._declarations.link_up()
        if self._consumers is not None:
            self._consumers.follow()

    def link_down(self, link: Link, error: TransportError) -> None:
        self._blocked = None
        self._pause()
        self._pause_pools()
        self._emit("disconnect", self.name, link.url)
        self._emit("paused", self.name)
        report_loss(self._emit, self.name, error)

    def attempt_failed(self, error: Exception) -> None:
        if self.connection.outage is not None:
            self._emit("error", error, self.name)
        else:  # at the start, before there are listeners; `open` raises it, if it gives up
            level = logging.WARNING if self.config.startup == "retry" else logging.DEBUG
            log.log(level, "%s: %s", self.name, error)

    def blocked(self, link: Link, reason: str) -> None:
        """Pause publishing: it would fill the socket and delay acks behind it."""
        self._blocked = reason
        self._pause()
        self._emit("blocked", reason, self.name)

    def unblocked(self, link: Link) -> None:
        self._blocked = None
        self._resume()
        self._emit("unblocked", self.name)

    def _pause(self) -> None:
        if self.on_pause is not None:
            self.on_pause()

    def _resume(self) -> None:
        if self.on_resume is not None:
            self.on_resume()

    def _pause_pools(self) -> None:
        self.regular.pause()
        self.confirm.pause()
