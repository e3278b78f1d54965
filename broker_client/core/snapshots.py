"""Statistics of the core, as frozen snapshots."""

from __future__ import annotations

from broker_client.core.latency import NO_LATENCY, LatencyStats
from broker_client.runtime.slotted import slotted


@slotted
class ConsumerStats:
    """One consumer as it is now; counts since it started (nsq's client)."""

    consumer_tag: str
    connection: int
    channel: int
    no_ack: bool
    prefetch: int
    """Deliveries it may hold unsettled; 0 is no limit."""
    priority: int
    active: bool
    """False while it waits behind the single active consumer."""
    message_timeout: float
    """Seconds a delivery may be in flight; 0 is no limit."""
    since: float
    """When it started, in seconds since the epoch."""
    in_flight: int
    message_count: int
    """Deliveries so far."""
    ack_count: int
    requeue_count: int
    reject_count: int
    timeout_count: int


@slotted
class QueueStats:
    """One queue as it is now; counts since it was declared."""

    vhost: str
    name: str
    durable: bool
    ready: int
    in_flight: int
    deferred: int
    consumers: int
    message_count: int
    """Messages ever put in."""
    ack_count: int
    requeue_count: int
    timeout_count: int
    dead_letter_count: int
    """Messages that died and had a dead-letter exchange to go to."""
    drop_count: int
    """Messages that died without one."""
    purge_count: int
    message_bytes: int = 0
    """Bytes of the bodies ever put in."""
    deliver_count: int = 0
    """Deliveries, redeliveries included."""
    paused: bool = False
    oldest: float = 0.0
    """Seconds since the message at the head became ready; 0 where none is."""
    latency: LatencyStats = NO_LATENCY
    """From acceptance to acknowledgement, in the last minutes."""
    consumer_stats: tuple[ConsumerStats, ...] = ()


@slotted
class InFlightMessage:
    """One delivery in flight: of what, with whom, since when, until when, which attempt."""

    vhost: str
    queue: str
    message_id: str | None
    exchange: str
    routing_key: str
    size_bytes: int
    attempts: int
    """Deliveries so far, this one included."""
    connection: int
    channel: int
    consumer_tag: str
    """Empty where it was taken by basic.get."""
    delivery_tag: int
    delivered_at: float
    """Seconds since the epoch."""
    deadline: float | None
    """When it is given back unless it is settled or touched before; None is never."""


@slotted
class DeferredMessage:
    """One message that waits for its time."""

    vhost: str
    queue: str
    id: int
    """Names it within its queue, to cancel it or to run it now."""
    message_id: str | None
    exchange: str
    routing_key: str
    size_bytes: int
    attempts: int
    """Deliveries so far; 0 where its publish was delayed."""
    due_at: float
    """When it becomes ready, in seconds since the epoch."""


@slotted(frozen=False)
class Purged:
    """How many messages a purge removed, by state."""

    ready: int
    deferred: int
    in_flight: int
    """Rises until the purge is done, where there were many: the node's `drain` waits for that."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.ready + self.deferred + self.in_flight
