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

    __slots__ = ("_works", "begun", "ended")

    def __init__(self) -> None:
        self._works: deque[Iterator[int]] = deque()
        self.begun: int = 0
        """Number of works so far."""
        self.ended: int = 0
        """How many of them are done; they end in the order in which they began."""

    @property
    def is_pending(self) -> bool:
        """True while there is something left to do."""
        return bool(self._works)

    def begin(self, work: Iterator[int]) -> None:
        """Do the first step of `work`, unless other work is before it.

        Args:
            work: does something each time that it is asked, and returns what that has cost; see
                `STEP`.
        """
        self.begun += 1
        self._works.append(work)
        if len(self._works) == 1:
            self.proceed()

    def proceed(self) -> None:
        """Do one step."""
        spent = 0
        while self._works:
            for cost in self._works[0]:
                spent += cost
                if spent >= STEP:
                    return
            self._works.popleft()
            self.ended += 1
