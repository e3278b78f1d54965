"""The running broker: an engine with its store and its clock, in the current event loop.

A transport or a server opens connections and channels here, and gives the commands of a channel to
`Node.commands`. Operators have `Node.administration` and `Node.access`. What an application may ask
for beside AMQP are nsq's FIN, REQ and TOUCH, and views of queues, which it names by vhost and name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from broker_client.core.engine import Engine
from broker_client.core.scan import ScanSettings
from broker_client.core.settings import EngineSettings
from broker_client.core.settle_results import NodeClosed, SettleResult
from broker_client.errors import BrokerClosedError, StoreError
from broker_client.events.log import EventLog
from broker_client.node.access_control import AccessControl
from broker_client.node.administration import Administration
from broker_client.node.channel_commands import ChannelCommands, Command
from broker_client.node.effect_runner import ConnectionReceiver, EffectRunner, Receiver
from broker_client.node.node_view import NodeView
from broker_client.node.scan_loop import Scanner
from broker_client.runtime.clock import Clock, SystemClock
from broker_client.runtime.slotted import slotted
from broker_client.store.base import Store
from broker_client.store.memory import MemoryStore

if TYPE_CHECKING:
    from broker_client.core.snapshots import DeferredMessage, InFlightMessage, Purged, QueueStats


@slotted
class NodeStats:
    """State of a node."""

    name: str
    connections: int
    channels: int
    late_settles: int
    """Settlements ignored since their delivery had timed out before."""
    queues: tuple[QueueStats, ...]


class Node:
    """Runs an engine. Made and used inside one event loop."""

    def __init__(
        self,
        name: str = "",
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        scan: ScanSettings | None = None,
        event_log: EventLog | None = None,
    ) -> None:
        """
        Args:
            name: for logs and `repr`.
            store: keeps persistent messages; by default nothing is kept.
            clock: where `now` comes from.
            settings: limits of the engine; `keep_records` follows the store.
            scan: how to look for what is due.
            event_log: where to write what happens to each message; closed with the node.
        """
        self.name = name
        self.store: Store = store or MemoryStore()
        """Where its messages are kept."""
        self._clock = clock or SystemClock()
        self._event_log = event_log
        self._runner = EffectRunner(
            self,
            self.store,
            self._clock,
            settings or EngineSettings(),
            scan or ScanSettings(),
            event_log,
        )
        self.engine: Engine = self._runner.engine
        self.scanner: Scanner = self._runner.scanner
        self.view: NodeView = NodeView(self.engine)
        """What there is, for those who show it."""
        self.commands: ChannelCommands = ChannelCommands(self.engine, self._runner, self._clock)
        """What a channel may ask for, named as in AMQP."""
        self.administration: Administration = Administration(self.engine, self._runner, self._clock)
        """Vhosts, policies, limits and parameters."""
        self.access: AccessControl = AccessControl(self.engine.users, self._runner.wake)
        """Users and permissions; used only by a server."""
        self._is_closing = False

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed"
        state = "failed" if self.failure and self.is_open else state
        return (
            f"<Node {self.name!r} {state} connections={self.engine.connection_count} "
            f"channels={self.engine.channel_count} backlog={self._runner.backlog}>"
        )

    @property
    def is_open(self) -> bool:
        """False once it is closed."""
        return not self._runner.is_closed

    @property
    def accepts(self) -> bool:
        """False once it is closing, or has failed."""
        return not self._is_closing and self.is_open and self.failure is None

    @property
    def keeps(self) -> bool:
        """True if persistent messages outlive the node."""
        return self.store.keeps

    @property
    def max_message_size(self) -> int:
        """Largest accepted body in bytes; 0 is no limit."""
        return self.engine.state.settings.message_size_limit

    @property
    def is_behind(self) -> bool:
        """True while publishers should wait for `drain`: the disk does not keep up."""
        return self.store.is_behind

    @property
    def is_short(self) -> bool:
        """True while there is an alarm."""
        return self._runner.is_short

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is short at present, such as `memory` or `disk`; publishers are blocked."""
        return self._runner.alarms

    @property
    def failure(self) -> StoreError | None:
        """Why the node has stopped by itself, if it has."""
        return self._runner.failure

    def now(self) -> float:
        """The node's time, in seconds since the epoch."""
        return self._clock.now()

    def stats(self) -> NodeStats:
        """A snapshot."""
        engine = self.engine
        return NodeStats(
            name=self.name,
            connections=engine.connection_count,
            channels=engine.channel_count,
            late_settles=engine.late_settles,
            queues=engine.stats(self.now()),
        )

    # ---------------------------------------------------------------- from start to end

    async def recover(self) -> None:
        """Open the store and restore its content. Called once, before anything else.

        Raises:
            StoreError: the store cannot be used; the node then is of no use either.
        """
        await self.store.start(self.engine.restoring)
        self.engine.restoring.finish(self.now())
        self.tick()

    def tick(self) -> None:
        """Do what is due by the clock; the node's timer calls it, and so may a test."""
        self.engine.tick(self.now())
        self.wake()

    def wake(self) -> None:
        """Schedule the effects of commands given to `engine`."""
        self._runner.wake()

    def carry_out(self) -> None:
        """Carry out the effects now, if there were none for a while: `EffectRunner.carry_out`."""
        self._runner.carry_out()

    def call_after_effects(self, then: Callable[[], None]) -> None:
        """Call `then` once the present effects are carried out, including confirms."""
        self._runner.call_after_effects(then)

    def has_return_for(self, channel: int) -> bool:
        """True while a basic.return for `channel` is still to be carried out."""
        return self._runner.has_return_for(channel)

    def call_after_run(self, then: Callable[[], None]) -> None:
        """Call `then` after the effects that are being carried out, and before their commit; soon
        where none are."""
        self._runner.call_after_run(then)

    async def drain(self) -> None:
        """Wait until the present effects are carried out and committed, including confirms."""
        await self._runner.drain()

    async def close(self) -> None:
        """Drain, close every connection (320), then the store. May be called more than once."""
        self._is_closing = True
        await self.drain()
        if self.is_open:
            self._runner.end()
            if self._event_log is not None:
                self._event_log.end()
        await self.store.close()
        if self._event_log is not None:
            await asyncio.to_thread(self._event_log.close)

    def stop(self) -> None:
        """Close every connection (320) and do nothing more, at once."""
        if not self.is_open:
            return
        self._runner.end()
        self.store.release()
        if self._event_log is not None:
            self._event_log.end()

    # ---------------------------------------------------------------- alarms, connections, channels

    def set_alarm(self, resource: str, active: bool) -> None:
        """Block connections that publish while `resource` is short; see `ConnectionReceiver`.

        The node raises the alarm of its memory itself. Connections are unblocked when no alarm is
        left.
        """
        self._runner.set_alarm(resource, active)

    def block_publisher(self, connection: int) -> None:
        """Notify `connection` once that it must not publish, until no alarm is left."""
        self._runner.block_publisher(connection)

    def open_connection(
        self, vhost: str, receiver: ConnectionReceiver, *, create: bool = True, user: str = ""
    ) -> int:
        """Open a connection to `vhost`.

        Args:
            vhost: its name.
            receiver: notified of what happens to the connection.
            create: create a vhost that does not exist.
            user: whose connection it is, for the text of a refusal.

        Raises:
            BrokerClosedError: the node is closed.
            ReplyError: 530, there is no such vhost, or it has as many connections as it may.
            StoreError: its store has failed.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # it is raised at every attempt to connect
        if not self.is_open:
            raise BrokerClosedError(f"node {self.name!r}")
        connection = self.engine.open_connection(vhost, create=create, user=user)
        self._runner.connections[connection] = receiver
        return connection

    def close_connection(self, connection: int) -> None:
        """Requeue its deliveries at once; its receivers get nothing more."""
        self._runner.close_connection(connection)

    def open_channel(
        self,
        connection: int,
        receiver: Receiver,
        *,
        confirm: bool,
        number: int = 0,
        consumer_timeout: float | None = None,
    ) -> int:
        """Open a channel whose effects go to `receiver`; for the rest see the engine."""
        channel = self.engine.open_channel(
            connection, confirm=confirm, number=number, consumer_timeout=consumer_timeout
        )
        self._runner.receivers[channel] = receiver
        return channel

    def close_channel(self, channel: int) -> None:
        """Requeue its deliveries at once; its receiver gets nothing more."""
        self._runner.receivers.pop(channel, None)
        self.engine.close_channel(channel, self.now())
        self.wake()

    # ---------------------------------------------------------------- one delivery, nsq's way

    def finish(self, channel: int, delivery_tag: int) -> SettleResult:
        """Settle a delivery for good (nsq's FIN).

        Args:
            channel: that it was delivered on, as the engine numbers it.
            delivery_tag: of the delivery.

        Returns:
            `Done`; or, with nothing changed and no channel closed, `NotInFlight` when it was
            settled, purged or given back, `NotOwner` when it timed out here and is in flight
            again under another delivery, `NodeClosed`.
        """
        if not self.accepts:
            return NodeClosed(delivery_tag)
        with Command(self._runner, channel):
            return self.engine.consuming.finish(channel, delivery_tag, self.now())

    def requeue(self, channel: int, delivery_tag: int, *, delay: float = 0.0) -> SettleResult:
        """Requeue a delivery (nsq's REQ).

        Args:
            channel: that it was delivered on.
            delivery_tag: of the delivery.
            delay: seconds to wait first; `max_requeue_timeout` at most, a longer one is cut.
                Without one it goes back to where it was, after one it goes to the tail.

        Returns:
            As `finish`.
        """
        if not self.accepts:
            return NodeClosed(delivery_tag)
        with Command(self._runner, channel):
            return self.engine.consuming.requeue(channel, delivery_tag, self.now(), delay=delay)

    def touch(self, channel: int, delivery_tag: int) -> SettleResult:
        """Give a delivery more time (nsq's TOUCH): its message time-out again, from now, but no
        more than `max_message_timeout` from when it was delivered.

        Returns:
            As `finish`; `Done.seconds_left` is the time it now has.
        """
        runner = self._runner
        if self._is_closing or runner.is_closed or runner.failure is not None:
            return NodeClosed(delivery_tag)
        return self.engine.consuming.touch(channel, delivery_tag, self._clock.now())

    # ---------------------------------------------------------------- a queue
    #
    # Each raises ReplyError 404 where there is no queue of that name.

    def in_flight(
        self, queue: str, *, vhost: str = "/", most: int = 100
    ) -> tuple[InFlightMessage, ...]:
        """What of a queue is in flight, longest first: who has it, since when, until when, at
        which attempt."""
        return self.engine.admin.in_flight(vhost, queue, most=most)

    def deferred(
        self, queue: str, *, vhost: str = "/", most: int = 100
    ) -> tuple[DeferredMessage, ...]:
        """Deferred messages of a queue, earliest due time first."""
        return self.engine.admin.deferred(vhost, queue, most=most)

    def cancel_deferred(
        self, queue: str, ids: Collection[int] | None = None, *, vhost: str = "/"
    ) -> int:
        """Drop deferred messages, all of them or those with these ids; returns their number."""
        self.wake()
        return self.engine.admin.cancel_deferred(vhost, queue, ids)

    def run_deferred(
        self, queue: str, ids: Collection[int] | None = None, *, vhost: str = "/"
    ) -> int:
        """Make deferred messages ready now, all or those with these ids; returns their number."""
        self.wake()
        return self.engine.admin.run_deferred(vhost, queue, self.now(), ids)

    def purge(
        self,
        queue: str,
        *,
        vhost: str = "/",
        ready: bool = True,
        deferred: bool = False,
        in_flight: bool = False,
    ) -> Purged:
        """Drop ready, deferred or in-flight messages of a queue; returns the counts.

        Many that are in flight are dropped in steps, and that count rises until `drain` returns.
        """
        self.wake()
        return self.engine.admin.purge(
            vhost, queue, self.now(), ready=ready, deferred=deferred, in_flight=in_flight
        )

    def pause_queue(self, queue: str, *, vhost: str = "/") -> None:
        """Stop deliveries from a queue until `resume_queue`.

        Publishes are taken, what is in flight may be settled or time out. A durable queue of a
        node with a file stays paused over a restart.
        """
        self.wake()
        self.engine.admin.pause_queue(vhost, queue)

    def resume_queue(self, queue: str, *, vhost: str = "/") -> None:
        """Resume deliveries."""
        self.wake()
        self.engine.admin.resume_queue(vhost, queue, self.now())
