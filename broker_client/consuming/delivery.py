"""One delivery, from its arrival to its settlement or loss."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

from broker_client.message import Message
from broker_client.transport.base import Channel


class DeliveryOutcome(StrEnum):
    """How a delivery ended."""

    ACKED = "acked"
    NACKED = "nacked"
    REPUBLISHED = "republished"
    """A copy is at the end of its queue, and it was acked."""
    FORWARDED = "forwarded"
    """A copy went through a publication, and it was acked."""
    RELEASED = "released"
    """It returned to its queue, and no handler had failed."""
    DUPLICATE = "duplicate"
    """It was handled before, and acked without a handler."""
    LOST = "lost"
    """Its channel ended; the broker delivers it again."""
    TIMED_OUT = "timed out"
    """The broker took it back: it was unsettled for too long."""


WILL_COME_AGAIN = (DeliveryOutcome.LOST, DeliveryOutcome.TIMED_OUT, DeliveryOutcome.RELEASED)


class UnackedDelivery:
    """A delivery and the state of its settlement."""

    __slots__ = (
        "_recovery",
        "ack_deadline",
        "channel",
        "error",
        "handlers",
        "is_begun",
        "is_lost",
        "is_waiting",
        "message",
        "outcome",
        "requeues",
    )

    def __init__(self, recovery: Any, channel: Channel, message: Message) -> None:
        self._recovery = recovery  # `Recovery`, which knows this class; for `AckOrNack`
        self.channel: Channel = channel
        self.message: Message = message
        self.is_begun: bool = False
        """True once its settlement has begun."""
        self.is_lost: bool = False
        """True once it belongs to the broker again: its channel ended, or it timed out."""
        self.error: BaseException | str | None = None
        """Why handling it failed."""
        self.requeues: bool = False
        """True when settling it returns it to its queue."""
        self.outcome: DeliveryOutcome | None = None
        """How it ended; None while it is unacked."""
        self.handlers: int = 0
        """Handlers of it that run now."""
        self.is_waiting: bool = False
        """True while it waits for its handlers to be called."""
        self.ack_deadline: float = math.inf
        """Loop time at which `AckDeadlines` warns of its time-out; infinity once it has."""

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "settled" if self.is_begun else "open"
        return f"<{type(self).__name__} {self.message.delivery.delivery_tag}: {state}>"

    @property
    def is_open(self) -> bool:
        """True while it is unsettled and can be settled."""
        return not self.is_begun and not self.is_lost

    @property
    def is_refused(self) -> bool:
        """True once it was nacked without requeue: the broker dead-letters or drops it."""
        return self.outcome is DeliveryOutcome.NACKED and not self.requeues

    @property
    def is_in_work(self) -> bool:
        """True while its handlers or its recovery run, or it waits for its handlers."""
        return self.handlers > 0 or self.is_waiting or self.is_begun
