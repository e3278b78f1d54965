"""Deliveries handed out and not yet settled: what they are and when each must be back.

One ledger belongs to one channel, so a delivery can only be settled by its owner: another
channel's tag is simply not in here.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from broker_client.deadlines import Deadlines
from broker_client.errors import StaleDeliveryError

E = TypeVar("E")

_REMEMBERED = 1_000  # timed-out tags kept one by one; older ones are kept as a bound


class InFlightLedger(Generic[E]):
    """Which deliveries of a channel are out, by delivery tag.

    The entry and its deadline change together in every method: a delivery is either wholly in
    here or not at all. Times are passed in; nothing here reads a clock.
    """

    __slots__ = ("_deadlines", "_entries", "_forgotten", "_timed_out", "last_tag")

    def __init__(self) -> None:
        self._entries: dict[int, E] = {}  # in order of their tags, since tags only rise
        self._deadlines: Deadlines[int] = Deadlines()
        self._timed_out: dict[int, None] = {}
        self._forgotten = 0
        self.last_tag = 0
        """The tag issued last; AMQP 0-9-1 §1.1: tags start at 1 and belong to the channel."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, tag: int) -> bool:
        return tag in self._entries

    def get(self, tag: int) -> E | None:
        """The entry in flight under `tag`, or None."""
        return self._entries.get(tag)

    def issue(self) -> int:
        """The next tag, for a delivery that is settled as it is sent."""
        self.last_tag += 1
        return self.last_tag

    def start(self, entry: E, deadline: float | None) -> int:
        """Take `entry` in under a new tag, due back at `deadline` (None: never)."""
        self.last_tag = tag = self.last_tag + 1
        self._entries[tag] = entry
        if deadline is not None:
            self._deadlines.set(tag, deadline)
        return tag

    def settle(self, tag: int) -> E | None:
        """Take the delivery out; None when it is not in flight."""
        entry = self._entries.pop(tag, None)
        if entry is not None:
            self._deadlines.discard(tag)
        return entry

    def settle_through(self, tag: int) -> list[E]:
        """Take out every delivery up to and with `tag`, in order."""
        tags = []
        for each in self._entries:
            if each > tag:
                break
            tags.append(each)
        for each in tags:
            self._deadlines.discard(each)
        return [self._entries.pop(each) for each in tags]

    def settle_all(self) -> list[E]:
        """Take out everything, in order."""
        entries = list(self._entries.values())
        self._entries.clear()
        self._deadlines.clear()
        return entries

    def move(self, tag: int, deadline: float) -> None:
        """Give a delivery another deadline.

        Raises:
            StaleDeliveryError: it is not in flight.
        """
        if tag not in self._entries:
            raise StaleDeliveryError(tag, "")
        self._deadlines.set(tag, deadline)

    def expire(self, now: float) -> list[tuple[int, E]]:
        """Take out and return every delivery that is due back, earliest first."""
        due = self._deadlines.pop_due(now)
        for tag in due:
            self._timed_out[tag] = None
        while len(self._timed_out) > _REMEMBERED:
            oldest = next(iter(self._timed_out))
            del self._timed_out[oldest]
            self._forgotten = max(self._forgotten, oldest)
        return [(tag, self._entries.pop(tag)) for tag in due]

    def overdue(self, now: float) -> list[E]:
        """Every delivery that is due back, left in flight. Looks at each one there is."""
        deadlines = self._deadlines
        return [
            entry
            for tag, entry in self._entries.items()
            if (at := deadlines.get(tag)) is not None and at <= now
        ]

    def forgives(self, tag: int) -> bool:
        """Take note of a late settlement: True when `tag` had timed out (parity X-02).

        Each time-out is forgiven once. What was forgotten is forgiven always: closing the channel
        of a slow consumer is worse than overlooking one that settles twice.
        """
        if tag in self._timed_out:
            del self._timed_out[tag]
            return True
        return 0 < tag <= self._forgotten and tag not in self._entries

    def next_deadline(self) -> float | None:
        """When the earliest delivery is due back."""
        return self._deadlines.next_at()
