"""A clock for tests."""

from __future__ import annotations


class ManualClock:
    """A clock that moves only when told, for tests and simulations."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Move `seconds` (>= 0) ahead and return the new time."""
        if seconds < 0:
            raise ValueError(f"time does not go back: advance({seconds})")
        self._now += seconds
        return self._now
