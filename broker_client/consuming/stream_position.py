"""Where reading a stream has got to, so that a new consumer goes on behind it.

A stream keeps its messages: settling one only makes room for the next, and it is the consumer who
knows where it is. RabbitMQ: each delivery has its offset in the header `x-stream-offset`, in
ascending order.
"""

from __future__ import annotations

from broker_client.message import Delivery

OFFSET = "x-stream-offset"
"""Argument of a consumer, and header of a delivery."""


class StreamPosition:
    """What has been settled of a stream; holds no more than is unsettled."""

    def __init__(self) -> None:
        self._highest: int | None = None
        self._open: dict[int, bool] = {}  # unsettled offset to whether a handler has it

    def __repr__(self) -> str:
        return f"<StreamPosition {self.resume_at()}, {len(self._open)} unsettled>"

    def resume_at(self) -> int | None:
        """The offset to consume from now on: the first that nobody has settled or has in hand.

        None while nothing has arrived: the configured offset holds.
        """
        waiting = [offset for offset, is_in_hand in self._open.items() if not is_in_hand]
        if waiting:
            return min(waiting)
        return None if self._highest is None else self._highest + 1

    def take(self, delivery: Delivery) -> bool:
        """Note that `delivery` is in hand; False when it was settled before, or is in hand."""
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

    def settled(self, delivery: Delivery) -> None:
        """`delivery` need not come again."""
        offset = offset_of(delivery)
        if offset is not None:
            self._open.pop(offset, None)

    def returned(self, delivery: Delivery) -> None:
        """`delivery` is unsettled and out of hand: it must come again."""
        offset = offset_of(delivery)
        if offset is not None and offset in self._open:
            self._open[offset] = False


def offset_of(delivery: Delivery) -> int | None:
    """The place of a delivery in its stream; None for one from another kind of queue."""
    offset = (delivery.properties.headers or {}).get(OFFSET)
    return offset if isinstance(offset, int) else None
