"""The ready messages of one queue, in order of their positions.

A message keeps the position it was given on arrival. New ones come at the tail, so the deque
stays sorted; one that is given back goes to its old place: the head of the deque when that fits
(nearly always), else a heap beside it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar


class Placed(Protocol):
    """What a ready list orders."""

    position: int
    priority: int
    expires_at: float | None


E = TypeVar("E", bound=Placed)


class Ready(Generic[E]):
    """First in, first out, with a way back to the original position."""

    __slots__ = ("_returned", "tail")

    def __init__(self) -> None:
        self.tail: deque[E] = deque()
        """Those that were not given back; to ask this costs less than to ask for all."""
        self._returned: list[tuple[int, E]] = []

    def __len__(self) -> int:
        return len(self.tail) + len(self._returned)

    def __iter__(self) -> Iterator[E]:
        if not self._returned:
            return iter(self.tail)
        entries = [*self.tail, *(entry for _, entry in self._returned)]
        return iter(sorted(entries, key=lambda entry: entry.position))

    def push(self, entry: E) -> None:
        """Add at the tail; its position is higher than any given before."""
        self.tail.append(entry)

    def restore(self, entry: E) -> None:
        """Put back where it was."""
        if not self.tail or entry.position < self.tail[0].position:
            self.tail.appendleft(entry)
        else:
            heapq.heappush(self._returned, (entry.position, entry))

    def heads(self) -> Iterator[E]:
        """The entries that may expire: only a head may (RabbitMQ's classic queues)."""
        if (head := self.peek()) is not None:
            yield head

    def peek(self) -> E | None:
        """The head, left in place."""
        if self._returned and (not self.tail or self._returned[0][0] < self.tail[0].position):
            return self._returned[0][1]
        return self.tail[0] if self.tail else None

    def upcoming(self, most: int) -> Iterator[E]:
        """Up to `most` of those that come next, given back ones left out."""
        return islice(self.tail, most)

    def pop(self) -> E:
        """Remove and return the head.

        Raises:
            IndexError: nothing is ready.
        """
        if self._returned and (not self.tail or self._returned[0][0] < self.tail[0].position):
            return heapq.heappop(self._returned)[1]
        return self.tail.popleft()

    def pop_least(self) -> E:
        """Remove and return what an overflow drops first: the head of the lowest priority."""
        return self.pop()

    def pop_expired(self, now: float) -> E | None:
        """Remove and return a head whose time is over, if there is one."""
        head = self.peek()
        if head is None or head.expires_at is None or head.expires_at > now:
            return None
        return self.pop()

    def drain(self) -> Iterator[E]:
        """Remove one entry after the other, in order."""
        while self:
            yield self.pop()


class PriorityReady(Ready[E]):
    """One ready list a priority, highest first (x-max-priority, and quorum queues)."""

    __slots__ = ("_count", "_levels", "_order")

    def __init__(self) -> None:
        super().__init__()
        self._levels: dict[int, Ready[E]] = {}
        self._order: list[Ready[E]] = []
        """Those of every priority that was ever seen, highest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[E]:
        return chain.from_iterable(self._order)

    def _level(self, priority: int) -> Ready[E]:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Ready()
            self._order = [self._levels[each] for each in sorted(self._levels, reverse=True)]
        return level

    def push(self, entry: E) -> None:
        self._level(entry.priority).push(entry)
        self._count += 1

    def restore(self, entry: E) -> None:
        self._level(entry.priority).restore(entry)
        self._count += 1

    def heads(self) -> Iterator[E]:
        for level in self._order:
            yield from level.heads()

    def peek(self) -> E | None:
        return next(filter(None, (level.peek() for level in self._order)), None)

    def upcoming(self, most: int) -> Iterator[E]:
        return islice(chain.from_iterable(level.upcoming(most) for level in self._order), most)

    def pop(self) -> E:
        return self._pop_of(self._order)

    def pop_least(self) -> E:
        return self._pop_of(reversed(self._order))

    def _pop_of(self, levels: Iterable[Ready[E]]) -> E:
        for level in levels:
            if level:
                self._count -= 1
                return level.pop()
        raise IndexError("nothing is ready")

    def pop_expired(self, now: float) -> E | None:
        for level in reversed(self._order):
            if (entry := level.pop_expired(now)) is not None:
                self._count -= 1
                return entry
        return None
