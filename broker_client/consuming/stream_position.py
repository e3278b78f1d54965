"""The position in a stream, from which a new consumer resumes.

A stream keeps its messages: settling one only makes room for the next, and the consumer has to
remember its place. RabbitMQ: each delivery has its offset in the header `x-stream-offset`, in
ascending order.
"""

from __future__ import annotations

from broker_client.consuming.delivery import WILL_COME_AGAIN, DeliveryOutcome
from broker_client.message import Delivery

OFFSET = "x-stream-offset"
"""Argument of a consumer, and header of a delivery."""


class StreamPosition:
    """Settled offsets of a stream; memory is bounded by the unsettled ones."""

    def __init__(self) -> None:
        self._highest: int | None = None
        self._open: dict[int, bool] = {}  # unsettled offset: True while it is unacked here

    def __repr__(self) -> str:
        return f"<StreamPosition {self.resume_at()}, {len(self._open)} unsettled>"

    def resume_at(self) -> int | None:
        """The offset to consume from now on: the first that is neither settled nor unacked here.

        None while nothing has arrived: the configured offset holds.
        """
        waiting = [offset for offset, is_unacked in self._open.items() if not is_unacked]
        if waiting:
            return min(waiting)
        return None if self._highest is None else self._highest + 1

    def take(self, delivery: Delivery) -> bool:
        """Note that `delivery` is unacked here; False when it was settled before, or already is."""
        offset = offset_of(delivery)
        if offset is None:
            return True
        if self._highest is not None and offset <= self._highest:
            if self._open.get(offset, True):
                return False
        else:
            self._highest = offset
        self._open[offset] = True
        return True

    def ended(self, delivery: Delivery, outcome: DeliveryOutcome) -> None:
        """`delivery` is no longer unacked: it is settled, or will be delivered again."""
        offset = offset_of(delivery)
        if offset is None or offset not in self._open:
            return
        if outcome in WILL_COME_AGAIN:
            self._open[offset] = False
        else:
            del self._open[offset]


def offset_of(delivery: Delivery) -> int | None:
    """The place of a delivery in its stream; None for one from another kind of queue."""
    offset = (delivery.properties.headers or {}).get(OFFSET)
    return offset if isinstance(offset, int) else None
