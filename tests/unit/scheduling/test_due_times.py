"""Due times of schedules, and missed times."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from broker_client.config import ScheduleConfig
from broker_client.scheduling.due_times import Cron, Regular, due_times, times_to_publish

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: ZoneInfo | None = None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def shown(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%d %H:%M")


@pytest.mark.parametrize("times", [Regular(300.0), Cron("*/5 * * * *", "UTC")])
def test_due_is_at_full_minutes_of_the_clock(times: Regular | Cron) -> None:
    noon = at("2026-01-01T12:00")
    assert times.after(noon - 0.25) == noon
    assert times.after(noon) == noon + 300
    assert times.after(noon + 299.5) == noon + 300
    assert times.latest(noon) == noon
    assert times.latest(noon + 299.5) == noon
    assert times.latest(noon - 0.25) == noon - 300


def test_cron_is_in_its_time_zone_before_and_after_the_clocks_change() -> None:
    nightly = Cron("0 3 * * *", "Europe/Berlin")
    assert nightly.after(at("2026-03-27T12:00")) == at("2026-03-28T02:00")  # 3:00 in winter
    assert nightly.after(at("2026-03-29T12:00")) == at("2026-03-30T01:00")  # 3:00 in summer


def test_cron_in_the_hour_that_is_left_out_is_due_once_and_not_skipped() -> None:
    missing = Cron("30 2 * * *", "Europe/Berlin")  # 2:00 to 3:00 is left out on 29 March 2026
    first = missing.after(at("2026-03-28T12:00", BERLIN))
    assert datetime.fromtimestamp(first, BERLIN).date().isoformat() == "2026-03-29"
    assert missing.after(first) == at("2026-03-30T02:30", BERLIN)


def test_cron_in_the_hour_that_comes_twice_is_due_once() -> None:
    twice = Cron("30 2 * * *", "Europe/Berlin")  # 2:00 to 3:00 comes twice on 25 October 2026
    first = twice.after(at("2026-10-24T12:00", BERLIN))
    assert datetime.fromtimestamp(first, BERLIN).date().isoformat() == "2026-10-25"
    following = datetime.fromtimestamp(twice.after(first), BERLIN)
    assert following.isoformat() == "2026-10-26T02:30:00+01:00"


def a_schedule(missed: str, every: float = 3600.0) -> ScheduleConfig:
    return ScheduleConfig.model_validate(
        {"name": "s", "publication": "p", "every": every, "missed": missed}
    )


@pytest.mark.parametrize(
    ("missed", "now", "expected"),
    [
        ("skip", "2026-01-01T13:00", ["01 13:00"]),
        ("skip", "2026-01-01T13:01", ["01 13:00"]),  # late, by the grace
        ("skip", "2026-01-01T13:02", []),
        ("skip", "2026-01-01T16:00", ["01 16:00"]),
        ("skip", "2026-01-01T16:30", []),
        ("once", "2026-01-01T16:30", ["01 16:00"]),
        ("all", "2026-01-01T16:30", ["01 13:00", "01 14:00", "01 15:00", "01 16:00"]),
        ("all", "2026-01-01T12:59", []),
        ("once", "2026-01-01T11:00", []),  # the clock was set back
        ("all", "2026-01-01T11:00", []),
    ],
)
def test_missed_times_are_published_as_the_schedule_says(
    missed: str, now: str, expected: list[str]
) -> None:
    config = a_schedule(missed)
    last = at("2026-01-01T12:00")
    found = times_to_publish(config, due_times(config), last, at(now))
    assert [shown(time) for time in found] == expected


def test_all_that_were_missed_in_a_year_take_no_memory() -> None:
    config = a_schedule("all", every=1.0)
    found = times_to_publish(config, due_times(config), 0.0, 31_536_000.0)
    assert list(islice(found, 3)) == [1.0, 2.0, 3.0]
