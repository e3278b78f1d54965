"""Every transition of an entry, which is one queue's copy of a message.

```
               ┌──────────────────────── Queue ─────────────────────────┐
   put ───────►│  ready ──────────── _hand_out ───────────► in flight ──┼──► acked
               │  ▲ ▲ ▲                                       │ │ │ │   │
               │  │ │ └─ to its place: requeue ───────────────┘ │ │ └───┼──► rejected, or returned
               │  │ └─── to the tail: time_out ─────────────────┘ │     │    too often
               │  └───── to the tail: release_due ── deferred ◄───┘     │
 put_later ───►│ ─────────────────────────────────────►┘   defer        │
               │  ready or deferred ────────────────────────────────────┼──► expired, too many,
               └────────────────────────────────────────────────────────┘    purged
```

* There is one way into flight, `_hand_out`, and one way out, `_end_flight`. Deliveries come here
  with their record taken out of the ledger of their channel.
* There is one way to be gone, `_forget`: nothing is held in memory or in the store any more.
* What dies with a dead-letter exchange is gone behind its dead letter, which may be put into any
  queue, and may make others die: so they wait in `_dead`, and are routed without recursion.
* Every command leaves no queue with both a ready message and a consumer that could take
  it, unless the queue is `unfinished`, and no dead letter unrouted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from broker_client.amqp import x_death
from broker_client.core.arguments import REJECT_PUBLISH_DLX, QueueSettings
from broker_client.core.dead_lettering import dead_letter, extra_keys
from broker_client.core.delivering import shown_properties, time_limit
from broker_client.core.effects import CancelConsumer, Deliver, MessageTimedOut
from broker_client.core.latency import LatencyWindow
from broker_client.core.long_work import STEP
from broker_client.core.queue import ON_DISK, ChannelState, Entry, Queue, QueueConsumer
from broker_client.core.state import State
from broker_client.core.virtual_host import NO_HEADERS, VirtualHost
from broker_client.events.delivery_event import (
    REASON_CYCLE,
    REASON_PURGED,
    REASON_REJECTED,
    REASON_UNROUTABLE,
)
from broker_client.message import Delivery, Outgoing

if TYPE_CHECKING:
    from broker_client.core.snapshots import Purged

_new = tuple.__new__  # a named tuple's own constructor is a Python call
_QUORUM_DELIVERY_LIMIT = 20  # RabbitMQ 4: of a quorum queue that states none
_DELIVERY, _DEATH = 10, 40
"""What a delivery costs, and a dead letter; see `STEP`."""
_DELIVERED_AT_ONCE = STEP // _DELIVERY
"""Messages delivered by one command, or one `proceed`, from a queue at most."""
_DEATHS_AT_ONCE = STEP // _DEATH
"""Messages that expire, or are beyond the length of a queue, at most."""
_STEP_BYTES = 8 * 1024 * 1024
"""No further message of that step after so many bytes: who receives them may ask for a pause."""


class Transitions:
    """Moves entries between ready, in flight, deferred and gone."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._settings = state.settings
        self._effects = state.effects
        self._schedule = state.schedule
        self._journal = state.journal
        self._paging = state.paging
        self._observer = state.observer
        self._keeps_records = state.settings.keep_records
        self._keeps_latency = state.settings.latency_window > 0
        self._dead: deque[tuple[Entry, str]] = deque()
        self._routing_dead = False
        self._unfinished: dict[Queue, None] = {}
        self._purges = 0  # of what is in flight, begun and not done

    # ---------------------------------------------------------------- in

    def put(self, queue: Queue, message: Outgoing, now: float) -> bool:
        """Give `queue` a copy of `message`; False when its limit refuses it."""
        if not queue.plain or message.properties.expiration is not None:
            return self._put_checked(queue, message, now)
        size_bytes = len(message.body)
        queue.enqueued += 1
        queue.enqueued_bytes += size_bytes
        queue.position += 1
        entry = Entry(queue, message, queue.position)
        entry.enqueued_at = now
        if self._observer is not None:
            self._observer.enqueued(entry, now)
        self._paging.resident_bytes += size_bytes
        if self._keeps_records:
            self._keep(entry)
        if queue.available and not queue.ready:
            self._deliver(entry, queue.next_consumer(), now)
        else:
            queue.ready.push(entry)
        return True

    def put_later(self, queue: Queue, message: Outgoing, due: float, now: float) -> None:
        """Give `queue` a copy of `message` that becomes ready at `due` (nsq's DPUB).

        No limit refuses it: lengths count what is ready, and once it is, the oldest give way.
        """
        entry = self._new_entry(queue, message, due, now)
        if self._keeps_records:
            self._keep(entry, due)
        queue.deferred.add(entry, due)
        self._schedule.note(queue, due)

    def _put_checked(self, queue: Queue, message: Outgoing, now: float) -> bool:
        settings = queue.settings
        if settings.rejects_publish and queue.limited and queue.would_overflow(message):
            if settings.overflow == REJECT_PUBLISH_DLX:
                self._die(self._new_entry(queue, message, now, now), x_death.MAXLEN, now)
                self.route_dead_letters(now)
            return False
        entry = self._new_entry(queue, message, now, now)
        if self._keeps_records:
            self._keep(entry)
        if queue.available and not queue.ready:
            # No look at the TTL: one of 0 means now or never.
            self._deliver(entry, queue.next_consumer(), now)
            return True
        queue.push(entry)
        self._trim(queue, now)
        self.pump(queue, now)
        return True

    def _new_entry(self, queue: Queue, message: Outgoing, ready_at: float, now: float) -> Entry:
        queue.enqueued += 1
        queue.enqueued_bytes += len(message.body)
        entry = Entry(queue, message, queue.next_position())
        entry.size_bytes = len(message.body)
        self._paging.resident_bytes += entry.size_bytes
        if self._observer is not None:
            self._observer.enqueued(entry, now)
        entry.enqueued_at = ready_at
        entry.expires_at = _expires_at(queue, message, ready_at)
        queue.expiring = queue.expiring or entry.expires_at is not None
        if queue.settings.max_priority:
            priority = message.properties.priority
            if priority is None:
                priority = queue.settings.default_priority
            entry.priority = min(max(priority, 0), queue.settings.max_priority)
        return entry

    def _keep(self, entry: Entry, due: float | None = None) -> None:
        self._journal.appended(entry, due)
        self._paging.added(entry)

    # ---------------------------------------------------------------- ready to in flight

    def pump(self, queue: Queue, now: float) -> None:
        """Deliver and expire what can be, then note when the queue is due next."""
        if queue.expiring:
            self._expire(queue, now)
        if queue.available and (queue.ready.tail or queue.ready) and not queue.unfinished:
            self._deliver_ready(queue, now)
        if self._dead:
            self.route_dead_letters(now)
        if queue.expiring:
            self._schedule.look_again(queue)

    def _deliver_ready(self, queue: Queue, now: float) -> None:
        size_bytes = 0
        for _ in range(_DELIVERED_AT_ONCE):
            size_bytes += self._deliver(queue.pop(), queue.next_consumer(), now)
            if queue.expiring:
                self._expire(queue, now)
                if queue.unfinished:
                    return
            if not queue.available or not (queue.ready.tail or queue.ready):
                return
            if size_bytes > _STEP_BYTES:
                break
        # A consumer without a limit at a queue of millions: others must have their turn.
        self._unfinish(queue)

    @property
    def is_unfinished(self) -> bool:
        """More could be delivered, or is beyond a length, than one step does."""
        return bool(self._unfinished)

    def proceed(self, now: float) -> None:
        """Take the next step at queues where more could be done than one step did, each in its
        turn."""
        spent = 0
        for queue in list(self._unfinished):
            if spent >= STEP:
                return
            del self._unfinished[queue]
            queue.unfinished = False
            before = cost_so_far(queue)
            self.settle_down((queue,), now)
            spent += cost_so_far(queue) - before

    def _unfinish(self, queue: Queue) -> None:
        queue.unfinished = True
        self._unfinished[queue] = None

    def take(
        self, queue: Queue, channel: ChannelState, no_ack: bool, now: float
    ) -> Delivery | None:
        """Hand the head to `channel` without a consumer (basic.get), or None."""
        queue.last_used = now
        if time_limit(self._settings, queue, channel)[1]:
            channel.closes_on_timeout = True
        if queue.is_in_work:
            self._state.long_work.finish()  # it may be what puts the head back
        self.pump(queue, now)
        while (head := queue.ready.peek()) is not None and _is_expired(head, now):
            self._expire(queue, now)
            self.route_dead_letters(now)
        if not queue.ready or queue.paused:
            return None
        if not no_ack:
            channel.took_from(queue)
        delivery = self._hand_out(queue.pop(), channel, None, no_ack, now)
        if queue.expiring:
            self.pump(queue, now)
        return delivery

    def _deliver(self, entry: Entry, consumer: QueueConsumer, now: float) -> int:
        """Deliver; returns the bytes of the body."""
        channel = consumer.channel
        delivery = self._hand_out(entry, channel, consumer, consumer.no_ack, now)
        self._effects.append(_new(Deliver, (channel.id, delivery)))
        return len(delivery.body)

    def _hand_out(
        self,
        entry: Entry,
        channel: ChannelState,
        consumer: QueueConsumer | None,
        no_ack: bool,
        now: float,
    ) -> Delivery:
        queue = entry.queue
        entry.attempts += 1
        message = entry.message
        if message is ON_DISK:
            message = self._paging.fetch(entry)
        if self._observer is not None:
            self._observer.delivered(entry, consumer.tag if consumer else "", no_ack, now)
        queue.delivered += 1
        if no_ack:
            tag = channel.ledger.issue()
            queue.acked += 1
            if consumer is not None:
                consumer.acked += 1
            self._forget(entry)
        else:
            entry.consumer = consumer
            entry.in_flight = True
            entry.delivered_at = now
            timeout = (
                time_limit(self._settings, queue, channel)[0]
                if consumer is None
                else consumer.timeout
            )
            deadline = now + timeout if timeout else None
            tag = channel.ledger.start(entry, deadline)
            if deadline is not None and deadline < channel.due_at:
                self._schedule.note(channel, deadline)
            queue.in_flight += 1
            if entry.record_id:
                self._journal.delivered(entry)
        properties = message.properties
        if entry.attempts > 1 or properties.headers is not None:
            properties = shown_properties(entry, properties)
        fields = (
            consumer.tag if consumer is not None else "",
            tag,
            entry.attempts > 1 or entry.was_released,
            message.exchange,
            message.routing_key,
            message.body,
            properties,
            entry.attempts,
            message.fault,
        )
        return _new(Delivery, fields)

    # ---------------------------------------------------------------- out of flight

    def ack_each(self, entries: Iterable[Entry], now: float) -> None:
        """The deliveries are done; each queue delivers once all of them are."""
        queues: dict[Queue, None] = {}
        opened: dict[Queue, None] = {}
        for entry in entries:
            self._acked(entry, now)
            self._end_flight(entry, opened)
            queues[entry.queue] = None
        for queue in queues:
            if queue.ready or self._dead:
                self.pump(queue, now)
        if opened:
            self.settle_down(opened, now)

    def ack(self, entry: Entry, now: float) -> None:
        """The delivery is done."""
        self._acked(entry, now)
        self._flight_ended(entry, now)

    def _acked(self, entry: Entry, now: float) -> None:
        if self._observer is not None:
            self._observer.acked(entry, now)
        queue = entry.queue
        queue.acked += 1
        if entry.consumer is not None:
            entry.consumer.acked += 1
        if self._keeps_latency and entry.enqueued_at:
            if queue.latency is None:
                queue.latency = LatencyWindow(self._settings.latency_window)
            queue.latency.add(now - entry.enqueued_at, now)
        self._forget(entry)

    def reject(self, entry: Entry, now: float) -> None:
        """Rejected without requeue: dead-lettered or dropped."""
        if self._observer is not None:
            self._observer.nacked(entry, now)
        if entry.consumer is not None:
            entry.consumer.rejected += 1
        self._die(entry, x_death.REJECTED, now)
        self._flight_ended(entry, now)

    def defer(self, delay: float, entry: Entry, now: float) -> None:
        """Back to ready after `delay` seconds, at the tail."""
        queue = entry.queue
        self._count_requeue(entry, REASON_REJECTED, now)
        if not self._is_gone(entry) and not self._dies_of_returns(entry, now):
            due = now + min(max(delay, 0.0), self._settings.max_requeue_timeout)
            queue.deferred.add(entry, due)
            self._journal.moved(entry, due)
            self._schedule.note(queue, due)
        self._flight_ended(entry, now)

    def give_back(self, entry: Entry, queues: dict[Queue, None], now: float, reason: str) -> None:
        """Put a delivery back to where it was; where that makes others ready or opens a prefetch,
        the queues to `settle_down` are added to `queues`."""
        queue = entry.queue
        self._count_requeue(entry, reason, now)
        self._end_flight(entry, queues)
        if self._is_gone(entry):
            return
        queues[queue] = None
        if not self._dies_of_returns(entry, now):
            queue.restore(entry)

    def _is_gone(self, entry: Entry) -> bool:
        """True, and `entry` is forgotten, if its queue is deleted or purges what is in flight."""
        queue = entry.queue
        if queue.deleted:
            self._forget(entry)
        elif queue.purging is not None:
            self._purge_one(entry, queue.purging)
        else:
            return False
        return True

    def uncount(self, entry: Entry) -> None:
        """Its last delivery is not a failure."""
        entry.attempts -= 1
        entry.was_released = True
        self._journal.delivered(entry)

    def time_out(self, channel: ChannelState, now: float, limit: int | None) -> bool:
        """Give back, to the tail, what was in flight too long, and tell its consumer.

        RabbitMQ 4.3: x-consumer-timeout of a quorum queue cancels the consumer. Its delivery goes
        back to where it was, and does not count as a failure.

        Args:
            channel: whose deliveries.
            now: the time.
            limit: deliveries at most.

        Returns:
            False when there was nothing.
        """
        queues: dict[Queue, None] = {}
        left: dict[Queue, None] = {}
        expired = channel.ledger.expire(now, limit)
        for tag, entry in expired:
            queue = entry.queue
            queue.timed_out += 1
            if self._observer is not None:
                self._observer.timed_out(entry, now)
            self._end_flight(entry, queues)
            if self._is_gone(entry):
                continue
            queues[queue] = None
            consumer = entry.consumer
            if consumer is not None:
                consumer.timed_out += 1
            if consumer is not None and consumer.cancelled_on_timeout:
                self.uncount(entry)
                queue.restore(entry)
                if consumer in queue.consumers:
                    self.remove_consumer(consumer)
                    self._effects.append(CancelConsumer(channel.id, consumer.tag))
                    left[queue] = None
                continue
            if not self._dies_of_returns(entry, now):
                self._push_behind(queue, entry)
            if consumer is not None:
                self._effects.append(MessageTimedOut(channel.id, consumer.tag, tag))
        self.settle_down(queues, now)
        for queue in left:
            self.consumer_left(queue, now)
        return bool(expired)

    def revoke(self, entry: Entry, purged: Purged, queues: dict[Queue, None]) -> None:
        """Purge a delivery, whose record was taken out of its ledger; `queues` as `give_back`."""
        self._end_flight(entry, queues)
        self._purge_one(entry, purged)

    def _purge_one(self, entry: Entry, purged: Purged) -> None:
        purged.in_flight += 1
        entry.queue.purged += 1
        self._forget_purged(entry)

    def _count_requeue(self, entry: Entry, reason: str, now: float) -> None:
        entry.queue.requeued += 1
        if entry.consumer is not None:
            entry.consumer.requeued += 1
        if self._observer is not None:
            if reason == REASON_REJECTED:
                self._observer.nacked(entry, now)
            self._observer.requeued(entry, reason, now)

    def _flight_ended(self, entry: Entry, now: float) -> None:
        queues: dict[Queue, None] = {}
        self._end_flight(entry, queues)
        queue = entry.queue
        if queue.ready.tail or queue.ready or self._dead:
            self.pump(queue, now)
        if queues:
            self.settle_down(queues, now)

    def _end_flight(self, entry: Entry, queues: dict[Queue, None]) -> None:
        """Count `entry` out of flight and out of its consumer's prefetch.

        Where that opens a prefetch that several consumers share, the queues of all of them are
        added to `queues`: each may deliver again.
        """
        entry.in_flight = False
        queue = entry.queue
        queue.in_flight -= 1
        consumer = entry.consumer
        if consumer is None:
            return
        consumer.in_flight -= 1
        channel = consumer.channel
        if channel.shared_prefetch:
            channel.shared_in_flight -= 1
            if channel.shared_in_flight + 1 == channel.shared_prefetch:
                _offer_all(channel, queues)
        if not consumer.available and consumer.active:
            queue.offer(consumer)

    def finish_later(self, queues: Iterable[Queue]) -> None:
        """Go on with these queues at the next `proceed`, which knows the time."""
        for queue in queues:
            if not queue.deleted:
                self._unfinish(queue)

    def settle_down(self, queues: Iterable[Queue], now: float) -> None:
        """Bring each queue to its length, and deliver what can be."""
        for queue in queues:
            self._trim(queue, now)
            self.pump(queue, now)

    # ---------------------------------------------------------------- deferred to ready

    def release_due(self, queue: Queue, now: float, limit: int | None) -> bool:
        """Put deferred messages whose time has come at the tail; False when there were none."""
        entries = queue.deferred.pop_due(now, limit)
        self.make_ready(queue, entries, now)
        return bool(entries)

    def make_ready(self, queue: Queue, entries: Iterable[Entry], now: float) -> None:
        """Put entries, taken out of `queue.deferred`, at the tail."""
        for entry in entries:
            self._push_behind(queue, entry)
        self._trim(queue, now)
        self.pump(queue, now)

    def _push_behind(self, queue: Queue, entry: Entry) -> None:
        entry.position = queue.next_position()
        queue.push(entry)
        self._journal.moved(entry)

    # ---------------------------------------------------------------- gone

    def drop_ready(self, queue: Queue) -> int:
        """Purge what is ready; see `drop`."""
        taken = queue.take_ready()
        return self._drop(queue, len(taken), taken.drain())

    def drop_deferred(self, queue: Queue) -> int:
        """Purge what is deferred; see `drop`."""
        taken = queue.take_deferred()
        return self._drop(queue, len(taken), taken.drain())

    def drop(self, queue: Queue, entries: Collection[Entry]) -> int:
        """Purge entries that were taken out of `queue`, which make no dead letters.

        They are gone and counted at once, but for their memory and their records in a store: of
        many, those go in steps.

        Returns:
            Their number.
        """
        return self._drop(queue, len(entries), iter(entries))

    def _drop(self, queue: Queue, count: int, entries: Iterator[Entry]) -> int:
        queue.purged += count
        if count:
            self._state.long_work.begin(self.forget_each(entries))
        return count

    def forget_each(self, entries: Iterable[Entry]) -> Iterator[int]:
        """Work: drop entries, taken out of their queue and counted as purged."""
        for entry in entries:
            self._forget_purged(entry)
            yield 1

    def _forget_purged(self, entry: Entry) -> None:
        if self._observer is not None:
            self._paging.fetch(entry)
            self._observer.dropped(entry, REASON_PURGED)
        self._forget(entry)

    def _expire(self, queue: Queue, now: float) -> None:
        for _ in range(_DEATHS_AT_ONCE):
            entry = queue.pop_expired(now)
            if entry is None:
                return
            self._die(entry, x_death.EXPIRED, now)
        self._unfinish(queue)  # none is delivered before all that expired are gone

    def _trim(self, queue: Queue, now: float) -> None:
        if not queue.limited:
            return
        for _ in range(_DEATHS_AT_ONCE):
            over = queue.pop_overflow()
            if over is None:
                return
            self._die(over, x_death.MAXLEN, now)
        self._unfinish(queue)  # a new limit, or many that became ready; none is delivered now

    def _dies_of_returns(self, entry: Entry, now: float) -> bool:
        settings = entry.queue.settings
        limit = settings.delivery_limit
        if limit is None and settings.quorum and self._settings.compatibility >= (4, 0):
            limit = _QUORUM_DELIVERY_LIMIT
        if limit is None or limit < 0 or entry.attempts <= limit:
            return False
        self._die(entry, x_death.DELIVERY_LIMIT, now)
        return True

    def _die(self, entry: Entry, reason: str, now: float) -> None:
        queue = entry.queue
        if self._observer is not None:
            self._paging.fetch(entry)
            self._observer.died(entry, reason, now)
        if queue.settings.dead_letter_exchange is None or queue.deleted:
            queue.dropped += 1
            self._forget(entry)
        else:
            queue.dead_lettered += 1
            self._dead.append((entry, reason))

    def _forget(self, entry: Entry) -> None:
        message = entry.message
        if message is not ON_DISK:
            self._paging.resident_bytes -= len(message.body)
            entry.message = ON_DISK  # a ledger may still know the entry, but needs no message
        if entry.record_id:
            self._journal.settled(entry)

    def route_dead_letters(self, now: float) -> None:
        """Publish what has died, and what dies of that."""
        if self._routing_dead:
            return
        self._routing_dead = True
        try:
            while self._dead:
                entry, reason = self._dead.popleft()
                self._route_dead_letter(entry, reason, now)
        finally:
            self._routing_dead = False

    def _route_dead_letter(self, entry: Entry, reason: str, now: float) -> None:
        letter = dead_letter(
            self._paging.fetch(entry), entry.queue, reason, now, self._settings.compatibility
        )
        headers = letter.properties.headers or NO_HEADERS
        keys = [letter.routing_key, *extra_keys(letter, "CC", "BCC")]
        observer = self._observer
        if observer is not None:
            observer.origin = entry
        targets = self._state.vhosts[entry.queue.vhost].route(letter.exchange, keys, headers)
        for target in targets:
            if not x_death.is_cycle(headers, target.name, reason):
                self.put(target, letter, now)
            elif observer is not None:
                observer.lost_dead_letter(entry, letter, REASON_CYCLE, now)
        if observer is not None:
            observer.origin = None
            if not targets:
                observer.lost_dead_letter(entry, letter, REASON_UNROUTABLE, now)
        self._forget(entry)  # behind its dead letter, so that the store is never without both

    # ---------------------------------------------------------------- consumers and queues

    def add_consumer(self, consumer: QueueConsumer, now: float) -> None:
        """Let a consumer take part."""
        if consumer.closes_on_timeout:
            consumer.channel.closes_on_timeout = True
        consumer.channel.consumers[consumer.tag] = consumer
        consumer.queue.join(consumer)
        self.pump(consumer.queue, now)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Take it out, its deliveries staying in flight; `consumer_left` is to follow."""
        del consumer.channel.consumers[consumer.tag]
        if consumer.in_flight:
            consumer.channel.took_from(consumer.queue)
        consumer.queue.leave(consumer)

    def consumer_left(self, queue: Queue, now: float) -> None:
        """Go on without it: with another consumer, or none, or without the queue."""
        if queue.deleted or queue.consumers:
            self.pump(queue, now)  # another may have become active
        elif queue.auto_delete:
            self.delete_queue(queue)  # with its last consumer
        else:
            self._state.used(queue, now)

    def share_prefetch(self, channel: ChannelState, prefetch: int, now: float) -> None:
        """Let all consumers of `channel` together hold `prefetch` deliveries; 0 is no limit."""
        channel.shared_prefetch = prefetch
        channel.shared_in_flight = sum(e.consumer is not None for e in channel.ledger.entries())
        for consumer in channel.consumers.values():
            if not consumer.has_room:
                consumer.queue.withhold(consumer)
        queues: dict[Queue, None] = {}
        _offer_all(channel, queues)
        self.settle_down(queues, now)

    def set_flow(self, channel: ChannelState, active: bool, now: float) -> None:
        """Deliver to the consumers of `channel`, or stop until told otherwise."""
        channel.paused = not active
        queues: dict[Queue, None] = {}
        if active:
            _offer_all(channel, queues)
        else:
            for consumer in channel.consumers.values():
                consumer.queue.withhold(consumer)
        self.settle_down(queues, now)

    def reconfigure(self, queue: Queue, settings: QueueSettings, now: float) -> None:
        """Have `queue` behave by `settings`, and drop what is beyond them.

        RabbitMQ: messages keep the time to live that they came with.
        """
        if settings.expires != queue.settings.expires:
            queue.last_used = now
        queue.configure(settings)
        for consumer in queue.consumers:
            if not consumer.has_own_timeout:
                consumer.timeout, ends = time_limit(self._settings, queue, consumer.channel)
                consumer.cancelled_on_timeout = ends and settings.cancels_on_timeout
                consumer.closes_on_timeout = ends and not settings.cancels_on_timeout
                consumer.channel.closes_on_timeout |= consumer.closes_on_timeout
        self.settle_down((queue,), now)
        self._schedule.look_again(queue)

    def delete_queue(self, queue: Queue) -> None:
        """Delete a queue with what it holds, and tell its consumers."""
        self._state.vhosts[queue.vhost].remove_queue(queue)
        for consumer in list(queue.consumers):
            self.remove_consumer(consumer)
            self._effects.append(CancelConsumer(consumer.channel.id, consumer.tag))
        self._queue_deleted(queue)
        self.drop_ready(queue)
        self.drop_deferred(queue)

    def remove_queues_of(self, vhost: VirtualHost) -> Sequence[Queue]:
        """Take all queues out of a vhost that has no consumers; returns them, still full."""
        queues = vhost.remove_queues()
        for queue in queues:
            self._queue_deleted(queue)
        return queues

    def _queue_deleted(self, queue: Queue) -> None:
        queue.deleted = True
        self._unfinished.pop(queue, None)
        self._schedule.forget(queue)


def cost_so_far(queue: Queue) -> int:
    """What the transitions of `queue` have cost: two looks at it tell the cost of one; see
    `STEP`."""
    return _DELIVERY * queue.delivered + queue.dropped + _DEATH * queue.dead_lettered


def _is_expired(entry: Entry, now: float) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now


def _offer_all(channel: ChannelState, queues: dict[Queue, None]) -> None:
    for consumer in channel.consumers.values():
        consumer.queue.offer(consumer)
        queues[consumer.queue] = None


def _expires_at(queue: Queue, message: Outgoing, now: float) -> float | None:
    """The earlier of the queue's TTL and the message's own."""
    ttl = queue.settings.message_ttl
    expiration = message.properties.expiration
    if expiration is not None:
        own = int(expiration) / 1000
        ttl = own if ttl is None else min(ttl, own)
    return None if ttl is None else now + ttl
