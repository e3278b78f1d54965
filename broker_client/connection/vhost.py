"""One vhost of the client: its connections, its topology, its pools, its publish queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broker_client.config import VhostConfig
from broker_client.connection.connection import Connection
from broker_client.connection.management import delete_vhost
from broker_client.connection.retry import Backoff
from broker_client.connection.topology import Part, Topology
from broker_client.errors import ConnectFailedError, TopologyError, TransportError
from broker_client.events.health import ConnectionHealth, VhostHealth
from broker_client.events.stats import ConnectionStats, PoolStats, VhostStats
from broker_client.pool import ChannelPool
from broker_client.publishing.delay import DelayQueues, DelayStep
from broker_client.publishing.outbox import Outbox
from broker_client.publishing.queue import PublishObserver, PublishQueue
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Channel, Connector, Link

log = logging.getLogger("broker_client.vhost")

_RESTORE_EVERY = 1.0  # seconds; the topology is not declared again more often than this


class VhostEvents(Protocol):
    """Where a vhost's events go: the broker's `emit`, with the vhost as last argument.

    True when somebody listens.
    """

    def __call__(self, event: str, *args: Any) -> Any: ...


class Vhost:
    """Keeps one vhost of the broker usable.

    With connectors of their own, consumers get a connection of their own too: it is opened with
    the first of them, follows the publishing one to its address, and declares only what AMQP ties
    to the connection of its consumers. Topology is the publishing connection's; without a second
    one, there is one for both.

    Args:
        config: what is declared in it, and its brokers in the order of `connectors`.
        connectors: its addresses.
        emit: where its events go (as in rascal).
        tasks: owner of the tasks that send.
        consuming: the same addresses, for the connection of the consumers.
        observer: told of every publish.
    """

    def __init__(
        self,
        config: VhostConfig,
        connectors: Sequence[Connector],
        emit: VhostEvents,
        tasks: TaskGroup,
        consuming: Sequence[Connector] = (),
        observer: PublishObserver | None = None,
    ) -> None:
        self.config = config
        self._connectors = connectors
        self._emit = emit
        self._tasks = tasks
        self._topology = Topology(config)
        self._delays = DelayQueues()
        self._refusals = _Refusals(config, self._emit)
        self._purged: set[Part] = set()
        self._opened = False
        self._ended: _Outage | None = None
        self._blocked: str | None = None
        self._restoring = asyncio.Lock()
        self._restored_at = float("-inf")
        self._restore_failure: TopologyError | None = None
        self._repair: asyncio.Task[None] | None = None
        self._repairing = Backoff(config.connections[0].retry)
        self.connection = self._a_connection(config.name, connectors, self)
        self._consumers = _Consumers(self, consuming) if consuming else None
        pools = config.publication_channel_pools
        self._regular, self._confirm = (
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
        self.publish_queue = PublishQueue(
            config.name,
            config.publish_queue,
            self,
            regular=self._regular,
            confirm=self._confirm,
            tasks=tasks,
            observer=observer,
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
    def is_embedded(self) -> bool:
        """True when its broker is the built-in one."""
        return all(connection.is_embedded for connection in self.config.connections)

    @property
    def link_state(self) -> str:
        """In words, for errors."""
        if self._blocked is not None:
            return f"up, but blocked by the broker: {self._blocked}"
        if self.connection.state != "down" or self._ended is None:
            return self.connection.state
        return f"down for {self._ended.seconds:.1f} s, last error: {self._ended.error}"

    # ------------------------------------------------------------------ how it is

    def stats(self) -> VhostStats:
        """A snapshot."""
        return VhostStats(
            self.name,
            self.url,
            self.connection.state,
            self.connection.epoch,
            self.publish_queue.stats(),
            (self._regular.stats(), self._confirm.stats()),
            tuple(
                ConnectionStats(role, each.url, each.state, each.epoch)
                for role, each, _ in self._connections()
            ),
        )

    def drop(self) -> None:
        """Drop its connections, so that `close` does not wait for the network."""
        for _, connection, _ in self._connections():
            connection.drop()

    def health(self) -> VhostHealth:
        """How it is, for probes."""
        return VhostHealth(
            self.name,
            tuple(
                ConnectionHealth(
                    role,
                    each.url,
                    each.state,
                    outage.seconds if outage is not None else 0.0,
                    str(outage.error) if outage is not None else "",
                    (self._blocked or "") if each is self.connection else "",
                )
                for role, each, outage in self._connections()
            ),
            tuple(str(error) for error in self._refusals.present),
        )

    def connections(self) -> list[tuple[str, str]]:
        """(vhost, masked address) of each connection."""
        return [(self.name, each.url) for _, each, _ in self._connections()]

    def _connections(self) -> list[tuple[str, Connection, _Outage | None]]:
        consumers = self._consumers
        if consumers is None:
            return [("both", self.connection, self._ended)]
        found = [("publishing", self.connection, self._ended)]
        if consumers.connection.is_begun:
            found.append(("consuming", consumers.connection, consumers.ended))
        return found

    # ------------------------------------------------------------------ life

    async def open(self) -> None:
        """Connect, declare the topology, let publishing begin.

        Raises:
            TransportError: no address answered, or with `startup: retry` none in time.
            TopologyError: the broker cannot be made as declared.
            ManagementError: the vhost could not be asserted, or is missing.
        """
        loop, timeout = asyncio.get_running_loop(), self.config.startup_timeout
        began, patient = loop.time(), self.config.startup == "retry"
        await self.connection.open(retry=patient, timeout=timeout if patient else None)
        if self._consumers is not None and self._topology.has_own:
            left = None
            if patient and timeout is not None:
                left = max(0.0, timeout - (loop.time() - began))
            await self._consumers.connection.open(retry=patient, timeout=left)
        self._opened = True

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
        """Close pools, queue and connections; what is still queued ends as an error."""
        if self._repair is not None:
            self._repair.cancel()
            await asyncio.wait([self._repair])
        if self.outbox is not None:
            await self.outbox.close()
        await self.publish_queue.close()
        self._regular.close()
        self._confirm.close()
        connections = [self.connection]
        if self._consumers is not None:
            connections.append(self._consumers.connection)
        await asyncio.gather(*(each.close() for each in connections))

    async def bounce(self, timeout: float) -> None:
        """Replace its connections.

        Raises:
            ConnectFailedError: they were not back within `timeout` seconds; they are still tried.
        """
        deadline = asyncio.timeout(timeout)
        connections = [each for _, each, _ in self._connections()]
        try:
            async with deadline:
                for connection in connections:
                    connection.abort("bounced")
                for connection in connections:
                    await connection.wait_up()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            reason = f"not back within {timeout:g} s after a bounce; it is {self.link_state}"
            raise ConnectFailedError(self.url, reason) from error

    async def wait_up(self) -> Link:
        """The link that consumers are to use, as soon as it is up."""
        if self._consumers is None:
            return await self.connection.wait_up()
        if self.connection.is_begun:
            self._consumers.connection.start()
        return await self._consumers.connection.wait_up()

    async def open_link(self) -> Link:
        """A link of its own, not kept alive: for purge, nuke and `Broker.connect`.

        Raises:
            TransportError: no address answered; each is given its `connect_timeout`.
        """
        failure: Exception | None = None
        settings = list(zip(self._connectors, self.config.connections, strict=True))
        current = self.connection.current
        for connector, config in (*settings[current:], *settings[:current]):
            try:
                return await connector.connect(timeout=config.connect_timeout)
            except TransportError as error:
                failure = error
        assert failure is not None
        raise failure

    async def prepare_delay(self, step: DelayStep) -> None:
        """Have the waiting place of a delayed publish there: now, or with the next link."""
        link = self.connection.link
        await self._delays.prepare(link if link is not None and link.is_open else None, step)

    async def purge(self) -> int:
        """Empty every declared queue; returns how many ready messages went."""
        link = await self.open_link()
        try:
            count = await self._topology.purge(link, part="shared")
        finally:
            await link.close()
        own = self._consumers_link
        if own is not None and self._topology.has_own:  # without it the queues are gone
            count += await self._topology.purge(own, part="own")
        return count

    async def delete(self) -> None:
        """Delete every declared exchange and queue."""
        link = await self.open_link()
        try:
            await self._topology.delete(link)
        finally:
            await link.close()

    async def nuke(self) -> None:
        """Close, then delete what is declared, and the vhost itself if it is asserted.

        Closed first, since a connection that is kept alive would declare everything anew.
        """
        await self.close()
        await self.delete()
        if not self.config.assert_:
            return
        failure: TransportError | None = None
        for connection in self.config.connections:
            if connection.is_embedded:
                continue
            try:
                await delete_vhost(connection.management, connection.vhost_name(self.name))
                return
            except TransportError as error:
                failure = error
        if failure is not None:
            raise failure

    async def restore_topology(self) -> None:
        """Declare everything again on the links that are up; several callers share one run.

        Raises:
            TopologyError: something cannot be made as declared; the rest has been.
            TransportError: the link failed meanwhile.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._restoring:
            if self._restored_at < asked:
                wait = self._restored_at + _RESTORE_EVERY - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                await self._establish_again(await self.connection.wait_up())
                self._restore_failure = next(iter(self._refusals.present), None)
                self._restored_at = loop.time()
            if self._restore_failure is not None:
                raise self._restore_failure

    async def _establish_again(self, link: Link) -> None:
        parts = [(link, self._shared_part)]
        own = self._consumers_link
        if self._consumers is not None and own is not None and self._topology.has_own:
            parts.append((own, "own"))
        for each, part in parts:
            refused = await self._topology.establish(each, purge=False, part=part, lenient=True)
            self._refusals.note(part, refused)
        await self._delays.restore(link)
        self._refusals.tell()

    @property
    def _consumers_link(self) -> Link | None:
        """The link that consumers use, if it is up now."""
        link = (self._consumers or self).connection.link
        return link if link is not None and link.is_open else None

    @property
    def _shared_part(self) -> Part:
        return "all" if self._consumers is None else "shared"

    # ------------------------------------------------------------------ for the connections

    def _a_connection(
        self,
        name: str,
        connectors: Sequence[Connector],
        owner: Vhost | _Consumers,
        leader: Connection | None = None,
    ) -> Connection:
        config = self.config
        return Connection(
            name,
            connectors,
            owner,
            retry=[each.retry for each in config.connections],
            connect_timeout=[each.connect_timeout for each in config.connections],
            fixed=config.connection_strategy == "fixed",
            leader=leader,
        )

    def _opener(self, *, confirm: bool) -> Callable[[], Any]:
        async def open_channel() -> Channel:
            link = await self.connection.wait_up()
            return await link.open_channel(confirm=confirm)

        return open_channel

    def _pool_changed(self, event: str, stats: PoolStats) -> None:
        self._emit(event, stats, self.name)

    async def establish(self, link: Link, part: Part) -> None:
        """Declare one part on a new link.

        The first time everything has to be as declared, unless the start is patient. Later on,
        what the broker refuses is reported and tried again while the rest works: one queue with
        other settings must not take all the others down.
        """
        lenient = self._opened or self.config.startup == "retry"
        refused = await self._topology.establish(
            link, purge=part not in self._purged, part=part, lenient=lenient
        )
        self._refusals.note(part, refused)
        self._purged.add(part)

    async def prepare(self, link: Link) -> None:
        await self.establish(link, self._shared_part)
        await self._delays.restore(link)

    def link_up(self, link: Link) -> None:
        self._ended = self._blocked = None
        self._emit("connect", self.name, link.url)
        self._regular.resume()
        self._confirm.resume()
        self.publish_queue.resume()
        self._emit("resumed", self.name)
        self._emit("vhost_initialised", self.name)
        self.report_refusals()
        if self._consumers is not None:
            self._consumers.follow()

    def link_down(self, link: Link, error: TransportError) -> None:
        self._ended = _Outage(error)
        self._blocked = None
        self._pause()
        self._emit("disconnect", self.name, link.url)
        self._emit("paused", self.name)
        self.report_loss(error)

    def report_loss(self, error: TransportError) -> None:
        """`close` when the broker closed in order and somebody listens; else `error`."""
        in_order = getattr(error, "in_order", False)
        if not (in_order and self._emit("close", error, self.name)):
            self._emit("error", error, self.name)

    def attempt_failed(self, error: Exception) -> None:
        if self._ended is not None:
            self._ended.error = error
            self._emit("error", error, self.name)
        else:  # at the start, when nobody can listen yet; `open` raises it, if it gives up
            level = logging.WARNING if self.config.startup == "retry" else logging.DEBUG
            log.log(level, "%s: %s", self.name, error)

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

    # ------------------------------------------------------------------ what was refused

    def report_refusals(self) -> None:
        """Tell what could not be declared on a new link, and begin to mend it."""
        self._refusals.tell()
        if self._refusals.present and (self._repair is None or self._repair.done()):
            self._repairing.reset()
            self._repair = self._tasks.spawn(self._mend(), f"mend topology of {self.name}")

    async def _mend(self) -> None:
        """Declare again, later each time, until nothing is refused any more."""
        while self._refusals.present:
            await asyncio.sleep(self._repairing.next())
            try:
                await self.restore_topology()
            except (TransportError, TopologyError) as error:
                log.info("%s: %s", self.name, error)


