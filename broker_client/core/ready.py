"""The ready messages of one queue, in order of their positions.

A message keeps the position it was given on arrival. New ones come at the tail, so the deque
stays sorted; one that is given back goes to its old place: the head of the deque when that fits
(nearly always), else a heap beside it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
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

    __slots__ = ("_returned", "_tail")

    def __init__(self) -> None:
        self._tail: deque[E] = deque()
        self._returned: list[tuple[int, E]] = []

    def __len__(self) -> int:
        return len(self._tail) + len(self._returned)

    def __iter__(self) -> Iterator[E]:
        entries = [*self._tail, *(entry for _, entry in self._returned)]
        return iter(sorted(entries, key=lambda entry: entry.position))

    def push(self, entry: E) -> None:
        """Add at the tail; its position is higher than any given before."""
        self._tail.append(entry)

    def restore(self, entry: E) -> None:
        """Put back where it was."""
        if not self._tail or entry.position < self._tail[0].position:
            self._tail.appendleft(entry)
        else:
            heapq.heappush(self._returned, (entry.position, entry))

    def heads(self) -> Iterator[E]:
        """The entries that may expire: only a head may (RabbitMQ's classic queues)."""
        if (head := self.peek()) is not None:
            yield head

    def peek(self) -> E | None:
        """The head, left in place."""
        if self._returned and (not self._tail or self._returned[0][0] < self._tail[0].position):
            return self._returned[0][1]
        return self._tail[0] if self._tail else None

    def upcoming(self, most: int) -> Iterator[E]:
        """Up to `most` of those that come next, given back ones left out."""
        return islice(self._tail, most)

    def pop(self) -> E:
        """Remove and return the head.

        Raises:
            IndexError: nothing is ready.
        """
        if self._returned and (not self._tail or self._returned[0][0] < self._tail[0].position):
            return heapq.heappop(self._returned)[1]
        return self._tail.popleft()

    def pop_least(self) -> E:
        """Remove and return what an overflow drops first: the head of the lowest priority."""
        return self.pop()

    def pop_expired(self, now: float) -> E | None:
        """Remove and return a head whose time is over, if there is one."""
        head = self.peek()
        if head is None or head.expires_at is None or head.expires_at > now:
            return None
        return self.pop()

    def clear(self) -> list[E]:
        """Remove everything; returns it in order."""
        entries = list(self)
        self._tail.clear()
        self._returned.clear()
        return entries


class PriorityReady(Ready[E]):
    """One ready list a priority, highest first (x-max-priority)."""

    __slots__ = ("_levels",)

    def __init__(self, max_priority: int) -> None:
        super().__init__()
        self._levels: list[Ready[E]] = [Ready() for _ in range(max_priority + 1)]

    def __len__(self) -> int:
        return sum(len(level) for level in self._levels)

    def __iter__(self) -> Iterator[E]:
        for level in reversed(self._levels):
            yield from level

    def push(self, entry: E) -> None:
        self._levels[entry.priority].push(entry)

    def restore(self, entry: E) -> None:
        self._levels[entry.priority].restore(entry)

    def heads(self) -> Iterator[E]:
        for level in self._levels:
            yield from level.heads()

    def peek(self) -> E | None:
        return next(filter(None, (level.peek() for level in reversed(self._levels))), None)

    def upcoming(self, most: int) -> Iterator[E]:
        levels = (level.upcoming(most) for level in reversed(self._levels))
        return islice(chain.from_iterable(levels), most)

    def pop(self) -> E:
        for level in reversed(self._levels):
            if level:
                return level.pop()
        raise IndexError("nothing is ready")

    def pop_least(self) -> E:
        for level in self._levels:
            if level:
                return level.pop()
        raise IndexError("nothing is ready")

    def pop_expired(self, now: float) -> E | None:
        for level in self._levels:
            if (entry := level.pop_expired(now)) is not None:
                return entry
        return None

    def clear(self) -> list[E]:
        return [entry for level in reversed(self._levels) for entry in level.clear()]
