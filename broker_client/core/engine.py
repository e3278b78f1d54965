"""Commands in, ordered effects out: the one door to the core.

Connections and channels are numbered by the engine; a channel's number is unique in the engine,
so it alone names the channel. Whoever runs the engine calls `take_effects` after its commands and
carries them out in order, and calls `tick` when `next_deadline` has come. A command that AMQP
refuses raises `ReplyError` and changes nothing; closing the channel is up to the caller.
"""

from __future__ import annotations

from typing import Any

from broker_client.core.arguments import Arguments
from broker_client.core.effects import Confirm, Effect, Return
from broker_client.core.observer import Observer
from broker_client.core.queue import ChannelState, Consumer, Queue, QueueStats
from broker_client.core.recovery import Recovery
from broker_client.core.replies import (
    access_refused,
    not_allowed,
    precondition_failed,
    unknown_delivery_tag,
)
from broker_client.core.settings import EngineSettings
from broker_client.core.topology import NOTHING
from broker_client.core.vhost import VHost
from broker_client.delivery_event import REASON_RECOVERED, REASON_REJECTED
from broker_client.message import Delivery, Outgoing, Returned


class Connection:
    """One connection and its channels."""

    __slots__ = ("channels", "id", "vhost")

    def __init__(self, id: int, vhost: VHost) -> None:
        self.id, self.vhost = id, vhost
        self.channels: dict[int, ChannelState] = {}


class Engine(Recovery):
    """Decides; does nothing itself."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        super().__init__(settings or EngineSettings())
        self._effects = self._dispatch.effects
        self._connections: dict[int, Connection] = {}

    def __repr__(self) -> str:
        queues = sum(len(vhost.queues) for vhost in self.vhosts.values())
        return (
            f"<Engine connections={len(self._connections)} channels={len(self._channels)} "
            f"queues={queues}>"
        )

    @property
    def observer(self) -> Observer | None:
        """Who is told what happens to messages; set it before the first message."""
        return self._dispatch.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._dispatch.observer = observer

    # ---------------------------------------------------------------- running

    def take_effects(self) -> list[Effect]:
        """What must be done now, in this order; the caller owns the list."""
        taken = self._effects[:]
        self._effects.clear()
        self._dispatch.keeper.page_out()
        return taken

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def next_deadline(self) -> float | None:
        """When to call `tick`, or None."""
        return self._dispatch.schedule.next_deadline()

    def tick(self, now: float) -> None:
        """Do what is due: message time-outs, deferred messages, TTLs, unused queues."""
        dispatch = self._dispatch
        for owner in dispatch.schedule.pop_due(now):
            if isinstance(owner, ChannelState):
                closing = dispatch.must_close(owner, now)
                if closing is not None:
                    self._effects.append(closing)
                    self.close_channel(owner.id, now)
                else:
                    dispatch.time_out(owner, now)
                    dispatch.schedule.look_again(owner)
                continue
            expires = owner.settings.expires
            if owner.deleted:
                continue
            if expires is not None and not owner.consumers and owner.last_used + expires <= now:
                self._delete_queue(owner)
                continue
            dispatch.release_deferred(owner, now)
            dispatch.schedule.look_again(owner)

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
            self._add_vhost(vhost)
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
        self._dispatch.schedule.forget(state)
        if self.observer is not None:
            self.observer.channel_closed(state.id)
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
        observer = self._dispatch.observer
        if observer is not None:
            observer.published(state, message, now)
            if not queues:
                observer.unroutable(state, message, now)
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
            self._dispatch.give_back(entries, now, REASON_REJECTED)

    def recover(self, channel: int, now: float) -> None:
        """Requeue everything the channel has in flight (basic.recover, S-06-14)."""
        state = self._channels[channel]
        self._dispatch.give_back(state.ledger.settle_all(), now, REASON_RECOVERED)

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
            self._dispatch.pump(queue, now)  # another may have become active
        elif queue.auto_delete:
            self._delete_queue(queue)  # S-05-05: with its last consumer
        else:
            self._used(queue, now)


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
