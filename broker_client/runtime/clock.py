"""The time source: steady in production, moved by hand in tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the node gets `now` from."""

    def now(self) -> float:
        """Seconds since the Unix epoch, never going back."""
        ...


def steady_time() -> float:
    """Seconds that only go ahead, those included in which the machine was suspended.

    Linux's monotonic clock stands still meanwhile, its boot-time clock does not.
    """
    return time.clock_gettime(_BOOTTIME) if _BOOTTIME is not None else time.monotonic()


_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """Wall time as it was at the start, plus steady time since.

    Deadlines must not jump when an administrator sets the clock, yet a due time must mean the
    same after a restart: one number serves both.
    """

    def __init__(self) -> None:
        self._offset = time.time() - steady_time()

    def now(self) -> float:
        if _BOOTTIME is None:
            return self._offset + time.monotonic()
        return self._offset + time.clock_gettime(_BOOTTIME)  # `steady_time`, at half the price


class WallClock:
    """The time of day, which an administrator may set."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()
