"""The state of queues: entries, consumers, and their channels.

These are plain state. `transitions` decides what happens to entries, `virtual_host` what is
routed where, and `commands` what a client may ask for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import field
from typing import TYPE_CHECKING

from broker_client.core.arguments import Arguments, QueueSettings
from broker_client.core.deferred import Deferred
from broker_client.core.in_flight import InFlightLedger
from broker_client.core.latency import NO_LATENCY, LatencyWindow
from broker_client.core.policies import NO_POLICY, EffectivePolicy
from broker_client.core.ready import PriorityReady, Ready
from broker_client.core.transaction import Transaction
from broker_client.message import Outgoing, Properties
from broker_client.runtime.slotted import slotted

if TYPE_CHECKING:
    from broker_client.core.snapshots import ConsumerStats, Purged, QueueStats

NEVER = float("inf")
_MANY_SOURCES = 50  # noted by a channel between two looks at which of them still matter

ON_DISK = Outgoing("", "", b"", Properties())
"""Placeholder (compare with `is`) for the message of an entry that only the store holds."""


@slotted(frozen=False, eq=False)
class Entry:
    """One queue's copy of a message; the message itself is shared between copies."""

    queue: Queue
    message: Outgoing
    position: int
    attempts: int = 0
    """Deliveries so far, less those that were released."""
    was_released: bool = False
    """It was delivered and given back unhandled: the next delivery is a redelivery all the same."""
    in_flight: bool = False
    expires_at: float | None = None
    priority: int = 0
    record_id: int = 0
    size_bytes: int = 0
    """Of the body; kept in queues with limits, and where the message itself is on disk."""
    consumer: QueueConsumer | None = None
    delivered_at: float = 0.0
    enqueued_at: float = 0.0
    published_at: float = 0.0
    """Times in seconds since the epoch; `published_at` is known only to an `Observer`."""


@slotted(frozen=False, eq=False)
class QueueConsumer:
    """One consumer of a queue."""

    tag: str
    channel: ChannelState
    queue: Queue
    no_ack: bool
    exclusive: bool
    priority: int
    timeout: float
    """Seconds a delivery may be in flight; 0 is no limit."""
    closes_on_timeout: bool
    """A delivery in flight longer than that closes the channel (RabbitMQ)."""
    cancelled_on_timeout: bool
    """It cancels the consumer instead (RabbitMQ 4.3, quorum queues)."""
    since: float
    has_own_timeout: bool = False
    """It asked for `timeout` itself."""
    prefetch: int = field(init=False)
    in_flight: int = 0
    acked: int = 0
    requeued: int = 0
    rejected: int = 0
    timed_out: int = 0
    priority_matters: bool = False
    """True when the queue has consumers of another priority."""
    active: bool = False
    """True while the queue may choose it."""
    available: bool = False
    """True while it stands in its queue's `available`."""

    def __post_init__(self) -> None:
        # RabbitMQ: prefetch counts unsettled deliveries, and with no_ack there are none.
        self.prefetch = 0 if self.no_ack else self.channel.prefetch

    @property
    def has_room(self) -> bool:
        """True if a message may be delivered to it now."""
        channel = self.channel
        if not self.active or self.queue.holds or channel.paused:
            return False
        if self.no_ack:
            return True
        return (not self.prefetch or self.in_flight < self.prefetch) and (
            not channel.shared_prefetch or channel.shared_in_flight < channel.shared_prefetch
        )

    def stats(self) -> ConsumerStats:
        """A snapshot."""
        from broker_client.core.snapshots import ConsumerStats

        return ConsumerStats(
            consumer_tag=self.tag,
            connection=self.channel.connection,
            channel=self.channel.id,
            no_ack=self.no_ack,
            prefetch=self.prefetch,
            priority=self.priority,
            active=self.active,
            message_timeout=self.timeout,
            since=self.since,
            in_flight=self.in_flight,
            message_count=self.in_flight
            + self.acked
            + self.requeued
            + self.rejected
            + self.timed_out,
            ack_count=self.acked,
            requeue_count=self.requeued,
            reject_count=self.rejected,
            timeout_count=self.timed_out,
        )


