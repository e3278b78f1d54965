"""An index of queues and channels by their next due time."""

from __future__ import annotations

from broker_client.core.queue import NEVER, ChannelState, Queue
from broker_client.runtime.deadlines import Deadlines

Owner = Queue | ChannelState


class Schedule:
    """The earliest due time of every owner that has one.

    A noted time may be too early, since what was due then may have gone; it is never too late.
    So a settlement costs nothing here, and `next_deadline` looks again before it answers. An idle
    queue is not in here at all: ten thousand of them cost as much as none.
    """

    __slots__ = ("_index",)

    def __init__(self) -> None:
        self._index: Deadlines[Owner] = Deadlines()

    def note(self, owner: Owner, at: float) -> None:
        """Something of `owner` is due at `at`."""
        if at < owner.due_at:
            owner.due_at = at
            self._index.set(owner, at)

    def look_again(self, owner: Owner) -> None:
        """Note when `owner` is really due next."""
        at = owner.next_due()
        if at is None:
            self.forget(owner)
        elif at != owner.due_at:
            owner.due_at = at
            self._index.set(owner, at)

    def forget(self, owner: Owner) -> None:
        """Remove the deadlines of `owner`."""
        owner.due_at = NEVER
        self._index.discard(owner)

    def next_deadline(self) -> float | None:
        """When something is due, or None; exact."""
        while (first := self._index.first()) is not None:
            at, owner = first
            if owner.next_due() == at:
                return at
            self.look_again(owner)
        return None

    def pop_due(self, now: float) -> list[Owner]:
        """Take out the owners whose noted time has come; `look_again` at each when done."""
        owners = self._index.pop_due(now)
        for owner in owners:
            owner.due_at = NEVER
        return owners

    def take_due(self, now: float, most: int) -> list[Owner]:
        """Take out up to `most` owners that have something due, longest overdue first.

        Unlike `pop_due` it passes over those whose noted time was too early, so that these do
        not use up a selection.
        """
        owners: list[Owner] = []
        while len(owners) < most and (first := self._index.first()) is not None:
            at, owner = first
            if at > now:
                break
            due = owner.next_due()
            if due is None or due > now:
                self.look_again(owner)
                continue
            self.forget(owner)
            owners.append(owner)
        return owners
