"""What becomes of entries: put, delivered, settled, given back, expired, dead-lettered.

Every public method leaves no queue with both a ready message and a consumer able to take it,
and no dead letter unrouted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from broker_client.core import deadletter
from broker_client.core.arguments import REJECT_PUBLISH_DLX
from broker_client.core.effects import (
    CancelConsumer,
    CloseChannel,
    Deliver,
    Effect,
    MessageTimedOut,
)
from broker_client.core.keeper import Keeper
from broker_client.core.observer import Observer
from broker_client.core.queue import NEVER, ON_DISK, ChannelState, Consumer, Entry, Queue
from broker_client.core.schedule import Schedule
from broker_client.core.settings import EngineSettings
from broker_client.core.vhost import NO_HEADERS, VHost
from broker_client.delivery_event import (
    REASON_CONNECTION_LOST,
    REASON_CYCLE,
    REASON_PURGED,
    REASON_REJECTED,
    REASON_UNROUTABLE,
)
from broker_client.errors import StaleDeliveryError
from broker_client.message import Delivery, Outgoing


class Dispatcher:
    """Moves entries between ready, in flight, deferred and gone."""

    def __init__(self, settings: EngineSettings, vhosts: dict[str, VHost]) -> None:
        self.settings = settings
        self.effects: list[Effect] = []
        self.late_settles = 0
        """Settlements that came after their delivery had timed out."""
        self._vhosts = vhosts
        self.schedule = Schedule()
        self.observer: Observer | None = None
        """Who is told what happens to messages, if anybody."""
        self._dead: deque[tuple[Entry, str]] = deque()
        self._routing_dead = False
        self.keeper = Keeper(settings, self.effects)

    # ---------------------------------------------------------------- in

    def put(self, queue: Queue, message: Outgoing, now: float) -> bool:
        """Give `queue` a copy of `message`; False when its limit refuses it."""
        properties = message.properties
        if not queue.plain or properties.expiration is not None:
            return self._put_checked(queue, message, now)
        queue.puts += 1
        queue.position += 1
        entry = Entry(queue, message, queue.position)
        if self.observer is not None:
            self.observer.enqueued(entry, now)
        if self.settings.keep_records:
            self.keeper.appended(entry)
        if queue.able and not queue.ready:
            self._deliver(entry, queue.next_consumer(), now)
        else:
            queue.ready.push(entry)
        return True

    def _put_checked(self, queue: Queue, message: Outgoing, now: float) -> bool:
        settings = queue.settings
        if settings.rejects_publish and queue.limited and queue.would_overflow(message):
            if settings.overflow == REJECT_PUBLISH_DLX:
                queue.puts += 1
                refused = Entry(queue, message, 0)
                if self.observer is not None:
                    self.observer.enqueued(refused, now)
                self._die(refused, deadletter.MAXLEN, now)
                self.route_dead(now)
            return False
        queue.puts += 1
        entry = Entry(queue, message, queue.next_position())
        entry.size_bytes = len(message.body)
        if self.observer is not None:
            self.observer.enqueued(entry, now)
        entry.expires_at = _expires_at(queue, message, now)
        queue.expiring = queue.expiring or entry.expires_at is not None
        if settings.max_priority:
            entry.priority = min(max(message.properties.priority or 0, 0), settings.max_priority)
        if self.settings.keep_records:
            self.keeper.appended(entry)
        if queue.able and not queue.ready:
            # No look at the TTL: one of 0 means now or never (S-09-01).
            self._deliver(entry, queue.next_consumer(), now)
            return True
        queue.push(entry)
        self._trim(queue, now)
        self.pump(queue, now)
        return True

    def _trim(self, queue: Queue, now: float) -> None:
        while queue.limited and (over := queue.pop_overflow()) is not None:
            self._die(over, deadletter.MAXLEN, now)

    # ---------------------------------------------------------------- out

    def pump(self, queue: Queue, now: float) -> None:
        """Deliver and expire what can be, then note when the queue is due next."""
        if queue.expiring:
            self._expire(queue, now)
        while queue.able and queue.ready:
            self._deliver(queue.pop(), queue.next_consumer(), now)
            if queue.expiring:
                self._expire(queue, now)
        if self._dead:
            self.route_dead(now)
        if queue.expiring:
            self.schedule.look_again(queue)

    def take(
        self, queue: Queue, channel: ChannelState, no_ack: bool, now: float
    ) -> Delivery | None:
        """Hand the head to `channel` without a consumer (basic.get), or None."""
        queue.last_used = now
        self._watch_timeout(channel, queue)
        self.pump(queue, now)
        if not queue.ready:
            return None
        delivery = self._hand_out(queue.pop(), channel, None, no_ack, now)
        if queue.expiring:
            self.pump(queue, now)
        return delivery

    def _deliver(self, entry: Entry, consumer: Consumer, now: float) -> None:
        channel = consumer.channel
        delivery = self._hand_out(entry, channel, consumer, consumer.no_ack, now)
        self.effects.append(Deliver(channel.id, delivery))

    def _hand_out(
        self,
        entry: Entry,
        channel: ChannelState,
        consumer: Consumer | None,
        no_ack: bool,
        now: float,
    ) -> Delivery:
        queue = entry.queue
        entry.attempts += 1
        message = entry.message
        if message is ON_DISK:
            message = self.keeper.fetch(entry)
        if self.observer is not None:
            self.observer.delivered(entry, consumer.tag if consumer else "", no_ack, now)
        if no_ack:
            tag = channel.ledger.issue()
            queue.acked += 1
            self.keeper.settled(entry)
        else:
            entry.consumer = consumer
            entry.delivered_at = now
            timeout = self._timeout_of(queue)
            deadline = now + timeout if timeout else None
            tag = channel.ledger.start(entry, deadline)
            if deadline is not None and deadline < channel.due_at:
                self.schedule.note(channel, deadline)
            queue.in_flight += 1
            if entry.record_id:
                self.keeper.delivered(entry)
        return Delivery(
            consumer.tag if consumer is not None else "",
            tag,
            entry.attempts > 1,
            message.exchange,
            message.routing_key,
            message.body,
            message.properties,
            entry.attempts,
        )

    def _timeout_of(self, queue: Queue) -> float:
        settings = queue.settings
        if settings.consumer_timeout is not None:
            return settings.consumer_timeout
        if settings.message_timeout is not None:
            return settings.message_timeout
        return self.settings.message_timeout

    # ---------------------------------------------------------------- back

    def ack(self, entry: Entry, now: float) -> None:
        """The delivery is done."""
        if self.observer is not None:
            self.observer.acked(entry, now)
        entry.queue.acked += 1
        self.keeper.settled(entry)
        self._release(entry, now)

    def discard(self, entry: Entry, now: float) -> None:
        """Rejected without requeue: dead-lettered or dropped."""
        if self.observer is not None:
            self.observer.nacked(entry, now)
        self._die(entry, deadletter.REJECTED, now)
        self._release(entry, now)

    def defer(self, entry: Entry, delay: float, now: float) -> None:
        """Back to ready after `delay` seconds, at the tail (X-05)."""
        queue = entry.queue
        if self.observer is not None:
            self.observer.nacked(entry, now)
            self.observer.requeued(entry, REASON_REJECTED, now)
        if not queue.deleted:
            queue.requeued += 1
            delay = min(max(delay, 0.0), self.settings.max_requeue_timeout)
            queue.deferred.set(entry, now + delay)
            self.keeper.moved(entry, now + delay)
            self.schedule.note(queue, now + delay)
        else:
            self.keeper.settled(entry)
        self._release(entry, now)

    def give_back(
        self, entries: Iterable[Entry], now: float, reason: str = REASON_CONNECTION_LOST
    ) -> None:
        """Requeue deliveries, each to where it was, to be redelivered (S-06-08)."""
        queues: dict[Queue, None] = {}
        for entry in reversed(list(entries)):  # the last first, so that each becomes the head
            queue = entry.queue
            queue.requeued += 1
            if self.observer is not None:
                if reason == REASON_REJECTED:
                    self.observer.nacked(entry, now)
                self.observer.requeued(entry, reason, now)
            self._free(entry)
            if not queue.deleted:
                queues[queue] = None
                if not self._over_delivery_limit(entry, now):
                    queue.restore(entry)
            else:
                self.keeper.settled(entry)
        for queue in queues:
            self._trim(queue, now)
            self.pump(queue, now)

    def _over_delivery_limit(self, entry: Entry, now: float) -> bool:
        limit = entry.queue.settings.delivery_limit
        if limit is None or entry.attempts <= limit:
            return False
        self._die(entry, deadletter.DELIVERY_LIMIT, now)
        return True

    def _release(self, entry: Entry, now: float) -> None:
        self._free(entry)
        if entry.queue.ready or self._dead:
            self.pump(entry.queue, now)

    def _free(self, entry: Entry) -> None:
        """Count the entry out of flight and its consumer's prefetch."""
        entry.queue.in_flight -= 1
        consumer = entry.consumer
        if consumer is not None:
            consumer.in_flight -= 1
            if not consumer.able and consumer.active:
                consumer.able = True
                entry.queue.able.append(consumer)

    # ---------------------------------------------------------------- death

    def drop_all(self, entries: Iterable[Entry]) -> int:
        """Count entries as purged; they do not become dead letters (S-08-01)."""
        count = 0
        for entry in entries:
            count += 1
            entry.queue.purged += 1
            if self.observer is not None:
                self.keeper.fetch(entry)
                self.observer.dropped(entry, REASON_PURGED)
            self.keeper.settled(entry)
        return count

    def _expire(self, queue: Queue, now: float) -> None:
        while (entry := queue.pop_expired(now)) is not None:
            self._die(entry, deadletter.EXPIRED, now)

    def _die(self, entry: Entry, reason: str, now: float) -> None:
        queue = entry.queue
        if self.observer is not None:
            self.keeper.fetch(entry)
            self.observer.died(entry, reason, now)
        if queue.settings.dead_letter_exchange is None or queue.deleted:
            queue.dropped += 1
        else:
            queue.dead_lettered += 1
            self._dead.append((entry, reason))
            return  # settled behind its dead letter, so that the store is never without both
        self.keeper.settled(entry)

    def route_dead(self, now: float) -> None:
        """Publish the dead letters there are, and those that these cause, without recursion."""
        if self._routing_dead:
            return
        self._routing_dead = True
        try:
            while self._dead:
                entry, reason = self._dead.popleft()
                self._route_one_dead(entry, reason, now)
        finally:
            self._routing_dead = False

    def _route_one_dead(self, entry: Entry, reason: str, now: float) -> None:
        queue = entry.queue
        exchange = queue.settings.dead_letter_exchange
        assert exchange is not None, "only entries with a dead-letter exchange are put in _dead"
        message = deadletter.dead_letter(
            self.keeper.fetch(entry),
            queue=queue.name,
            reason=reason,
            exchange=exchange,
            routing_key=queue.settings.dead_letter_routing_key,
            now=now,
        )
        headers = message.properties.headers or NO_HEADERS
        keys = [message.routing_key, *(headers.get("CC") or ())]
        observer = self.observer
        if observer is not None:
            observer.origin = entry
        targets = self._vhosts[queue.vhost].route(exchange, keys, headers)
        for target in targets:
            if not deadletter.is_cycle(message, target.name, reason):
                self.put(target, message, now)
            elif observer is not None:
                observer.lost_dead_letter(entry, message, REASON_CYCLE, now)
        if observer is not None:
            observer.origin = None
            if not targets:
                observer.lost_dead_letter(entry, message, REASON_UNROUTABLE, now)
        self.keeper.settled(entry)

    # ---------------------------------------------------------------- consumers

    def add_consumer(self, consumer: Consumer, now: float) -> None:
        """Let a consumer take part."""
        self._watch_timeout(consumer.channel, consumer.queue)
        consumer.channel.consumers[consumer.tag] = consumer
        consumer.queue.join(consumer)
        self.pump(consumer.queue, now)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Take it out, its deliveries staying in flight."""
        del consumer.channel.consumers[consumer.tag]
        consumer.queue.leave(consumer)

    def retire_queue(self, queue: Queue) -> None:
        """Empty a queue that is being deleted, and tell its consumers."""
        queue.deleted = True
        self.schedule.forget(queue)
        for consumer in list(queue.consumers):
            self.remove_consumer(consumer)
            self.effects.append(CancelConsumer(consumer.channel.id, consumer.tag))
        self.drop_all(queue.clear())
        self.drop_all(queue.deferred.clear())

    # ---------------------------------------------------------------- time

    def touch(self, channel: ChannelState, tag: int, now: float) -> float:
        """Extend a delivery's time; returns the seconds it has left (N-050).

        Raises:
            StaleDeliveryError: it is not in flight.
        """
        entry = channel.ledger.get(tag)
        if entry is None:
            raise StaleDeliveryError(tag, "")
        timeout = self._timeout_of(entry.queue)
        if not timeout:
            return NEVER
        at = min(now + timeout, entry.delivered_at + self.settings.max_message_timeout)
        channel.ledger.move(tag, at)
        return max(0.0, at - now)

    def release_deferred(self, queue: Queue, now: float) -> None:
        """Put deferred messages whose time has come at the tail."""
        for entry in queue.deferred.pop_due(now):
            if not self._over_delivery_limit(entry, now):
                self._push_behind(queue, entry)
        self._trim(queue, now)
        self.pump(queue, now)

    def _push_behind(self, queue: Queue, entry: Entry) -> None:
        entry.position = queue.next_position()
        queue.push(entry)
        self.keeper.moved(entry)

    def must_close(self, channel: ChannelState, now: float) -> CloseChannel | None:
        """Why the channel must close, where x-consumer-timeout is over for one of its deliveries.

        RabbitMQ's way with a slow consumer; without that argument it is `time_out`.
        """
        if channel.closes_on_timeout:
            for entry in channel.ledger.overdue(now):
                if entry.queue.settings.consumer_timeout is not None and not entry.queue.deleted:
                    return _consumer_timed_out(channel, entry.queue)
        return None

    def time_out(self, channel: ChannelState, now: float) -> None:
        """Give back, to the tail, what was in flight too long, and tell its consumer (X-02)."""
        queues: dict[Queue, None] = {}
        for tag, entry in channel.ledger.expire(now):
            queue = entry.queue
            queue.timed_out += 1
            if self.observer is not None:
                self.observer.timed_out(entry, now)
            self._free(entry)
            if queue.deleted:
                self.keeper.settled(entry)
                continue
            queues[queue] = None
            if not self._over_delivery_limit(entry, now):
                self._push_behind(queue, entry)
            if entry.consumer is not None:
                self.effects.append(MessageTimedOut(channel.id, entry.consumer.tag, tag))
        for queue in queues:
            self._trim(queue, now)
            self.pump(queue, now)

    def _watch_timeout(self, channel: ChannelState, queue: Queue) -> None:
        if queue.settings.consumer_timeout is not None:
            channel.closes_on_timeout = True


def _consumer_timed_out(channel: ChannelState, queue: Queue) -> CloseChannel:
    timeout_ms = int((queue.settings.consumer_timeout or 0) * 1000)
    return CloseChannel(
        channel.id,
        406,
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel.id} timed out. "
        f"Timeout value used: {timeout_ms} ms. This timeout value can be configured, see "
        "consumers doc guide to learn more",
    )


def _expires_at(queue: Queue, message: Outgoing, now: float) -> float | None:
    """The earlier of the queue's TTL and the message's own (S-09-01)."""
    ttl = queue.settings.message_ttl
    expiration = message.properties.expiration
    if expiration is not None:
        own = int(expiration) / 1000
        ttl = own if ttl is None else min(ttl, own)
    return None if ttl is None else now + ttl
