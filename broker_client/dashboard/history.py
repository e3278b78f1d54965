"""Recent measurements: fine for minutes, coarse for hours, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from broker_client.runtime.pace import paced

SERIES = ("ready", "unacked", "deferred", "publish", "deliver", "ack")
"""What is kept of a queue and of a vhost: messages, and messages a second."""

FINE_STEP = 5.0
COARSE_STEP = 60.0
_VHOST_POINTS = (360, 1440)  # 30 minutes, 24 hours
_QUEUE_POINTS = (120, 120)  # 10 minutes, 2 hours
_MOST_VHOSTS = 200
_MOST_QUEUES = 2000

Key = tuple[str, str]
"""Vhost and name of a queue."""


class Ring:
    """Points at equal intervals; the oldest are dropped."""

    __slots__ = ("_slots", "_values", "length", "step")

    def __init__(self, step: float, length: int) -> None:
        """
        Args:
            step: seconds between two points.
            length: points that are kept.
        """
        self.step: float = step
        self.length: int = length
        self._slots = array("q", [-1] * length)
        self._values = [array("f", [0.0] * length) for _ in SERIES]

    def put(self, time: float, values: Sequence[float]) -> None:
        """Keep what was measured at `time`; of two within one step, the later."""
        slot = int(time / self.step)
        at = slot % self.length
        self._slots[at] = slot
        for series, value in zip(self._values, values, strict=True):
            series[at] = value

    def points(self, now: float) -> list[list[float | None]]:
        """Of each series, oldest first, up to `now`; None where nothing was measured."""
        last = int(now / self.step)
        slots = range(last - self.length + 1, last + 1)
        places = [
            slot % self.length if self._slots[slot % self.length] == slot else None
            for slot in slots
        ]
        return [
            [None if at is None else round(series[at], 2) for at in places]
            for series in self._values
        ]

    def latest(self, now: float, count: int) -> list[float | None]:
        """The first two series, added up: the last `count` points."""
        ready, unacked = self._values[0], self._values[1]
        last = int(now / self.step)
        found: list[float | None] = []
        for slot in range(last - count + 1, last + 1):
            at = slot % self.length
            found.append(ready[at] + unacked[at] if self._slots[at] == slot else None)
        return found

    def growth(self, now: float, seconds: float) -> float:
        """By how much the first series has grown within `seconds`, as far as is known."""
        last = int(now / self.step)
        known = [
            self._values[0][slot % self.length]
            for slot in range(last - int(seconds / self.step), last + 1)
            if self._slots[slot % self.length] == slot
        ]
        return known[-1] - known[0] if known else 0.0


class Pair:
    """The fine and the coarse points of one thing."""

    __slots__ = ("coarse", "fine")

    def __init__(self, points: tuple[int, int]) -> None:
        self.fine: Ring = Ring(FINE_STEP, points[0])
        self.coarse: Ring = Ring(COARSE_STEP, points[1])

    def put(self, time: float, values: Sequence[float]) -> None:
        """Keep what was measured at `time`."""
        self.fine.put(time, values)
        self.coarse.put(time, values)


class History:
    """The points of vhosts, and of queues that are not idle."""

    def __init__(self) -> None:
        self._vhosts: dict[str, Pair] = {}
        self._queues: dict[Key, Pair] = {}

    def put_vhost(self, vhost: str, time: float, values: Sequence[float]) -> None:
        """Keep the sums of a vhost."""
        pair = self._vhosts.get(vhost)
        if pair is None:
            if len(self._vhosts) >= _MOST_VHOSTS:
                return
            pair = self._vhosts[vhost] = Pair(_VHOST_POINTS)
        pair.put(time, values)

    def put_queue(self, key: Key, time: float, values: Sequence[float]) -> Pair | None:
        """Keep what a queue has; nothing of one that was idle ever since."""
        pair = self._queues.get(key)
        if pair is None:
            if not any(values) or len(self._queues) >= _MOST_QUEUES:
                return None
            pair = self._queues[key] = Pair(_QUEUE_POINTS)
        pair.put(time, values)
        return pair

    def queue(self, key: Key) -> Pair | None:
        """The points of a queue."""
        return self._queues.get(key)

    def forget(self, vhosts: set[str], queues: set[Key]) -> None:
        """Keep those alone: the others are gone."""
        for vhost in self._vhosts.keys() - vhosts:
            del self._vhosts[vhost]
        for key in self._queues.keys() - queues:
            del self._queues[key]

    async def shown(
        self, now: float, kind: str, vhosts: set[str], queue: Key | None
    ) -> dict[str, Any]:
        """The points as the page draws them.

        Args:
            now: seconds since the epoch; of the last point.
            kind: `fine` or `coarse`.
            vhosts: whose sums, where no queue is asked for.
            queue: whose.
        """
        if queue is not None:
            found = self._queues.get(queue)
            pairs = [] if found is None else [found]
        else:
            pairs = [pair for vhost, pair in self._vhosts.items() if vhost in vhosts]
        step = FINE_STEP if kind == "fine" else COARSE_STEP
        rings = [pair.fine if kind == "fine" else pair.coarse for pair in pairs]
        shown: dict[str, Any] = {"step": step, "time": int(now / step) * step}
        sums: list[list[float | None]] = [[] for _ in SERIES]
        async for ring in paced(rings):
            points = ring.points(now)
            sums = [
                list(map(_added, *both)) if both[0] else both[1]
                for both in zip(sums, points, strict=True)
            ]
        return {**shown, **dict(zip(SERIES, sums, strict=True))}


def _added(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return round(first + second, 2)
