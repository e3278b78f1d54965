"""Deliveries in flight, and their deadlines.

One ledger belongs to one channel, so a delivery can only be settled by its owner: another
channel's tag is simply not in here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

from broker_client.errors import StaleDeliveryError
from broker_client.runtime.deadlines import NEVER, TimedMap

E = TypeVar("E")

_REMEMBERED = 1_000  # lapsed deliveries kept one by one; older ones are kept as a bound
_MANY = 1_000  # deliveries that are not settled one by one


class TakenDeliveries(Collection[E]):
    """Many deliveries that were taken out of a ledger at once, in order of their tags.

    To take them looks at none of them: that is left to who has them.
    """

    __slots__ = ("_records", "_tags")

    def __init__(self, records: dict[int, tuple[float, int, int, E]]) -> None:
        self._records = records
        self._tags: Iterator[int] | None = None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[E]:
        return (record[3] for record in self._records.values())

    def __contains__(self, entry: object) -> bool:
        return any(each is entry for each in self)

    def popleft(self) -> E:
        """Remove and return the first; after this, `pop` is not to be called."""
        if self._tags is None:
            self._tags = iter(list(self._records))  # a dict walks over those deleted at its front
        return self._records.pop(next(self._tags))[3]

    def pop(self) -> E:
        """Remove and return the last; after this, `popleft` is not to be called."""
        return self._records.popitem()[1][3]


class InFlightLedger(Generic[E]):
    """The deliveries of a channel in flight, by delivery tag.

    The entry and its deadline are one record of one map, so they cannot disagree: a delivery is
    either wholly in here or not at all. Times are passed in; nothing here reads a clock.
    """

    __slots__ = ("_first", "_flying", "_forgotten", "_lapsed", "get", "last_tag", "settle")

    def __init__(self) -> None:
        self._flying: TimedMap[int, E] = TimedMap()  # in order of their tags, since tags only rise
        self.get: Callable[[int], E | None] = self._flying.value
        """Returns the entry in flight under a tag, or None."""
        self.settle: Callable[[int], E | None] = self._flying.pop
        """Takes the delivery of a tag out; returns None when it is not in flight."""
        self._lapsed: dict[int, E] = {}
        self._forgotten = 0
        self._first = 1
        """No tag below it is in flight."""
        self.last_tag: int = 0
        """The tag issued last; AMQP 0-9-1 §1.1: tags start at 1 and belong to the channel."""

    def __len__(self) -> int:
        return len(self._flying)

    def __contains__(self, tag: int) -> bool:
        return tag in self._flying

    def issue(self) -> int:
        """The next tag, for a delivery that is settled as it is sent."""
        self.last_tag += 1
        return self.last_tag

    def start(self, entry: E, deadline: float | None) -> int:
        """Take `entry` in under a new tag, due back at `deadline` (None: never)."""
        self.last_tag = tag = self.last_tag + 1
        self._flying.put(tag, NEVER if deadline is None else deadline, entry)
        return tag

    def settle_through(self, tag: int) -> list[E] | TakenDeliveries[E]:
        """Take out every delivery up to and with `tag`, in order."""
        flying = self._flying
        last = min(tag, self.last_tag)
        # Not by iteration: a dict walks over every key deleted at its front, each time again.
        tags: Sequence[int] = range(self._first, last + 1)
        self._first = max(self._first, last + 1)
        count = len(tags)
        if count > len(flying):  # most of them are settled already
            tags = list(takewhile(lambda each: each <= last, flying.added()))
            count = len(tags)
        if count > _MANY and len(flying) - count < 2 * count:
            above = sum(1 for _ in takewhile(lambda each: each > last, flying.latest()))
            return TakenDeliveries(flying.take_all_but(above))
        pop = flying.pop
        settled = []
        for each in tags:
            entry = pop(each)
            if entry is not None:
                settled.append(entry)
        return settled

    def settle_all(self) -> list[E] | TakenDeliveries[E]:
        """Take out everything, in order."""
        taken = TakenDeliveries(self._flying.take_all())
        return taken if len(taken) > _MANY else list(taken)

    def extend(self, tag: int, deadline: float) -> float:
        """Give a delivery more time, never less; returns its deadline from now on.

        Raises:
            StaleDeliveryError: it is not in flight.
        """
        record = self._flying.record(tag)
        if record is None:
            raise StaleDeliveryError(tag, "")
        if deadline <= record[0]:
            return record[0]
        self._flying.put(tag, deadline, record[3])
        return deadline

    def expire(self, now: float, limit: int | None = None) -> list[tuple[int, E]]:
        """Take out and return the deliveries that are due back, earliest first.

        Args:
            now: the time, in seconds.
            limit: deliveries at most; by default all that are due.
        """
        due = self._flying.take_due(now, limit)
        for tag, entry in due:
            self._lapse(tag, entry)
        return due

    def revoke(self, tags: Iterable[int], wanted: Callable[[E], bool]) -> list[E]:
        """Take out those of `tags` that are in flight and `wanted`, as if they had timed out."""
        revoked = []
        for tag in tags:
            entry = self.get(tag)
            if entry is not None and wanted(entry):
                self._flying.pop(tag)
                self._lapse(tag, entry)
                revoked.append(entry)
        return revoked

    def _lapse(self, tag: int, entry: E) -> None:
        self._lapsed[tag] = entry
        if len(self._lapsed) > _REMEMBERED:
            oldest = next(iter(self._lapsed))
            del self._lapsed[oldest]
            self._forgotten = max(self._forgotten, oldest)

    def overdue(self, now: float) -> list[E]:
        """Every delivery that is due back, left in flight. Looks at each one there is."""
        at = self._flying.at
        return [entry for tag, entry in self._flying.items() if (at(tag) or NEVER) <= now]

    def lapsed(self, tag: int) -> E | None:
        """The entry that was in flight under `tag` until it was taken back from its consumer."""
        return self._lapsed.get(tag)

    def forgives(self, tag: int) -> bool:
        """Take note of a late settlement: True when `tag` had been taken back.

        Each is forgiven once. What was forgotten is forgiven always: closing the channel of a
        slow consumer is worse than overlooking one that settles twice.
        """
        if self._lapsed.pop(tag, None) is not None:
            return True
        return 0 < tag <= self._forgotten and tag not in self._flying

    def deadline(self, tag: int) -> float | None:
        """When the delivery is due back; None where never."""
        at = self._flying.at(tag)
        return None if at == NEVER else at

    def tags(self) -> list[int]:
        """The tag of every delivery in flight, in order."""
        return self._flying.added()

    def entries(self) -> Iterator[E]:
        """Every delivery in flight, in order of the tags."""
        return (entry for _, entry in self._flying.items())

    def items(self) -> Iterator[tuple[int, E]]:
        """Every delivery in flight with its tag, in order of the tags."""
        return self._flying.items()

    def next_deadline(self) -> float | None:
        """When the earliest delivery is due back."""
        return self._flying.next_at()
