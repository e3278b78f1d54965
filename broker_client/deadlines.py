"""Keys with a time each, earliest first; in-flight deliveries, deferred messages and
unconfirmed publishes all wait in one of these."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_LOOK_EVERY = 64  # additions between two looks at how many entries are leavings


class Deadlines(Generic[K]):
    """Times of keys, in a line where they come in order and in a heap where they do not.

    Nearly all times come in order: whatever waits equally long ends in the order in which it
    began. Such an entry is appended to a deque, and leaves it at the front, in constant time
    however many there are; only what is earlier than the last in line goes to the heap beside it.

    `discard` drops the key and leaves its entry behind, so it costs O(1); what reads the front
    passes over entries whose key is gone or has moved. Once more than half of them is such
    leavings, `set` rebuilds: memory stays within twice the number of live keys, and a few.

    Measured against an indexed heap, a timing wheel and sorted containers: `bench/core/heaps.py`,
    figures in docs/core.md.
    """

    __slots__ = ("_entries", "_heap", "_line", "_seq")

    def __init__(self) -> None:
        self._entries: dict[K, tuple[float, int, K]] = {}
        """The entry that counts for each key; one in the line or heap that is not in here is
        a leaving."""
        self._line: deque[tuple[float, int, K]] = deque()
        self._heap: list[tuple[float, int, K]] = []
        self._seq = 0  # keeps equal times in order of arrival, and keys uncompared

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def set(self, key: K, at: float) -> None:
        """Add `key`, or move it if it is here already."""
        self._seq = seq = self._seq + 1
        self._entries[key] = entry = (at, seq, key)
        line = self._line
        if not line or at >= line[-1][0]:
            line.append(entry)
        else:
            heapq.heappush(self._heap, entry)
        if not seq % _LOOK_EVERY and len(line) + len(self._heap) > 2 * len(self._entries):
            self._rebuild()

    def discard(self, key: K) -> None:
        """Forget `key`; no error if it is not here."""
        self._entries.pop(key, None)

    def get(self, key: K) -> float | None:
        """When `key` is due, or None if it is not here."""
        entry = self._entries.get(key)
        return entry[0] if entry else None

    def next_at(self) -> float | None:
        """The earliest time, or None when there is no key."""
        entry = self._first()
        return None if entry is None else entry[0]

    def first(self) -> tuple[float, K] | None:
        """The earliest time and its key, left in place."""
        entry = self._first()
        return None if entry is None else (entry[0], entry[2])

    def pop_due(self, now: float, limit: int | None = None) -> list[K]:
        """Remove and return the keys whose time is `now` or earlier, earliest first.

        Args:
            now: the time, in the unit of `set`.
            limit: keys at most; by default all that are due.
        """
        due: list[K] = []
        entries, line, heap = self._entries, self._line, self._heap
        while len(due) != limit:
            source: deque[tuple[float, int, K]] | list[tuple[float, int, K]] = line
            if heap and (not line or heap[0] < line[0]):
                source = heap
            if not source or source[0][0] > now:
                break
            entry = line.popleft() if source is line else heapq.heappop(heap)
            if entries.get(entry[2]) is entry:
                del entries[entry[2]]
                due.append(entry[2])
        return due

    def keys(self) -> list[K]:
        """Every key, in order of its time."""
        return [entry[2] for entry in sorted(self._entries.values(), key=_time_and_order)]

    def clear(self) -> list[K]:
        """Forget every key; returns them in order of their time."""
        keys = self.keys()
        self._entries.clear()
        self._line.clear()
        self._heap.clear()
        return keys

    def _first(self) -> tuple[float, int, K] | None:
        """The earliest entry, in place, once the leavings before it are gone."""
        entries, line, heap = self._entries, self._line, self._heap
        while line and entries.get(line[0][2]) is not line[0]:
            line.popleft()
        while heap and entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        if heap and (not line or heap[0] < line[0]):
            return heap[0]
        return line[0] if line else None

    def _rebuild(self) -> None:
        entries = self._entries
        self._line = deque(entry for entry in self._line if entries.get(entry[2]) is entry)
        self._heap = [entry for entry in self._heap if entries.get(entry[2]) is entry]
        heapq.heapify(self._heap)


def _time_and_order(entry: tuple[float, int, K]) -> tuple[float, int]:
    return entry[0], entry[1]
