"""The way of an entry into its queue and out to a consumer.

Every public method leaves no queue with both a ready message and a consumer able to take it,
unless the queue is `unfinished`, and no dead letter unrouted.
"""

from __future__ import annotations

from broker_client.amqp import x_death
from broker_client.core.arguments import REJECT_PUBLISH_DLX
from broker_client.core.deaths import Deaths
from broker_client.core.effects import Deliver
from broker_client.core.queue import ON_DISK, ChannelState, Consumer, Entry, Queue
from broker_client.core.schedule import Schedule
from broker_client.core.settings import EngineSettings
from broker_client.core.vhost import NO_HEADERS, VHost
from broker_client.message import Delivery, Outgoing, Properties

_HIDDEN = frozenset(("BCC",))
_HIDDEN_AND_COUNTED = frozenset(("BCC", "x-delivery-count"))
_new = tuple.__new__  # a named tuple's own constructor is a Python call
_STEP = 1_000
"""Messages delivered by one command, or one `proceed`, from a queue at most."""


class Outward(Deaths):
    """The part of the dispatcher that takes in and hands out."""

    def __init__(self, settings: EngineSettings, vhosts: dict[str, VHost]) -> None:
        super().__init__(settings, vhosts)
        self.schedule = Schedule()
        self._unfinished: dict[Queue, None] = {}

    # ---------------------------------------------------------------- in

    def put(self, queue: Queue, message: Outgoing, now: float) -> bool:
        """Give `queue` a copy of `message`; False when its limit refuses it."""
        properties = message.properties
        if not queue.plain or properties.expiration is not None:
            return self._put_checked(queue, message, now)
        queue.puts += 1
        queue.put_bytes += (size_bytes := len(message.body))
        queue.position += 1
        entry = Entry(queue, message, queue.position)
        entry.enqueued_at = now
        if self.observer is not None:
            self.observer.enqueued(entry, now)
        if self.settings.keep_records:
            self.keeper.appended(entry)
        else:
            self.keeper.resident_bytes += size_bytes
        if queue.able and not queue.ready:
            self._deliver(entry, queue.next_consumer(), now)
        else:
            queue.ready.push(entry)
        return True

    def put_later(self, queue: Queue, message: Outgoing, due: float, now: float) -> None:
        """Give `queue` a copy of `message` that becomes ready at `due` (nsq's DPUB).

        No limit refuses it: lengths count what is ready, and once it is, the oldest give way.
        """
        entry = self._new_entry(queue, message, due, now)
        self._admit(entry, due)
        queue.deferred.set(entry, due)
        self.schedule.note(queue, due)

    def _new_entry(self, queue: Queue, message: Outgoing, ready_at: float, now: float) -> Entry:
        queue.puts += 1
        queue.put_bytes += len(message.body)
        entry = Entry(queue, message, queue.next_position())
        entry.size_bytes = len(message.body)
        if self.observer is not None:
            self.observer.enqueued(entry, now)
        entry.enqueued_at = ready_at
        entry.expires_at = _expires_at(queue, message, ready_at)
        queue.expiring = queue.expiring or entry.expires_at is not None
        if queue.settings.max_priority:
            priority = max(message.properties.priority or 0, 0)
            entry.priority = min(priority, queue.settings.max_priority)
        return entry

    def _admit(self, entry: Entry, due: float | None = None) -> None:
        if self.settings.keep_records:
            self.keeper.appended(entry, due)
        else:
            self.keeper.resident_bytes += entry.size_bytes

    def _put_checked(self, queue: Queue, message: Outgoing, now: float) -> bool:
        settings = queue.settings
        if settings.rejects_publish and queue.limited and queue.would_overflow(message):
            if settings.overflow == REJECT_PUBLISH_DLX:
                refused = self._new_entry(queue, message, now, now)
                self.keeper.resident_bytes += refused.size_bytes  # until it is settled, soon
                self._die(refused, x_death.MAXLEN, now)
                self.route_dead(now)
            return False
        entry = self._new_entry(queue, message, now, now)
        self._admit(entry)
        if queue.able and not queue.ready:
            # No look at the TTL: one of 0 means now or never.
            self._deliver(entry, queue.next_consumer(), now)
            return True
        queue.push(entry)
        self._trim(queue, now)
        self.pump(queue, now)
        return True

    # ---------------------------------------------------------------- out

    def pump(self, queue: Queue, now: float) -> None:
        """Deliver and expire what can be, then note when the queue is due next."""
        if queue.expiring:
            self._expire(queue, now)
        if queue.able and queue.ready and not queue.unfinished:
            self._deliver_ready(queue, now)
        if self._dead:
            self.route_dead(now)
        if queue.expiring:
            self.schedule.look_again(queue)

    def _deliver_ready(self, queue: Queue, now: float) -> None:
        for _ in range(_STEP):
            self._deliver(queue.pop(), queue.next_consumer(), now)
            if queue.expiring:
                self._expire(queue, now)
            if not queue.able or not queue.ready:
                return
        # A consumer without a limit at a queue of millions: others must have their turn.
        queue.unfinished = True
        self._unfinished[queue] = None

    @property
    def is_unfinished(self) -> bool:
        """More could be delivered than one step delivers."""
        return bool(self._unfinished)

    def proceed(self, now: float) -> None:
        """Take the next step at every queue where more could be delivered than one step did."""
        queues, self._unfinished = self._unfinished, {}
        for queue in queues:
            queue.unfinished = False
            self.pump(queue, now)

    def take(
        self, queue: Queue, channel: ChannelState, no_ack: bool, now: float
    ) -> Delivery | None:
        """Hand the head to `channel` without a consumer (basic.get), or None."""
        queue.last_used = now
        self._watch_timeout(channel, queue)
        self.pump(queue, now)
        if not queue.ready or queue.paused:
            return None
        delivery = self._hand_out(queue.pop(), channel, None, no_ack, now)
        if queue.expiring:
            self.pump(queue, now)
        return delivery

    def _deliver(self, entry: Entry, consumer: Consumer, now: float) -> None:
        channel = consumer.channel
        delivery = self._hand_out(entry, channel, consumer, consumer.no_ack, now)
        self.effects.append(_new(Deliver, (channel.id, delivery)))

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
        queue.delivered += 1
        if no_ack:
            tag = channel.ledger.issue()
            queue.acked += 1
            if consumer is not None:
                consumer.acked += 1
            self.keeper.settled(entry)
        else:
            entry.consumer = consumer
            entry.out = True
            entry.delivered_at = now
            timeout = self.timeout_of(queue) if consumer is None else consumer.timeout
            deadline = now + timeout if timeout else None
            tag = channel.ledger.start(entry, deadline)
            if deadline is not None and deadline < channel.due_at:
                self.schedule.note(channel, deadline)
            queue.in_flight += 1
            if entry.record_id:
                self.keeper.delivered(entry)
        properties = message.properties
        if entry.attempts > 1 or properties.headers:
            properties = _as_delivered(entry, properties)
        fields = (
            consumer.tag if consumer is not None else "",
            tag,
            entry.attempts > 1,
            message.exchange,
            message.routing_key,
            message.body,
            properties,
            entry.attempts,
            "",  # no fault
        )
        return _new(Delivery, fields)

    def timeout_of(self, queue: Queue) -> float:
        """Seconds a delivery from `queue` may be in flight, unless its consumer says otherwise."""
        settings = queue.settings
        if settings.consumer_timeout is not None:
            return settings.consumer_timeout
        if settings.message_timeout is not None:
            return settings.message_timeout
        return self.settings.message_timeout

    def _watch_timeout(self, channel: ChannelState, queue: Queue) -> None:
        if queue.settings.consumer_timeout is not None:
            channel.closes_on_timeout = True


def _expires_at(queue: Queue, message: Outgoing, now: float) -> float | None:
    """The earlier of the queue's TTL and the message's own."""
    ttl = queue.settings.message_ttl
    expiration = message.properties.expiration
    if expiration is not None:
        own = int(expiration) / 1000
        ttl = own if ttl is None else min(ttl, own)
    return None if ttl is None else now + ttl


def _as_delivered(entry: Entry, properties: Properties) -> Properties:
    """The properties as a consumer sees them: without BCC, and with the count of returns where
    the queue counts them (absent at the first delivery)."""
    headers = properties.headers or NO_HEADERS
    counts = entry.queue.settings.counts_deliveries
    hidden = _HIDDEN_AND_COUNTED if counts else _HIDDEN
    counted = counts and entry.attempts > 1
    if not counted and hidden.isdisjoint(headers):
        return properties
    shown = {name: value for name, value in headers.items() if name not in hidden}
    if counted:
        shown["x-delivery-count"] = entry.attempts - 1
    return properties._replace(headers=shown)
