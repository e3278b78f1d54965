"""Model of schedules."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from broker_client.config.values import Duration, Settings


def _known_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {value!r}; write a name such as UTC or Europe/Berlin (where the "
            "system has no time zones, install the package tzdata)"
        ) from error
    return value


class ScheduleConfig(Settings):
    """Publishes a message at regular times, once for all processes that have the schedule. Needs
    the extra `schedules` for `cron`."""

    name: str
    """Key of the schedule. Processes whose schedules have the same name, on the same vhost, share
    it."""
    publication: str
    """Name of the publication; or the name of a queue or exchange, such as `/orders`."""
    every: Annotated[Duration, Field(ge=1.0)] | None = None
    """Time between messages, 1s at least, counted from 1970 in UTC: `5m` publishes at 12:00,
    12:05 and so on, `1d` at midnight UTC. Either this or `cron`."""
    cron: str | None = None
    """Cron expression of five fields, as Debian's cron reads it, or of six with the seconds
    first."""
    timezone: Annotated[str, AfterValidator(_known_zone)] = "UTC"
    """Time zone of `cron`."""
    content: Any = None
    """Content of the messages; when left out, a mapping of `schedule` (its name) and `time`."""
    routing_key: str | None = None
    """Routing key; the publication's when left out."""
    missed: Literal["skip", "once", "all"] = "skip"
    """What to publish for times at which no process was running or the broker was unreachable:
    `skip` nothing, `once` one message for all of them, `all` one for each."""
    grace: Duration = 60.0
    """With `skip`: how late a message may be before it counts as missed."""
    queue_type: Literal["classic", "quorum"] = "classic"
    """Type of the queue `broker_client.schedule.NAME`, in which the schedule is kept; `quorum` on
    a cluster."""

    @model_validator(mode="after")
    def _has_its_times(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise ValueError("write either every or cron")
        if self.cron is None and self.timezone != "UTC":
            raise ValueError("timezone is for cron; every counts in UTC")
        if self.cron is not None:
            _check_cron(self.cron)
        return self


def _check_cron(expression: str) -> None:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        return  # the lint says which extra it needs
    from datetime import UTC, datetime

    try:
        next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration) as error:
        reason = str(error) or "it is never due"
        raise ValueError(
            f"cron {expression!r} cannot be read: {reason}; write five fields, such as '0 3 * * *'"
        ) from error
