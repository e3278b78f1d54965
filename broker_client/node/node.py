"""The running broker: an engine with its store and its clock, in the current event loop.

What a transport or a server may ask for are commands named as in AMQP, for one channel; each is
carried out at once, at the node's time. What an application may ask for beside AMQP are nsq's
FIN, REQ and TOUCH, and views of queues, which it names by vhost and name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from broker_client.core.arguments import Arguments
from broker_client.core.commands.consume import BasicConsumeArguments
from broker_client.core.commands.topology import (
    Declared,
    ExchangeDeclareArguments,
    QueueDeclareArguments,
)
from broker_client.core.engine import Engine
from broker_client.core.exchange import Destination
from broker_client.core.policies import EffectivePolicy, Policy
from broker_client.core.scan import ScanSettings
from broker_client.core.settings import EngineSettings
from broker_client.core.settle_results import NodeClosed, SettleResult
from broker_client.core.vhost_metadata import CLASSIC, VHostMetadata
from broker_client.errors import BrokerClosedError, ReplyError, StoreError
from broker_client.events.log import EventLog
from broker_client.message import Delivery, Outgoing
from broker_client.node.access_control import AccessControl
from broker_client.node.effect_runner import ConnectionReceiver, EffectRunner, Receiver
from broker_client.node.node_view import NodeView
from broker_client.node.scan_loop import Scanner
from broker_client.runtime.clock import Clock, SystemClock
from broker_client.store.base import Store
from broker_client.store.memory import MemoryStore

if TYPE_CHECKING:
    from broker_client.core.snapshots import DeferredMessage, InFlightMessage, Purged, QueueStats


@dataclass(frozen=True, slots=True)
class NodeStats:
    """State of a node."""

    name: str
    connections: int
    channels: int
    late_settles: int
    """Settlements ignored since their delivery had timed out before."""
    queues: tuple[QueueStats, ...]


class _Command:
    """While a command of `channel` is given: its effects follow soon, and a refusal closes."""

    __slots__ = ("_channel", "_runner")

    def __init__(self, runner: EffectRunner, channel: int) -> None:
        self._runner, self._channel = runner, channel

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ReplyError):
            self._runner.refuse(self._channel, error)
        self._runner.wake()


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

    def call_after_effects(self, then: Callable[[], None]) -> None:
        """Call `then` once the present effects are carried out, including confirms."""
        self._runner.call_after_effects(then)

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

    # ---------------------------------------------------------------- vhosts

    @property
    def vhosts(self) -> tuple[str, ...]:
        """Names of all vhosts, in order."""
        return tuple(sorted(self.engine.state.vhosts))

    def has_vhost(self, name: str) -> bool:
        """True if there is a vhost of that name."""
        return name in self.engine.state.vhosts

    def add_vhost(self, name: str) -> bool:
        """Create a vhost; returns False if there is one of that name.

        Raises:
            ReplyError: 406 for a name of more than 255 bytes.
        """
        self.wake()
        return self.engine.add_vhost(name)

    def delete_vhost(self, name: str) -> bool:
        """Delete a vhost with everything in it, and close its connections (320).

        Returns:
            False where there is none.
        """
        if not self.has_vhost(name):
            return False
        self._runner.close_connections(
            320,
            f"CONNECTION_FORCED - vhost '{name}' is deleted",
            self.engine.connections_to(name),
        )
        self.engine.delete_vhost(name)
        self.wake()
        return True

    def vhost_metadata(self, name: str) -> VHostMetadata:
        """Description, tags and default queue type of a vhost.

        Raises:
            ReplyError: 530 where there is no such vhost.
        """
        return self.engine.vhost_metadata(name)

    def set_vhost_metadata(
        self,
        name: str,
        *,
        description: str = "",
        tags: Sequence[str] = (),
        default_queue_type: str = CLASSIC,
    ) -> None:
        """Replace the metadata of a vhost; values that are not given are reset.

        Args:
            name: of the vhost.
            description: for people.
            tags: for people.
            default_queue_type: ``classic`` or ``quorum``, for queues that are declared without
                `x-queue-type` from now on. RabbitMQ: those that are exclusive, deleted
                automatically or not durable are classic.

        Raises:
            InvalidVHostError: there is no such queue type; nothing is changed.
            ReplyError: 530 where there is no such vhost.
        """
        self.wake()
        metadata = VHostMetadata(description, tuple(tags), default_queue_type)
        self.engine.set_vhost_metadata(name, metadata)

    # ---------------------------------------------------------------- global parameters

    def global_parameters(self) -> dict[str, Any]:
        """Parameters of the whole broker, by name."""
        return dict(self.engine.state.global_parameters)

    def set_global_parameter(self, name: str, value: Any) -> None:
        """Set a parameter of the broker, or replace its value.

        Args:
            name: of the parameter. The broker itself reads ``cluster_name``, a text, which the
                management API shows.
            value: anything that JSON can have.

        Raises:
            InvalidParameterError: JSON has no such value, or the name is empty or too long.
        """
        self.wake()
        self.engine.state.global_parameters.set(name, value)

    def delete_global_parameter(self, name: str) -> bool:
        """Delete a parameter; returns False if there is none of that name."""
        self.wake()
        return self.engine.state.global_parameters.delete(name)

    # ---------------------------------------------------------------- policies
    #
    # Each raises ReplyError 530 where there is no vhost of that name.

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        vhost: str = "/",
        priority: int = 0,
        apply_to: str = "all",
        is_operator: bool = False,
    ) -> None:
        """Add a policy, or replace the one of its name; it counts at once.

        Where it changes many queues, the last of them follow in the next turns of the event loop;
        `drain` waits for all.

        Args:
            name: of the policy.
            pattern: a regular expression, found anywhere in the name of a queue or exchange unless
                it is anchored. Any but ``.*`` needs the extra ``server``.
            definition: what holds, as in RabbitMQ: `core.policies.KEYS`; times in milliseconds.
            vhost: where.
            priority: of all that match, the policy with the highest one applies.
            apply_to: `core.policies.APPLY_TO`.
            is_operator: it limits what policies and arguments may ask for; it applies besides.

        Raises:
            InvalidPolicyError: it cannot be as given; nothing is changed.
        """
        policy = Policy(vhost, name, pattern, dict(definition), priority, apply_to, is_operator)
        self.wake()
        self.engine.policies.set_policy(policy, self.now())

    def delete_policy(self, name: str, *, vhost: str = "/", is_operator: bool = False) -> bool:
        """Delete a policy; returns False where there is none of that name."""
        self.wake()
        return self.engine.policies.delete_policy(vhost, name, self.now(), is_operator=is_operator)

    def policies(self, vhost: str | None = None) -> tuple[Policy, ...]:
        """The policies of a vhost, or of all."""
        return self.engine.policies.policies(vhost)

    def effective_policy(self, queue: str, *, vhost: str = "/") -> EffectivePolicy:
        """The policy settings of a queue, in addition to its arguments.

        Raises:
            ReplyError: 404 where there is no such queue.
        """
        return self.engine.policies.effective(vhost, queue)

    def vhost_limits(self, vhost: str) -> dict[str, int]:
        """How many connections (`max-connections`) and queues (`max-queues`) a vhost may have."""
        return self.engine.policies.limits(vhost)

    def set_vhost_limits(self, vhost: str, limits: Mapping[str, int]) -> None:
        """Replace the limits of a vhost; below 0 is no limit, and what is there already stays.

        Raises:
            InvalidPolicyError: a limit is unknown, or not a whole number.
        """
        self.wake()
        self.engine.policies.set_limits(vhost, limits)

    # ---------------------------------------------------------------- alarms, connections, channels

    def set_alarm(self, resource: str, active: bool) -> None:
        """Block connections that publish while `resource` is short; see `ConnectionReceiver`.

        The node raises the alarm of its memory itself. Connections are unblocked when no alarm is
        left.
        """
        self._runner.set_alarm(resource, active)

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

    def _command(self, channel: int) -> _Command:
        return _Command(self._runner, channel)

    # ---------------------------------------------------------------- commands of a channel
    #
    # Where one raises ReplyError, the node has closed the channel or the connection, as the
    # error's scope says, and its receiver is notified. See the engine for what each does.

    def block_publisher(self, connection: int) -> None:
        """Notify `connection` once that it must not publish, until no alarm is left."""
        self._runner.block_publisher(connection)

    def publish(self, channel: int, messages: Sequence[Outgoing]) -> None:
        """Publish `messages` in order, up to the first that is refused."""
        publish, now = self.engine.publishing.publish, self._clock.now()
        state = self.engine.state.channels[channel]
        try:
            for message in messages:
                publish(channel, message, now)
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            self._runner.wake()
            if self._runner.is_short:
                self._runner.block_publisher(state.connection)

    def ack(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it."""
        try:
            self.engine.consuming.ack(channel, delivery_tag, self._clock.now(), multiple=multiple)
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            if not self._runner.is_scheduled:
                self._runner.wake()

    def ack_each(self, channel: int, delivery_tags: Sequence[int]) -> None:
        """Settle each of these deliveries, up to the first that is refused."""
        try:
            self.engine.consuming.ack_each(channel, delivery_tags, self._clock.now())
        except ReplyError as refusal:
            self._runner.refuse(channel, refusal)
            raise
        finally:
            self._runner.wake()

    def nack(
        self,
        channel: int,
        delivery_tag: int,
        *,
        requeue: bool,
        multiple: bool = False,
        delay: float | None = None,
    ) -> None:
        """Reject deliveries, or give them back, after `delay` seconds if that is set."""
        with self._command(channel):
            self.engine.consuming.nack(
                channel, delivery_tag, self.now(), requeue=requeue, multiple=multiple, delay=delay
            )

    def release(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        """Give a delivery, or all up to it, back unhandled: it does not count as an attempt."""
        with self._command(channel):
            self.engine.consuming.release(channel, delivery_tag, self.now(), multiple=multiple)

    def qos(self, channel: int, prefetch: int, *, shared: bool) -> None:
        """Limit the unsettled deliveries of consumers started from now on, or of all together."""
        with self._command(channel):
            self.engine.consuming.qos(channel, prefetch, self.now(), shared=shared)

    def flow(self, channel: int, *, active: bool) -> None:
        """Stop deliveries to a channel, or go on with them.

        A few that are under way may still come after a stop.
        """
        with self._command(channel):
            self.engine.consuming.flow(channel, active, self.now())

    def consume(self, channel: int, queue: str, **options: Unpack[BasicConsumeArguments]) -> str:
        """Start a consumer; returns its tag."""
        with self._command(channel):
            return self.engine.consuming.consume(channel, queue, self.now(), **options)

    def cancel(self, channel: int, consumer_tag: str) -> None:
        """Stop a consumer, its deliveries staying in flight."""
        with self._command(channel):
            self.engine.consuming.cancel(channel, consumer_tag, self.now())

    def get(self, channel: int, queue: str, *, no_ack: bool) -> tuple[Delivery, int] | None:
        """Take the head of a queue; returns it and the number still ready, or None."""
        with self._command(channel):
            return self.engine.consuming.get(channel, queue, self.now(), no_ack=no_ack)

    def basic_recover(self, channel: int, *, requeue: bool) -> None:
        """Requeue everything that the channel has in flight."""
        with self._command(channel):
            self.engine.consuming.recover(channel, self.now(), requeue=requeue)

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on."""
        with self._command(channel):
            self.engine.publishing.confirm_select(channel)

    def tx_select(self, channel: int) -> None:
        """Hold publishes and settlements back until `tx_commit`."""
        with self._command(channel):
            self.engine.publishing.tx_select(channel)

    def tx_commit(self, channel: int) -> None:
        """Commit the transaction."""
        with self._command(channel):
            self.engine.publishing.tx_commit(channel, self.now())

    def tx_rollback(self, channel: int) -> None:
        """Discard the transaction."""
        with self._command(channel):
            self.engine.publishing.tx_rollback(channel)

    def refuse(self, channel: int, refusal: ReplyError) -> None:
        """Close the channel, or its connection, as for a command that was refused.

        For what a server refuses by itself: its receiver is notified in the same order.
        """
        self._runner.refuse(channel, refusal)

    def declare_exchange(
        self, channel: int, name: str, type: str, **options: Unpack[ExchangeDeclareArguments]
    ) -> None:
        """Add an exchange, or check that it is the same."""
        with self._command(channel):
            self.engine.topology.declare_exchange(channel, name, type, **options)

    def check_exchange(self, channel: int, name: str) -> None:
        """Check that an exchange exists."""
        with self._command(channel):
            self.engine.topology.check_exchange(channel, name)

    def delete_exchange(self, channel: int, name: str, *, if_unused: bool) -> None:
        """Delete an exchange and its bindings."""
        with self._command(channel):
            self.engine.topology.delete_exchange(channel, name, if_unused=if_unused)

    def declare_queue(
        self, channel: int, name: str, **options: Unpack[QueueDeclareArguments]
    ) -> Declared:
        """Add a queue, or check that it is the same."""
        with self._command(channel):
            return self.engine.topology.declare_queue(channel, name, self.now(), **options)

    def check_queue(self, channel: int, name: str) -> Declared:
        """Check that a queue exists."""
        with self._command(channel):
            return self.engine.topology.check_queue(channel, name, self.now())

    def delete_queue(self, channel: int, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue; returns the ready messages that went with it."""
        with self._command(channel):
            return self.engine.topology.delete_queue(
                channel, name, if_unused=if_unused, if_empty=if_empty
            )

    def purge_queue(self, channel: int, name: str) -> int:
        """Drop the ready messages; returns their number."""
        with self._command(channel):
            return self.engine.topology.purge_queue(channel, name)

    def bind(
        self,
        channel: int,
        destination: Destination,
        source: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Bind a queue or an exchange to the exchange `source`."""
        with self._command(channel):
            self.engine.topology.bind(channel, destination, source, binding_key, arguments)

    def unbind(
        self,
        channel: int,
        destination: Destination,
        source: str,
        binding_key: str,
        arguments: Arguments,
    ) -> None:
        """Remove a binding."""
        with self._command(channel):
            self.engine.topology.unbind(channel, destination, source, binding_key, arguments)

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
        with self._command(channel):
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
        with self._command(channel):
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
        """Drop ready, deferred or in-flight messages of a queue; returns the counts."""
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
