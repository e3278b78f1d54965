"""Work that is longer than one command may take: done a step at a time, in the order it began."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

STEP = 1_000
"""What one step may cost, where to drop a message costs 1."""


class LongWork:
    """What commands have begun and not finished.

    A command changes at once what others can see of it, as far as that takes no time, and leaves
    the rest here. Where there is little to do it is done before the command ends. Whoever runs the
    engine calls `proceed` until nothing is pending, and answers the command only then.
    """

    __slots__ = ("_works", "begun", "ended", "now")

    def __init__(self) -> None:
        self._works: deque[Iterator[int]] = deque()
        self.begun: int = 0
        """Number of works so far."""
        self.ended: int = 0
        """How many of them are done; they end in the order in which they began."""
        self.now: float = 0.0
        """The time of the present step."""

    @property
    def is_pending(self) -> bool:
        """True while there is something left to do."""
        return bool(self._works)

    def begin(self, work: Iterator[int], now: float = 0.0) -> None:
        """Do the first step of `work`, unless other work is before it.

        Args:
            work: does something each time that it is asked, and returns what that has cost; see
                `STEP`.
            now: the time, if the work asks for it.
        """
        self.begun += 1
        self._works.append(work)
        if len(self._works) == 1:
            self.proceed(now)

    def finish(self) -> None:
        """Do all of it at once, for a command whose answer depends on it."""
        while self._works:
            self.proceed(self.now)

    def proceed(self, now: float) -> None:
        """Do one step, at the time `now`."""
        self.now = max(self.now, now)
        spent = 0
        while self._works:
            for cost in self._works[0]:
                spent += cost
                if spent >= STEP:
                    return
            self._works.popleft()
            self.ended += 1
