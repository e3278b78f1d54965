"""The demo reports numbers that do not add up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from examples import flights
from examples.flights import Flight, Tally, id_of, is_late, read_flights


def a_flight(number: int, **changes: Any) -> Flight:
    flight: Flight = {
        "time_hour": "2013-01-01T10:00:00Z",
        "carrier": "UA",
        "flight": number,
        "origin": "EWR",
        "dest": "IAH",
        "dep_time": 517,
        "dep_delay": 2,
    }
    return {**flight, **changes}


def a_tally() -> Tally:
    """Three flights handled correctly: on time, late, and never departed."""
    three = [
        a_flight(1),
        a_flight(2, dep_delay=61),
        a_flight(3, dep_time=None, dep_delay=None),
    ]
    tally = Tally("embedded://", {id_of(flight): flight for flight in three})
    one, two, never = tally.flights
    tally.published = dict.fromkeys(tally.flights, 0.0)
    tally.confirmed = set(tally.flights)
    tally.checked = set(tally.flights)
    tally.handled = {one, two}
    tally.late = {two}
    tally.dead = {never}
    tally.retried = {(never, 1), (never, 2)}
    return tally


def test_counts_that_add_up_are_no_problem() -> None:
    tally = a_tally()
    assert tally.is_complete
    assert tally.problems() == []
    assert tally.result() == {
        "published": 3,
        "confirmed": 3,
        "returned": 0,
        "handled": 2,
        "retried": 2,
        "dead_lettered": 1,
        "lost": 0,
        "seconds": round(tally.ended - tally.started, 2),
    }


def lose_one(tally: Tally) -> None:
    tally.handled.pop()


def miss_a_confirm(tally: Tally) -> None:
    tally.confirmed.pop()


def return_one(tally: Tally) -> None:
    tally.returned.add("x")


def skip_a_retry(tally: Tally) -> None:
    tally.retried.pop()


def overlook_a_late_one(tally: Tally) -> None:
    tally.late.clear()


def bury_a_good_one(tally: Tally) -> None:
    tally.dead.add(next(iter(tally.handled)))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lose_one, "1 flights were lost, not 0."),
        (miss_a_confirm, "2 flights were confirmed, not 3."),
        (return_one, "1 flights were returned, not 0."),
        (skip_a_retry, "1 retries were made, not 2."),
        (overlook_a_late_one, "0 late flights were counted, not 1."),
        (bury_a_good_one, "2 flights were dead-lettered, not 1."),
    ],
)
def test_count_that_is_wrong_is_named(spoil: Callable[[Tally], None], sentence: str) -> None:
    tally = a_tally()
    spoil(tally)
    assert sentence in tally.problems()


def test_publication_that_failed_is_named_with_its_reason() -> None:
    tally = a_tally()
    key = next(iter(tally.flights))
    tally.failed[key] = "no link"
    assert f"{key} was not published: no link" in tally.problems()


def test_flights_that_nobody_handled_are_named_when_nothing_happens_any_more() -> None:
    tally = a_tally()
    one = min(tally.handled)
    tally.handled.discard(one)
    assert not tally.is_complete
    assert one in tally.missing()
    assert "1 not handled" in tally.missing()


async def test_demo_gives_up_when_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PATIENCE", 0.1)
    tally = a_tally()
    tally.checked.clear()
    done = asyncio.create_task(asyncio.sleep(0))
    assert await flights.watch(tally, done, flights.Lines(Console(quiet=True)))


async def test_demo_raises_what_publishing_raised() -> None:
    async def fail() -> None:
        raise LookupError("no such publication")

    tally = a_tally()
    tally.checked.clear()
    publishing = asyncio.create_task(fail())
    with pytest.raises(LookupError):
        await flights.watch(tally, publishing, flights.Lines(Console(quiet=True)))


@pytest.fixture(scope="module")
def whole_file() -> list[Flight]:
    return list(read_flights())


def test_file_holds_the_flights_that_were_counted_by_other_means(whole_file: list[Flight]) -> None:
    assert len(whole_file) == 27_004
    assert Counter(flight["origin"] for flight in whole_file) == flights.KNOWN_FLIGHTS
    assert sum(map(is_late, whole_file)) == flights.KNOWN_LATE
    assert sum(flight["dep_time"] is None for flight in whole_file) == flights.KNOWN_NOT_DEPARTED


def test_every_flight_has_an_id_of_its_own(whole_file: list[Flight]) -> None:
    ids = {id_of(flight) for flight in whole_file}
    assert len(ids) == 27_004
    assert "UA1545-EWR-2013-01-01T10:00:00Z" in ids


def test_numbers_are_numbers_and_gaps_are_none(whole_file: list[Flight]) -> None:
    first = whole_file[0]
    assert (first["flight"], first["dep_time"], first["carrier"]) == (1545, 517, "UA")
    never = next(flight for flight in whole_file if flight["dep_time"] is None)
    assert never["dep_delay"] is None
