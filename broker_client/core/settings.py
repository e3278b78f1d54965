"""Limits of an engine."""

from __future__ import annotations

from broker_client.runtime.slotted import slotted

RabbitMQVersion = tuple[int, int]

NEWEST: RabbitMQVersion = (4, 3)
"""The RabbitMQ that an engine follows, where versions differ."""


@slotted
class EngineSettings:
    """Limits of an engine; times in seconds."""

    message_timeout: float = 60.0
    """How long a delivery may be in flight, unless its queue says otherwise; 0 is forever."""
    max_message_timeout: float = 900.0
    """How long `touch` may keep it there, counted from delivery."""
    max_requeue_timeout: float = 3600.0
    """Longest delay of a deferred requeue; a longer one is cut to this."""
    max_publish_delay: float = 25 * 86_400.0
    """Longest delay of a publish (`x-delay`); a longer one is refused. More than the client asks
    for, on any broker; nsq's hour is for timers that do not survive a restart."""
    max_message_size: int | None = None
    """Bytes of the largest body; a larger one is refused. 0 is no limit, None is RabbitMQ's own
    default."""
    latency_window: float = 600.0
    """Time over which the latency percentiles of a queue are taken; 0 keeps none."""
    keep_records: bool = False
    """Make records among the effects; only a store that keeps something needs them."""
    memory_limit: int = 64 * 1024 * 1024
    """Bytes of bodies held in memory where there is a store to leave the rest to: beyond it, what
    waits behind others is read back ahead of its delivery."""
    memory_high_watermark: int = 1024 * 1024 * 1024
    """Bytes of bodies in memory above which publishers should wait; 0 is no limit."""
    compatibility: RabbitMQVersion = NEWEST
    """The RabbitMQ whose ways it has, where versions differ."""

    @property
    def message_size_limit(self) -> int:
        """Bytes of the largest body; 0 is no limit.

        RabbitMQ: 16 MiB from 4.0 on, 128 MiB before.
        """
        if self.max_message_size is not None:
            return self.max_message_size
        return (16 if self.compatibility >= (4, 0) else 128) * 1024 * 1024
