"""The deferred messages of one queue: found by their due time, and by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

from broker_client.core.ready import Placed
from broker_client.runtime.deadlines import TimedMap, ascending

E = TypeVar("E", bound=Placed)


class Deferred(TimedMap[int, E], Generic[E]):
    """Entries that wait for their time, by their positions, which are their ids."""

    __slots__ = ()

    def add(self, entry: E, due_at: float) -> None:
        """`entry` waits until `due_at`; its position stays as it is for so long."""
        self.put(entry.position, due_at, entry)

    def discard(self, entry: E) -> bool:
        """Take `entry` out; False if it does not wait."""
        return self.pop(entry.position) is not None

    def due_at(self, entry: E) -> float | None:
        """When `entry` is due, or None if it does not wait."""
        return self.at(entry.position)

    def pop_due(self, now: float, limit: int | None = None) -> list[E]:
        """Remove and return up to `limit` entries whose time has come, earliest first."""
        return [entry for _, entry in self.take_due(now, limit)]

    def chosen(self, ids: Iterable[int]) -> list[E]:
        """The entries of these ids that wait, each once, earliest first."""
        return list(self.merged([self.run_of(frozenset(ids))]))

    def known(self, ids: Iterable[int]) -> list[int]:
        """Those of these ids whose entries wait, each once, in no order."""
        return list(filter(self._records.__contains__, frozenset(ids)))

    def run_of(self, ids: Iterable[int]) -> list[tuple[float, int, int, E]]:
        """What waits of these ids, earliest first, for `merged`."""
        return sorted(filter(None, map(self._records.get, ids)))

    def merged(self, runs: Iterable[Sequence[tuple[float, int, int, E]]]) -> Iterator[E]:
        """The entries of `runs`, earliest first: to sort many in steps."""
        return map(_entry, merge(*runs))

    def earliest(self, most: int) -> list[E]:
        """Up to `most` entries, earliest first."""
        records = self._records
        line = (record for record in self._line if records.get(record[2]) is record)
        heap = (record for record in ascending(self._heap) if records.get(record[2]) is record)
        return list(map(_entry, islice(merge(line, heap), most)))

    def entries(self) -> list[E]:
        """All of them, earliest first."""
        return list(map(_entry, sorted(self._records.values())))

    def drain(self) -> Iterator[E]:
        """Remove one entry after the other, in the order in which they came."""
        left = deque(self.take_all().values())
        while left:
            yield left.popleft()[3]


_entry = itemgetter(3)
