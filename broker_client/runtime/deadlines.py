"""Keys with a time each, earliest first; in-flight deliveries, deferred messages and
unconfirmed publishes all wait in one of these."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from operator import itemgetter
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T", bound=tuple[Any, ...])

NEVER = float("inf")
_FEW = 64  # stale records that are tolerated; and additions between two checks of their number


class TimedMap(Generic[K, V]):
    """A map whose keys have a time each, in a line where these come in order, else in a heap.

    Nearly all times come in order: keys that wait equally long end in the order in which they
    began. Such a record is appended to a deque, and leaves it at the front, in constant time
    however many there are; only what is earlier than the last in line goes to the heap beside it.

    Map, line and heap share one tuple per key. Removing a key that is not the first in line leaves
    its record, now stale, in line or heap; reading the front skips stale records. Once more than
    half of the records, and a few, are stale, line and heap are rebuilt: the amortised cost is
    constant, and memory stays within twice the live keys.

    Measured against `heapq` and a timing wheel: `bench/core/heaps.py`, figures in docs/core.md.
    """

    __slots__ = ("_heap", "_line", "_records", "_seq")

    def __init__(self) -> None:
        self._records: dict[K, tuple[float, int, K, V]] = {}
        self._line: deque[tuple[float, int, K, V]] = deque()
        self._heap: list[tuple[float, int, K, V]] = []
        self._seq = 0  # keeps equal times in order of arrival, and keys uncompared

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: K) -> bool:
        return key in self._records

    def put(self, key: K, at: float, value: V) -> None:
        """Add `key`, due at `at` or `NEVER`; or change it, where it stands among the keys."""
        self._seq = seq = self._seq + 1
        self._records[key] = record = (at, seq, key, value)
        line = self._line
        if not line or at >= line[-1][0]:
            if at != NEVER:
                line.append(record)
        else:
            heapq.heappush(self._heap, record)
        if not seq % _FEW and len(line) + len(self._heap) > 2 * len(self._records) + _FEW:
            self._rebuild()

    def pop(self, key: K) -> V | None:
        """Take `key` out and return its value; None if it is not here."""
        record = self._records.pop(key, None)
        if record is None:
            return None
        line = self._line
        if line and line[0] is record:
            line.popleft()
        elif len(line) + len(self._heap) > 2 * len(self._records) + _FEW:
            self._rebuild()
        return record[3]

    def record(self, key: K) -> tuple[float, int, K, V] | None:
        """The time, sequence number, key and value of `key`, or None if it is not here."""
        return self._records.get(key)

    def value(self, key: K) -> V | None:
        """The value of `key`, or None if it is not here."""
        record = self._records.get(key)
        return None if record is None else record[3]

    def at(self, key: K) -> float | None:
        """When `key` is due, or None if it is not here."""
        record = self._records.get(key)
        return None if record is None else record[0]

    def items(self) -> Iterator[tuple[K, V]]:
        """Every key and its value, in the order in which they were added."""
        return ((key, record[3]) for key, record in self._records.items())

    def added(self) -> list[K]:
        """Every key, in the order in which they were added."""
        return list(self._records)

    def latest(self) -> Iterator[K]:
        """Every key, the one added last first."""
        return reversed(self._records)

    def next_at(self) -> float | None:
        """The earliest time, or None when no key is ever due."""
        record = self._first()
        return None if record is None else record[0]

    def take_due(self, now: float, limit: int | None = None) -> list[tuple[K, V]]:
        """Remove and return the keys whose time is `now` or earlier, and their values.

        Args:
            now: the time, in the unit of `put`.
            limit: keys at most; by default all that are due.
        """
        due: list[tuple[K, V]] = []
        records, line, heap = self._records, self._line, self._heap
        while len(due) != limit:
            source: deque[tuple[float, int, K, V]] | list[tuple[float, int, K, V]] = line
            if heap and (not line or heap[0] < line[0]):
                source = heap
            if not source or source[0][0] > now:
                break
            record = line.popleft() if source is line else heapq.heappop(heap)
            if records.get(record[2]) is record:
                del records[record[2]]
                due.append(record[2:])
        return due

    def take_all(self) -> dict[K, tuple[float, int, K, V]]:
        """Remove every key; returns their records (see `record`) in the order in which they were
        added. It looks into none of them, so that this takes little time."""
        taken, self._records = self._records, {}
        self._line.clear()
        self._heap.clear()
        return taken

    def take_all_but(self, last: int) -> dict[K, tuple[float, int, K, V]]:
        """As `take_all`, but leave the `last` keys that were added last."""
        taken = self.take_all()
        left = [taken.popitem()[1] for _ in range(last)]
        left.reverse()
        self._records = {record[2]: record for record in left}
        self._line = deque(sorted(record for record in left if record[0] != NEVER))
        return taken

    def _first(self) -> tuple[float, int, K, V] | None:
        """The earliest record, in place, once the stale ones before it are removed."""
        records, line, heap = self._records, self._line, self._heap
        while line and records.get(line[0][2]) is not line[0]:
            line.popleft()
        while heap and records.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        if heap and (not line or heap[0] < line[0]):
            return heap[0]
        return line[0] if line else None

    def _rebuild(self) -> None:
        records = self._records
        self._line = deque(record for record in self._line if records.get(record[2]) is record)
        self._heap = [record for record in self._heap if records.get(record[2]) is record]
        heapq.heapify(self._heap)


class Deadlines(TimedMap[K, None]):
    """The same for keys without values."""

    __slots__ = ()

    def set(self, key: K, at: float) -> None:
        """Add `key`, or move it if it is here already."""
        self.put(key, at, None)

    def discard(self, key: K) -> None:
        """Forget `key`; no error if it is not here."""
        self.pop(key)

    def get(self, key: K) -> float | None:
        """When `key` is due, or None if it is not here."""
        return self.at(key)

    def first(self) -> tuple[float, K] | None:
        """The earliest time and its key, left in place."""
        record = self._first()
        return None if record is None else (record[0], record[2])

    def pop_due(self, now: float, limit: int | None = None) -> list[K]:
        """Remove and return the keys whose time is `now` or earlier, earliest first."""
        return [key for key, _ in self.take_due(now, limit)]

    def keys(self) -> list[K]:
        """Every key, in order of its time."""
        return [record[2] for record in sorted(self._records.values(), key=_time_and_order)]


def ascending(heap: list[T]) -> Iterator[T]:
    """The items of a heap from the smallest up, left in place: few of many are had quickly."""
    candidates = [(item, 0) for item in heap[:1]]
    while candidates:
        item, at = heapq.heappop(candidates)
        yield item
        for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
            heapq.heappush(candidates, (heap[child], child))


_time_and_order = itemgetter(0, 1)