@slotted(frozen=False, eq=False)
class ChannelState:
    """One channel, and what it has in flight."""

    id: int
    connection: int
    vhost: str
    confirms: bool = False
    number: int = 0
    """Of the channel as its client knows it."""
    consumer_timeout: float | None = None
    """Seconds that a delivery may be in flight before the channel is closed, 0 for no limit; None
    where the engine's `message_timeout` holds."""
    ledger: InFlightLedger[Entry] = field(default_factory=InFlightLedger)
    consumers: dict[str, QueueConsumer] = field(default_factory=dict)
    prefetch: int = 0
    """For consumers started from now on."""
    shared_prefetch: int = 0
    """Unsettled deliveries allowed to all its consumers together; 0 is no limit."""
    shared_in_flight: int = 0
    """Their number; kept only while there is a limit."""
    paused: bool = False
    """Nothing is delivered to its consumers; all else goes on."""
    publish_seq: int = 0
    confirms_from: int = 0
    """First of a run of publishes to confirm; 0 while there is none."""
    confirms_ack: bool = True
    """Whether that run is acked, or nacked."""
    closes_on_timeout: bool = False
    """True once it has used a queue with x-consumer-timeout."""
    transaction: Transaction | None = None
    """What waits for tx.commit, on a channel in that mode."""
    reply_token: str | None = None
    """The secret part of its direct reply-to address, while it consumes replies."""
    reply_tag: str = ""
    """The consumer tag of these."""
    due_at: float = NEVER
    committing: int = 0
    """Transactions that are being carried out."""
    _sources: dict[Queue, None] = field(default_factory=dict)

    def next_due(self) -> float | None:
        """When the earliest delivery in flight is due back."""
        return self.ledger.next_deadline()

    def took_from(self, queue: Queue) -> None:
        """What is in flight may be of `queue`, though no consumer tells of it."""
        if queue not in self._sources:
            if len(self._sources) % _MANY_SOURCES == _MANY_SOURCES - 1:
                self._sources = {each: None for each in self._sources if each.in_flight}
            self._sources[queue] = None

    def sources(self) -> list[Queue]:
        """The queues of what is in flight here, and perhaps some more."""
        queues = dict.fromkeys(consumer.queue for consumer in self.consumers.values())
        return [queue for queue in queues | self._sources if queue.in_flight]


