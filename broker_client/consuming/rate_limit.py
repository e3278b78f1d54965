"""A limit on the number of messages started per time."""

from __future__ import annotations

from collections import deque


class RateLimit:
    """At most `count` in any period of `seconds`."""

    def __init__(self, count: int, seconds: float) -> None:
        self._seconds = seconds
        self._taken: deque[float] = deque(maxlen=count)

    def take(self, now: float) -> float:
        """Take one at loop time `now`; 0, or the seconds to wait if none is left."""
        taken = self._taken
        if len(taken) == taken.maxlen:
            wait = taken[0] + self._seconds - now
            if wait > 0:
                return wait
        taken.append(now)
        return 0.0
