"""When a schedule is due: pure functions of the time, in seconds since the Unix epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from broker_client.config.scheduling import ScheduleConfig


class DueTimes(Protocol):
    """The times of one schedule."""

    def after(self, time: float) -> float:
        """The first one later than `time`."""
        ...

    def latest(self, time: float) -> float:
        """The last one that is not later than `time`."""
        ...


def due_times(config: ScheduleConfig) -> DueTimes:
    """The times that `config` asks for."""
    if config.every is not None:
        return Regular(config.every)
    assert config.cron is not None
    return Cron(config.cron, config.timezone)


class Regular:
    """Every so many seconds, counted from the epoch: the same in every process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def after(self, time: float) -> float:
        """See `DueTimes`."""
        return (math.floor(time / self._seconds) + 1) * self._seconds

    def latest(self, time: float) -> float:
        """See `DueTimes`."""
        return math.floor(time / self._seconds) * self._seconds


class Cron:
    """A cron expression in a time zone. Where clocks are put back or forward, as Debian's cron."""

    def __init__(self, expression: str, zone: str) -> None:
        from cronsim import CronSim  # the extra `schedules`

        self._sim = CronSim
        self._expression = expression
        self._zone = ZoneInfo(zone)

    def after(self, time: float) -> float:
        """See `DueTimes`."""
        start = datetime.fromtimestamp(math.floor(time), self._zone)
        return float(next(self._sim(self._expression, start)).timestamp())

    def latest(self, time: float) -> float:
        """See `DueTimes`."""
        start = datetime.fromtimestamp(math.floor(time) + 1, self._zone)
        return float(next(self._sim(self._expression, start, reverse=True)).timestamp())


def times_to_publish(
    config: ScheduleConfig, due: DueTimes, last: float, now: float
) -> Iterator[float]:
    """The times to publish a message for, when `last` was the one before, and it is `now`.

    Args:
        config: says what to do with times that were missed.
        due: all times of the schedule.
        last: the last time that was dealt with.
        now: the time.
    """
    following = due.after(last)
    if following > now:
        return
    if config.missed == "all":
        while following <= now:
            yield following
            following = due.after(following)
        return
    latest = max(due.latest(now), following)
    if config.missed == "once" or now - latest <= config.grace:
        yield latest
