"""Keys with a time each, earliest first; in-flight deliveries, deferred messages and
unconfirmed publishes all wait in one of these."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_REBUILD_FROM = 64  # below this many entries the leavings are not worth a rebuild


class Deadlines(Generic[K]):
    """A heap of (time, key) that forgets keys cheaply.

    `discard` drops the key and leaves its heap entry behind, so it costs O(1); `pop_due` passes
    over entries whose key is gone or has moved. Once more than half the heap is such leavings,
    `set` rebuilds it: memory stays within twice the number of live keys.
    """

    __slots__ = ("_at", "_heap", "_seq")

    def __init__(self) -> None:
        self._at: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._seq = 0  # keeps equal times in order of arrival, and keys uncompared

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def set(self, key: K, at: float) -> None:
        """Add `key`, or move it if it is here already."""
        if len(self._heap) > _REBUILD_FROM and len(self._heap) > 2 * len(self._at):
            self._heap = [(when, seq, k) for k, (when, seq) in self._at.items()]
            heapq.heapify(self._heap)
        self._seq += 1
        self._at[key] = (at, self._seq)
        heapq.heappush(self._heap, (at, self._seq, key))

    def discard(self, key: K) -> None:
        """Forget `key`; no error if it is not here."""
        self._at.pop(key, None)

    def get(self, key: K) -> float | None:
        """When `key` is due, or None if it is not here."""
        entry = self._at.get(key)
        return entry[0] if entry else None

    def next_at(self) -> float | None:
        """The earliest time, or None when there is no key."""
        self._drop_leavings()
        return self._heap[0][0] if self._heap else None

    def first(self) -> tuple[float, K] | None:
        """The earliest time and its key, left in place."""
        self._drop_leavings()
        return (self._heap[0][0], self._heap[0][2]) if self._heap else None

    def pop_due(self, now: float) -> list[K]:
        """Remove and return the keys whose time is `now` or earlier, earliest first."""
        due: list[K] = []
        self._drop_leavings()
        while self._heap and self._heap[0][0] <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            due.append(key)
            self._drop_leavings()
        return due

    def clear(self) -> list[K]:
        """Forget every key; returns them in order of their time."""
        keys = [key for key, _ in sorted(self._at.items(), key=lambda item: item[1])]
        self._at.clear()
        self._heap.clear()
        return keys

    def _drop_leavings(self) -> None:
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][2]) != heap[0][:2]:
            heapq.heappop(heap)