@slotted(frozen=False, eq=False)
class Queue:
    """One queue: ready, in flight, deferred, and all of its counters."""

    name: str
    vhost: str
    durable: bool
    owner: int | None
    """The connection it is exclusive to, or None."""
    auto_delete: bool
    arguments: Arguments
    settings: QueueSettings
    last_used: float
    kept: bool = field(init=False)
    """It outlives its node, where that has a store. RabbitMQ: an exclusive one does not."""
    ready: Ready[Entry] = field(init=False)
    in_flight: int = 0
    deferred: Deferred[Entry] = field(default_factory=Deferred)
    consumers: dict[QueueConsumer, None] = field(default_factory=dict)
    available: deque[QueueConsumer] = field(default_factory=deque)
    """Consumers that would take a message now, the next in turn first."""
    position: int = 0
    enqueued: int = 0
    enqueued_bytes: int = 0
    delivered: int = 0
    acked: int = 0
    requeued: int = 0
    timed_out: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    purged: int = 0
    latency: LatencyWindow | None = None
    """From acceptance to ack; made at the first ack, where latencies are kept."""
    policy: EffectivePolicy = NO_POLICY
    """Policy settings, in addition to its arguments; `settings` has both."""
    paused: bool = False
    """Nothing is delivered; all else goes on (nsq: a paused channel)."""
    holds: int = 0
    """Why nothing is delivered: it is `paused`, and the long works that move its messages."""
    returns: list[Collection[Entry]] = field(default_factory=list)
    """What long work is putting back, here or into other queues of the same channel."""
    purging: Purged | None = None
    """Counts while what is in flight is purged: it does not come back to the queue."""
    unfinished: bool = False
    """More could be done at once than a step does; see `Transitions.proceed`."""
    ready_bytes: int = 0
    """Kept only where it is `weighed`."""
    limited: bool = field(init=False)
    weighed: bool = False
    """Its length is limited in bytes."""
    plain: bool = field(init=False)
    """Nothing to look at when a message without expiration comes in."""
    expiring: bool = field(init=False)
    """An expiring message may be ready."""
    deleted: bool = False
    due_at: float = NEVER

    def __post_init__(self) -> None:
        settings = self.settings
        self.kept = self.durable and self.owner is None
        self.ready = self._nothing_ready()
        self.expiring = False
        self.configure(settings)

    def configure(self, settings: QueueSettings) -> None:
        """Behave by `settings` from now on; what they ask of the messages is up to the caller."""
        self.settings = settings
        self.limited = settings.max_length is not None or settings.max_length_bytes is not None
        expires = settings.message_ttl is not None
        self.expiring = self.expiring or expires
        self.plain = not self.limited and not expires and not settings.max_priority
        was_weighed, self.weighed = self.weighed, settings.max_length_bytes is not None
        if self.weighed and not was_weighed:
            self.ready_bytes = sum(map(_size, self.ready))

    @property
    def type(self) -> str:
        """What a declaration says as `x-queue-type`."""
        return "quorum" if self.settings.quorum else "classic"

    def __repr__(self) -> str:
        return (
            f"<Queue {self.name!r} ready={len(self.ready)} in_flight={self.in_flight} "
            f"deferred={len(self.deferred)} consumers={len(self.consumers)}>"
        )

    def next_due(self) -> float | None:
        """When something of this queue is due: a head's TTL, a deferred message, x-expires."""
        due = self.deferred.next_at()
        times = [] if due is None else [due]
        if self.expiring:
            heads = (entry.expires_at for entry in self.ready.heads())
            times.extend(at for at in heads if at is not None)
        if self.settings.expires is not None and not self.consumers:
            times.append(self.last_used + self.settings.expires)
        return min(times, default=None)

    def next_position(self) -> int:
        """The place behind all others."""
        self.position += 1
        return self.position

    def push(self, entry: Entry) -> None:
        """Make `entry` ready at the tail, under the position it was just given."""
        self.ready.push(entry)
        if self.weighed:
            self.ready_bytes += _size(entry)

    def restore(self, entry: Entry) -> None:
        """Make `entry` ready where it was."""
        self.ready.restore(entry)
        if self.weighed:
            self.ready_bytes += _size(entry)

    def pop(self) -> Entry:
        """Take the head."""
        entry = self.ready.pop()
        if self.weighed:
            self.ready_bytes -= _size(entry)
        return entry

    def pop_expired(self, now: float) -> Entry | None:
        """Take a head whose time is over."""
        entry = self.ready.pop_expired(now)
        if entry is not None and self.weighed:
            self.ready_bytes -= _size(entry)
        return entry

    def pop_overflow(self) -> Entry | None:
        """Take what stands beyond the length limits, or None."""
        if self.settings.rejects_publish or not self._exceeds(len(self.ready), self.ready_bytes):
            return None
        # RabbitMQ 4.3: a quorum queue drops what it would deliver next.
        entry = self.ready.pop() if self.settings.quorum else self.ready.pop_least()
        if self.weighed:
            self.ready_bytes -= _size(entry)
        return entry

    def would_overflow(self, message: Outgoing) -> bool:
        """True when one more message would exceed the limits."""
        return self._exceeds(len(self.ready) + 1, self.ready_bytes + len(message.body))

    def take_ready(self) -> Ready[Entry]:
        """Take everything ready."""
        taken, self.ready = self.ready, self._nothing_ready()
        self.ready_bytes = 0
        return taken

    def take_deferred(self) -> Deferred[Entry]:
        """Take everything deferred."""
        taken, self.deferred = self.deferred, Deferred()
        return taken

    def _nothing_ready(self) -> Ready[Entry]:
        return PriorityReady() if self.settings.max_priority else Ready()

    # ---------------------------------------------------------------- consumers

    def join(self, consumer: QueueConsumer) -> None:
        """Add a consumer; with x-single-active-consumer it waits while another is active."""
        self.consumers[consumer] = None
        self._rank()
        if not self.settings.single_active or len(self.consumers) == 1:
            self._activate(consumer)

    def leave(self, consumer: QueueConsumer) -> None:
        """Take a consumer out; a single active one is followed by the next in line."""
        del self.consumers[consumer]
        self._rank()
        was_active, consumer.active = consumer.active, False
        self.withhold(consumer)
        if self.settings.single_active and was_active and self.consumers:
            self._activate(max(self.consumers, key=lambda each: each.priority))

    def next_consumer(self) -> QueueConsumer:
        """The consumer whose turn it is; out of `available` if one more fills it.

        Raises:
            IndexError: none is available.
        """
        available = self.available
        consumer = available[0]
        if consumer.priority_matters:
            consumer = max(available, key=lambda each: each.priority)  # the first of equals
            available.remove(consumer)
        else:
            available.popleft()
        if consumer.no_ack:
            available.append(consumer)
            return consumer
        consumer.in_flight += 1
        if consumer.prefetch and consumer.in_flight >= consumer.prefetch:
            consumer.available = False
        else:
            available.append(consumer)
        channel = consumer.channel
        if channel.shared_prefetch:
            channel.shared_in_flight += 1
            if channel.shared_in_flight >= channel.shared_prefetch:
                for each in channel.consumers.values():
                    if not each.no_ack:
                        each.queue.withhold(each)
        return consumer

    def offer(self, consumer: QueueConsumer) -> None:
        """Make it available, last in turn, if it has room; no effect if it is already."""
        if not consumer.available and consumer.has_room:
            consumer.available = True
            self.available.append(consumer)

    def withhold(self, consumer: QueueConsumer) -> None:
        """Make it unavailable; no effect if it is already."""
        if consumer.available:
            consumer.available = False
            self.available.remove(consumer)

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self.paused = True
        self.hold()

    def resume(self) -> None:
        """Let every consumer with room be chosen again."""
        self.paused = False
        self.let_go()

    def hold(self) -> None:
        """Deliver nothing until `let_go` was called as often."""
        self.holds += 1
        for consumer in self.consumers:
            self.withhold(consumer)

    def let_go(self) -> None:
        """Let every consumer with room be chosen again, unless something else holds the queue."""
        self.holds -= 1
        for consumer in self.consumers:
            self.offer(consumer)

    @property
    def returning(self) -> int:
        """So many of those in flight are being put back by long work. Looks at each of them."""
        return sum(entry.queue is self for entries in self.returns for entry in entries)

    @property
    def is_in_work(self) -> bool:
        """True while long work puts its messages back, or purges those in flight."""
        return self.holds > self.paused

    def _activate(self, consumer: QueueConsumer) -> None:
        consumer.active = True
        self.offer(consumer)

    def _rank(self) -> None:
        ranked = len({consumer.priority for consumer in self.consumers}) > 1
        for consumer in self.consumers:
            consumer.priority_matters = ranked

    # ---------------------------------------------------------------- accounts

    def check_conservation(self) -> None:
        """Check that every message that came in is here, or gone for a counted reason."""
        gone = self.acked + self.dropped + self.dead_lettered + self.purged
        here = len(self.ready) + self.in_flight + len(self.deferred)
        assert self.enqueued == gone + here, (
            f"{self!r}: {self.enqueued} in, {gone} gone, {here} here"
        )

    def stats(self, now: float | None = None) -> QueueStats:
        """A snapshot."""
        from broker_client.core.snapshots import QueueStats

        return QueueStats(
            vhost=self.vhost,
            name=self.name,
            durable=self.durable,
            ready=len(self.ready),
            in_flight=self.in_flight,
            deferred=len(self.deferred),
            consumers=len(self.consumers),
            message_count=self.enqueued,
            ack_count=self.acked,
            requeue_count=self.requeued,
            timeout_count=self.timed_out,
            dead_letter_count=self.dead_lettered,
            drop_count=self.dropped,
            purge_count=self.purged,
            message_bytes=self.enqueued_bytes,
            deliver_count=self.delivered,
            paused=self.paused,
            oldest=self._age_of_head(now),
            latency=NO_LATENCY if self.latency is None else self.latency.stats(now),
            consumer_stats=tuple(consumer.stats() for consumer in self.consumers),
        )

    def _age_of_head(self, now: float | None) -> float:
        head = self.ready.peek()
        if now is None or head is None or not head.enqueued_at:
            return 0.0
        return max(0.0, now - head.enqueued_at)

    def _exceeds(self, length: int, size_bytes: int) -> bool:
        most, most_bytes = self.settings.max_length, self.settings.max_length_bytes
        return (most is not None and length > most) or (
            most_bytes is not None and size_bytes > most_bytes
        )


def _size(entry: Entry) -> int:
    return entry.size_bytes or len(entry.message.body)
