"""Commands in, ordered effects out: the one door to the core.

Connections and channels are numbered by the engine; a channel's number is unique in the engine,
so it alone names the channel. Whoever runs the engine calls `take_effects` after its commands and
carries them out in order, and calls `tick` when `next_deadline` has come. A command that AMQP
refuses raises `ReplyError` and changes nothing; closing the channel is up to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from broker_client.core.arguments import Arguments, queue_settings
from broker_client.core.dispatch import Dispatcher, EngineSettings
from broker_client.core.effects import Confirm, Effect, Return
from broker_client.core.exchange import Destination, Exchange
from broker_client.core.queue import ChannelState, Consumer, Queue, QueueStats
from broker_client.core.replies import (
    access_refused,
    not_allowed,
    precondition_failed,
    unknown_delivery_tag,
)
from broker_client.core.vhost import VHost
from broker_client.message import Delivery, Outgoing, Returned

NOTHING: Mapping[str, Any] = {}


class Declared(NamedTuple):
    """What a queue declaration answers."""

    name: str
    message_count: int
    """Ready messages only (S-05-01)."""
    consumer_count: int


class Connection:
    """One connection and its channels."""

    __slots__ = ("channels", "id", "vhost")

    def __init__(self, id: int, vhost: VHost) -> None:
        self.id, self.vhost = id, vhost
        self.channels: dict[int, ChannelState] = {}


class Engine:
    """Decides; does nothing itself."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.vhosts: dict[str, VHost] = {}
        self._dispatch = Dispatcher(self.settings, self.vhosts)
        self._effects = self._dispatch.effects
        self._connections: dict[int, Connection] = {}
        self._channels: dict[int, ChannelState] = {}
        self._last_id = 0

    def __repr__(self) -> str:
        queues = sum(len(vhost.queues) for vhost in self.vhosts.values())
        return (
            f"<Engine connections={len(self._connections)} channels={len(self._channels)} "
            f"queues={queues}>"
        )

    # ---------------------------------------------------------------- running

    def take_effects(self) -> list[Effect]:
        """What must be done now, in this order; the caller owns the list."""
        taken = self._effects[:]
        self._effects.clear()
        return taken

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def next_deadline(self) -> float | None:
        """When to call `tick`, or None."""
        return self._dispatch.next_deadline()

    def tick(self, now: float) -> None:
        """Do what is due: message time-outs, deferred messages, TTLs, unused queues."""
        dispatch = self._dispatch
        for owner in dispatch.pop_due(now):
            if isinstance(owner, ChannelState):
                closing = dispatch.must_close(owner, now)
                if closing is not None:
                    self._effects.append(closing)
                    self.close_channel(owner.id, now)
                else:
                    dispatch.time_out(owner, now)
                    dispatch.reindex(owner)
                continue
            expires = owner.settings.expires
            if owner.deleted:
                continue
            if expires is not None and not owner.consumers and owner.last_used + expires <= now:
                self._delete_queue(owner)
                continue
            dispatch.release_deferred(owner, now)
            dispatch.reindex(owner)

    def stats(self) -> tuple[QueueStats, ...]:
        """A snapshot of every queue, by vhost and name."""
        return tuple(
            queue.stats()
            for _, vhost in sorted(self.vhosts.items())
            for _, queue in sorted(vhost.queues.items())
        )

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def late_settles(self) -> int:
        """Settlements ignored since their delivery had timed out before (parity X-02)."""
        return self._dispatch.late_settles

    def check_conservation(self) -> None:
        """Raise AssertionError if a queue has lost or doubled a message."""
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.check_conservation()

    # ---------------------------------------------------------------- connections, channels

    def open_connection(self, vhost: str) -> int:
        """A new connection; its vhost comes into being with the first."""
        if vhost not in self.vhosts:
            self.vhosts[vhost] = VHost(vhost)
        id = self._next_id()
        self._connections[id] = Connection(id, self.vhosts[vhost])
        return id

    def open_channel(self, connection: int, *, confirm: bool = False) -> int:
        """A new channel of `connection`."""
        owner = self._connections[connection]
        channel = ChannelState(self._next_id(), connection, owner.vhost.name)
        channel.confirms = confirm
        owner.channels[channel.id] = channel
        self._channels[channel.id] = channel
        return channel.id

    def confirm_select(self, channel: int) -> None:
        """Confirm publishes from now on; harmless when repeated."""
        self._channels[channel].confirms = True

    def close_channel(self, channel: int, now: float) -> None:
        """End its consumers and requeue what it had in flight; harmless when closed."""
        state = self._channels.pop(channel, None)
        if state is None:
            return
        del self._connections[state.connection].channels[channel]
        self._close(state, now)

    def close_connection(self, connection: int, now: float) -> None:
        """Close its channels and delete its exclusive queues; harmless when closed."""
        owner = self._connections.pop(connection, None)
        if owner is None:
            return
        for state in owner.channels.values():
            del self._channels[state.id]
            self._close(state, now)
        for queue in [q for q in owner.vhost.queues.values() if q.owner == connection]:
            self._delete_queue(queue)

    def _close(self, state: ChannelState, now: float) -> None:
        # Consumers first, so that nothing is given back to the channel that gives it back.
        left = [consumer.queue for consumer in state.consumers.values()]
        for consumer in list(state.consumers.values()):
            self._dispatch.remove_consumer(consumer)
        self._dispatch.give_back(state.ledger.settle_all(), now)
        self._dispatch.forget(state)
        for queue in left:
            self._consumer_left(queue, now)

    # ---------------------------------------------------------------- publishing

    def publish(self, channel: int, message: Outgoing, now: float) -> None:
        """Route, store in every queue, deliver; then return it or confirm it.

        Raises:
            ReplyError: 404 or 403 for the exchange, 406 for bad CC, BCC or expiration.
        """
        state = self._channels[channel]
        properties = message.properties
        headers = properties.headers
        if properties.expiration is not None:
            _check_expiration(properties.expiration)
        vhost = self.vhosts[state.vhost]
        queues: tuple[Queue, ...] | None
        if headers and ("CC" in headers or "BCC" in headers):
            message, queues = _route_copies(vhost, message)
        else:
            queues = vhost.routes.get(message[:2])
            if queues is None:
                queues = vhost.route_publish(message.exchange, message.routing_key)
            if queues is None:
                queues = vhost.route(message.exchange, (message.routing_key,), headers or NOTHING)
        acked = True
        for queue in queues:
            if not self._dispatch.put(queue, message, now):
                acked = False
        if not queues and message.mandatory:
            exchange, routing_key, body, _, _ = message
            returned = Returned(312, "NO_ROUTE", exchange, routing_key, body, properties)
            self._effects.append(Return(channel, returned))
        if state.confirms:
            self._confirm(state, acked)

    def _confirm(self, state: ChannelState, acked: bool) -> None:
        state.publish_seq = seq = state.publish_seq + 1
        effects = self._effects
        if effects:
            last = effects[-1]
            if type(last) is Confirm and last.channel == state.id and last.acked is acked:
                effects[-1] = Confirm(state.id, last.first, seq, acked)
                return
        effects.append(Confirm(state.id, seq, seq, acked))

    # ---------------------------------------------------------------- exchanges

    def declare_exchange(
        self,
        channel: int,
        name: str,
        type: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
    ) -> None:
        """Raises:
        ReplyError: 403 for a reserved name, 406 for an unknown type or a difference.
        """
        wanted = Exchange(
            name,
            type,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        self._vhost(channel).declare_exchange(wanted)

    def check_exchange(self, channel: int, name: str) -> None:
        """Raises:
        ReplyError: 404 when there is none.
        """
        self._vhost(channel).exchange(name)

    def delete_exchange(self, channel: int, name: str, *, if_unused: bool = False) -> None:
        """Raises:
        ReplyError: 403 for a predeclared one, 406 when in use and `if_unused`.
        """
        self._vhost(channel).delete_exchange(name, if_unused=if_unused)

    # ---------------------------------------------------------------- queues

    def declare_queue(
        self,
        channel: int,
        name: str,
        now: float,
        *,
        durable: bool = True,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
    ) -> Declared:
        """Add the queue, named by the engine if `name` is empty, or check that it is the same.

        Raises:
            ReplyError: 403 for a reserved name, 405 for another's exclusive queue, 406 for bad
                arguments or a difference, 540 for a stream.
        """
        state = self._channels[channel]
        vhost = self.vhosts[state.vhost]
        arguments = arguments or NOTHING
        if name in vhost.queues:
            queue = vhost.queue(name, state.connection)
            vhost.check_same_queue(
                queue,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
            self._used(queue, now)
            return _declared(queue)
        queue = Queue(
            name or f"amq.gen-{self._next_id()}",
            vhost.name,
            durable=durable,
            owner=state.connection if exclusive else None,
            auto_delete=auto_delete,
            arguments=arguments,
            settings=queue_settings(arguments, name, vhost.name),
            now=now,
        )
        vhost.add_queue(queue, server_named=not name)
        self._used(queue, now)
        return _declared(queue)

    def check_queue(self, channel: int, name: str, now: float) -> Declared:
        """Raises:
        ReplyError: 404 when there is none, 405 for another connection's exclusive queue.
        """
        queue = self._queue(channel, name)
        self._used(queue, now)
        return _declared(queue)

    def delete_queue(
        self, channel: int, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> int:
        """Delete; returns the ready messages that went with it, 0 when there was no queue.

        Raises:
            ReplyError: 405 for another's exclusive queue, 406 for an unmet condition.
        """
        state = self._channels[channel]
        vhost = self.vhosts[state.vhost]
        if name not in vhost.queues:
            return 0
        queue = vhost.queue(name, state.connection)
        where = f"queue '{name}' in vhost '{vhost.name}'"
        if if_unused and queue.consumers:
            raise precondition_failed(f"{where} in use")
        if if_empty and queue.ready:
            raise precondition_failed(f"{where} not empty")
        count = len(queue.ready)
        self._delete_queue(queue)
        return count

    def purge_queue(self, channel: int, name: str) -> int:
        """Drop what is ready; returns the number.

        Raises:
            ReplyError: 404 when there is none, 405 for another's exclusive queue.
        """
        return self._dispatch.drop_all(self._queue(channel, name).clear())

    # ---------------------------------------------------------------- bindings

    def bind_queue(
        self, channel: int, queue: str, exchange: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 404 for a missing end, 403 for the default exchange, 405, 406.
        """
        self._queue(channel, queue)
        target = Destination("queue", queue)
        self._vhost(channel).bind(target, exchange, binding_key, arguments)

    def unbind_queue(
        self, channel: int, queue: str, exchange: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 403 for the default exchange, 405 for another's exclusive queue.
        """
        vhost = self._vhost(channel)
        if queue in vhost.queues:
            self._queue(channel, queue)
        vhost.unbind(Destination("queue", queue), exchange, binding_key, arguments)

    def bind_exchange(
        self, channel: int, destination: str, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 404 for a missing end, 403 for the default exchange, 406.
        """
        target = Destination("exchange", destination)
        self._vhost(channel).bind(target, source, binding_key, arguments)

    def unbind_exchange(
        self, channel: int, destination: str, source: str, binding_key: str, arguments: Arguments
    ) -> None:
        """Raises:
        ReplyError: 403 for the default exchange.
        """
        target = Destination("exchange", destination)
        self._vhost(channel).unbind(target, source, binding_key, arguments)

    # ---------------------------------------------------------------- consuming

    def qos(self, channel: int, prefetch: int) -> None:
        """Unsettled deliveries allowed to consumers started after this (S-06-11); 0 is no limit."""
        self._channels[channel].prefetch = prefetch

    def consume(
        self,
        channel: int,
        queue: str,
        now: float,
        *,
        consumer_tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Arguments | None = None,
    ) -> str:
        """Start a consumer; returns its tag.

        Raises:
            ReplyError: 404 for the queue, 403 when it is in exclusive use, 405, 406 for a bad
                x-priority, 530 (connection) for a tag in use.
        """
        state = self._channels[channel]
        target = self._queue(channel, queue)
        if consumer_tag in state.consumers:
            raise not_allowed(f"attempt to reuse consumer tag '{consumer_tag}'")
        priority = (arguments or NOTHING).get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise precondition_failed(f"Invalid arguments for consumer priority: {priority!r}")
        taken = any(consumer.exclusive for consumer in target.consumers)
        if taken or (exclusive and (target.consumers or target.settings.single_active)):
            raise access_refused(f"queue '{queue}' in vhost '{state.vhost}' in exclusive use")
        tag = consumer_tag or f"amq.ctag-{self._next_id()}"
        consumer = Consumer(
            tag, state, target, no_ack=no_ack, exclusive=exclusive, priority=priority
        )
        self._dispatch.add_consumer(consumer, now)
        return tag

    def cancel(self, channel: int, consumer_tag: str, now: float) -> None:
        """Stop a consumer, its deliveries staying in flight; harmless when unknown (S-06-02)."""
        consumer = self._channels[channel].consumers.get(consumer_tag)
        if consumer is not None:
            self._dispatch.remove_consumer(consumer)
            self._consumer_left(consumer.queue, now)

    def get(
        self, channel: int, queue: str, now: float, *, no_ack: bool = False
    ) -> tuple[Delivery, int] | None:
        """Take the head and the number still ready after it; None when nothing is ready.

        Raises:
            ReplyError: 404 for the queue, 405 for another's exclusive queue.
        """
        target = self._queue(channel, queue)
        delivery = self._dispatch.take(target, self._channels[channel], no_ack, now)
        return None if delivery is None else (delivery, len(target.ready))

    def ack(self, channel: int, delivery_tag: int, now: float, *, multiple: bool = False) -> None:
        """Settle a delivery, or all up to it.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before.
        """
        state = self._channels[channel]
        if not multiple:
            entry = state.ledger.settle(delivery_tag)
            if entry is not None:
                self._dispatch.ack(entry, now)
                return
        for entry in self._settle(state, delivery_tag, multiple):
            self._dispatch.ack(entry, now)

    def nack(
        self,
        channel: int,
        delivery_tag: int,
        now: float,
        *,
        requeue: bool = True,
        multiple: bool = False,
        delay: float | None = None,
    ) -> None:
        """Give deliveries away, back to where they were, or to the tail after `delay` seconds.

        Raises:
            ReplyError: 406 for a tag never issued, or settled before.
        """
        entries = self._settle(self._channels[channel], delivery_tag, multiple)
        if not requeue:
            for entry in entries:
                self._dispatch.discard(entry, now)
        elif delay is not None:
            for entry in entries:
                self._dispatch.defer(entry, delay, now)
        else:
            self._dispatch.give_back(entries, now)

    def recover(self, channel: int, now: float) -> None:
        """Requeue everything the channel has in flight (basic.recover, S-06-14)."""
        state = self._channels[channel]
        self._dispatch.give_back(state.ledger.settle_all(), now)

    def touch(self, channel: int, delivery_tag: int, now: float) -> float:
        """Extend a delivery's time in flight; returns the seconds it has left (N-050).

        Raises:
            StaleDeliveryError: it is not in flight on this channel.
        """
        return self._dispatch.touch(self._channels[channel], delivery_tag, now)

    # ---------------------------------------------------------------- inside

    def _settle(self, state: ChannelState, tag: int, multiple: bool) -> list[Any]:
        ledger = state.ledger
        if multiple and tag == 0:
            return ledger.settle_all()  # AMQP 0-9-1 §1.8.3.13: all outstanding
        if tag not in ledger:
            if not ledger.forgives(tag):
                raise unknown_delivery_tag(tag)
            self._dispatch.late_settles += 1
            return ledger.settle_through(tag) if multiple else []
        entry = ledger.settle(tag) if not multiple else None
        return [entry] if entry is not None else ledger.settle_through(tag)

    def _consumer_left(self, queue: Queue, now: float) -> None:
        if queue.deleted or queue.consumers:
            self._dispatch.wake_single_active(queue, now)
        elif queue.auto_delete:
            self._delete_queue(queue)  # S-05-05: with its last consumer
        else:
            self._used(queue, now)

    def _delete_queue(self, queue: Queue) -> None:
        self.vhosts[queue.vhost].remove_queue(queue)
        self._dispatch.retire_queue(queue)

    def _used(self, queue: Queue, now: float) -> None:
        queue.last_used = now
        if queue.settings.expires is not None:
            self._dispatch.reindex(queue)

    def _vhost(self, channel: int) -> VHost:
        return self.vhosts[self._channels[channel].vhost]

    def _queue(self, channel: int, name: str) -> Queue:
        state = self._channels[channel]
        return self.vhosts[state.vhost].queue(name, state.connection)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id


def _declared(queue: Queue) -> Declared:
    return Declared(queue.name, len(queue.ready), len(queue.consumers))


def _check_expiration(expiration: str) -> None:
    if not (expiration.isascii() and expiration.isdigit()):
        raise precondition_failed(f"invalid expiration '{expiration}': not a whole number of ms")


def _route_copies(vhost: VHost, message: Outgoing) -> tuple[Outgoing, tuple[Queue, ...]]:
    """Route by CC and BCC too (RabbitMQ's sender-selected distribution); BCC is taken off."""
    vhost.check_publish(message.exchange)
    headers = dict(message.properties.headers or {})
    keys = [message.routing_key]
    for name in ("CC", "BCC"):
        more = headers.get(name, [])
        if not isinstance(more, list) or not all(isinstance(key, str) for key in more):
            raise precondition_failed(f"header '{name}' is not an array of strings")
        keys.extend(more)
    queues = vhost.route(message.exchange, keys, headers)
    if headers.pop("BCC", None) is not None:
        message = message._replace(properties=message.properties._replace(headers=headers))
    return message, queues
