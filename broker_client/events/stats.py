"""Statistics of pools, queues, connections and the broker, as frozen snapshots."""

from __future__ import annotations

from dataclasses import field

from broker_client.runtime.slotted import slotted


@slotted
class PoolStats:
    """A channel pool at one moment."""

    name: str
    size: int
    """Channels open or being opened."""
    idle: int
    leased: int
    waiting: int
    """Callers waiting for a channel."""
    max_size: int
    paused: bool
    min_size: int = 0
    busy: bool = False
    """As many callers wait as there may be channels."""
    vhost: str = ""
    mode: str = ""
    """regular or confirm."""

    def __str__(self) -> str:
        return (
            f"{self.leased} leased, {self.idle} idle, {self.waiting} waiting of {self.max_size}"
            + (", paused" if self.paused else "")
        )


@slotted
class PublishQueueStats:
    """The publishes of one vhost at one moment, and their outcomes so far."""

    waiting: int
    """Accepted and not sent."""
    unconfirmed: int
    """Sent and not confirmed."""
    held_bytes: int
    """Bytes of the bodies of waiting and unconfirmed publishes."""
    paused: bool
    published: int
    """Accepted so far."""
    succeeded: int
    returned: int
    failed: int
    resent: int
    """Sent again after a channel or link was lost."""


@slotted
class SubscriptionStats:
    """A subscription at one moment, and what it has done so far."""

    name: str
    queue: str
    state: str
    """idle, subscribing, subscribed, paused, cancelled."""
    unsettled: int
    delivered: int
    acked: int
    nacked: int
    republished: int
    forwarded: int
    handler_errors: int
    lost_settles: int
    """Settles that came after their channel was gone."""
    waiting: int = 0
    """Deliveries that no handler has begun."""
    given_back: int = 0
    """Returned to the queue unhandled."""
    duplicates: int = 0
    """Acked unhandled, having been handled before."""
    lost: int = 0
    """Their channel ended before they were settled; the broker delivers them again."""
    timed_out: int = 0
    """The broker took them back: they were unsettled for too long."""


@slotted
class ConnectionStats:
    """One connection of a vhost."""

    role: str
    """publishing, consuming, or both."""
    url: str
    """Masked."""
    state: str
    """up, down or closed."""
    connects: int
    """Links that have been up so far."""


@slotted
class VhostStats:
    """One vhost of the client; `url`, `state` and `connects` are of its first connection."""

    name: str
    url: str
    """Masked."""
    state: str
    """up, down or closed."""
    connects: int
    """Links that have been up so far."""
    publish_queue: PublishQueueStats
    pools: tuple[PoolStats, ...]
    connections: tuple[ConnectionStats, ...] = ()
    """The existing connections: the one for consumers is opened with the first subscription."""


@slotted
class BrokerStats:
    """Everything a Broker knows about itself."""

    vhosts: dict[str, VhostStats] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionStats] = field(default_factory=dict)
