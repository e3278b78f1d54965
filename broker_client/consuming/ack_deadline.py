"""Deliveries whose time to be settled is nearly over, told before the broker acts on it.

Nobody is told of a time-out that only the broker knows, such as RabbitMQ's own `consumer_timeout`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

SHARE = 0.8
"""Share of the time after which a delivery is told of."""
_STEP = 0.02  # of the time: looks are no closer together, however many deliveries there are


class Dated(Protocol):
    """A delivery in hand."""

    due: float
    """Loop time at which to tell of it; infinity once told."""


D = TypeVar("D", bound=Dated)


class DueWatch:
    """One timer for all deliveries of a subscription, while it has any."""

    def __init__(
        self, limit: float, in_hand: Callable[[], Collection[D]], tell: Callable[[D, float], None]
    ) -> None:
        """
        Args:
            limit: seconds a delivery may stay unsettled.
            in_hand: what is unsettled now.
            tell: called once for each that is due, with the seconds it has left.
        """
        self._limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self._look: Callable[[], None] = lambda: self._tell_of_due(in_hand(), tell)

    def begin(self, each: Dated, left: float | None = None) -> None:
        """`each` has `left` seconds from now on; by default all of its time."""
        loop = asyncio.get_running_loop()
        left = self._limit if left is None else left
        each.due = loop.time() + left - self._limit * (1 - SHARE)
        if self._timer is None:
            self._timer = loop.call_at(each.due, self._look)

    def stop(self) -> None:
        """Nothing is in hand any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_of_due(self, in_hand: Collection[D], tell: Callable[[D, float], None]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        ahead = math.inf
        due: list[D] = []
        for each in in_hand:
            if each.due <= now:
                due.append(each)
            else:
                ahead = min(ahead, each.due)
        self._timer = None
        if ahead < math.inf:
            self._timer = loop.call_at(max(ahead, now + self._limit * _STEP), self._look)
        for each in due:
            left = max(each.due + self._limit * (1 - SHARE) - now, 0.0)
            each.due = math.inf
            tell(each, left)