class _Outage:
    """Since when a connection is down, and why."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self._loop = asyncio.get_running_loop()  # a probe may ask from another thread
        self._since = self._loop.time()

    @property
    def seconds(self) -> float:
        return self._loop.time() - self._since


class _Refusals:
    """What could not be declared, by the part it belongs to; each is reported once."""

    def __init__(self, config: VhostConfig, emit: VhostEvents) -> None:
        self._vhost = config.name
        self._emit = emit
        self._by_part: dict[Part, list[TopologyError]] = {}
        self._told: set[str] = set()

    @property
    def present(self) -> list[TopologyError]:
        return [error for errors in self._by_part.values() for error in errors]

    def note(self, part: Part, refused: list[TopologyError]) -> None:
        self._by_part[part] = refused

    def tell(self) -> None:
        """Report what is new."""
        for error in self.present:
            if str(error) not in self._told:
                self._emit("error", error, self._vhost)
        self._told = {str(error) for error in self.present}


class _Consumers:
    """Owner of the consumers' connection.

    RabbitMQ blocks connections that publish, so no notice of that comes here.
    """

    def __init__(self, vhost: Vhost, connectors: Sequence[Connector]) -> None:
        self._vhost = vhost
        self.ended: _Outage | None = None
        self.connection = vhost._a_connection(  # noqa: SLF001 - a part of it
            f"{vhost.name} consuming", connectors, self, vhost.connection
        )

    def follow(self) -> None:
        """Be where the publishing connection is: the topology is declared there."""
        if (
            self.connection.link is not None
            and self.connection.current != self._vhost.connection.current
        ):
            self.connection.abort("following the publishing connection to another broker")

    async def prepare(self, link: Link) -> None:
        await self._vhost.establish(link, "own")

    def link_up(self, link: Link) -> None:
        self.ended = None
        self._vhost._emit("consumers_connected", self._vhost.name, link.url)  # noqa: SLF001
        self._vhost.report_refusals()

    def link_down(self, link: Link, error: TransportError) -> None:
        self.ended = _Outage(error)
        self._vhost._emit("consumers_disconnected", self._vhost.name, link.url)  # noqa: SLF001
        self._vhost.report_loss(error)

    def attempt_failed(self, error: Exception) -> None:
        if self.ended is not None:
            self.ended.error = error
        self._vhost._emit("error", error, self._vhost.name)  # noqa: SLF001

    def blocked(self, link: Link, reason: str) -> None: ...
    def unblocked(self, link: Link) -> None: ...
