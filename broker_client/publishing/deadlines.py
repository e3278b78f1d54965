"""The deadlines of publishes that have not ended."""

from __future__ import annotations

import heapq
from collections import deque

from broker_client.publication import ENDED, Publication

_FEW = 64  # ended ones that are tolerated


class PublishDeadlines:
    """Publications in a line where their deadlines come in order, else in a heap.

    Most wait equally long, so most are appended to the line, and leave it at the front. To end a
    publication costs nothing here: it says itself that it has ended, and leaves once it is in
    front. Once more than half of all that are here, and a few, have ended, those are removed.
    """

    __slots__ = ("_heap", "_line", "_seq")

    def __init__(self) -> None:
        self._line: deque[Publication] = deque()
        self._heap: list[tuple[float, int, Publication]] = []
        self._seq = 0  # keeps equal deadlines in order, and publications uncompared

    def __len__(self) -> int:
        """Those that have ended and were not let go of included."""
        return len(self._line) + len(self._heap)

    def put(self, publication: Publication) -> None:
        """Add `publication`, which has a deadline."""
        line = self._line
        if not line or publication.deadline >= line[-1].deadline:
            line.append(publication)
        else:
            self._seq += 1
            heapq.heappush(self._heap, (publication.deadline, self._seq, publication))

    def forget_ended(self, unended: int) -> None:
        """Let go of publications that have ended.

        Args:
            unended: how many have not, or more.
        """
        line, heap = self._line, self._heap
        while line and line[0].state is ENDED:
            line.popleft()
        if len(self) > 2 * unended + _FEW:
            self._line = deque(each for each in line if each.state is not ENDED)
            self._heap = [each for each in heap if each[2].state is not ENDED]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Publication]:
        """Remove and return those whose deadline is `now` or earlier, earliest first."""
        due: list[Publication] = []
        while (at := self.next_at()) is not None and at <= now:
            line, heap = self._line, self._heap
            if line and line[0].deadline <= at:
                due.append(line.popleft())
            else:
                due.append(heapq.heappop(heap)[2])
        return due

    def next_at(self) -> float | None:
        """The earliest deadline of one that has not ended; None where there is none."""
        line, heap = self._line, self._heap
        while line and line[0].state is ENDED:
            line.popleft()
        while heap and heap[0][2].state is ENDED:
            heapq.heappop(heap)
        if line and heap:
            return min(line[0].deadline, heap[0][0])
        return line[0].deadline if line else heap[0][0] if heap else None
