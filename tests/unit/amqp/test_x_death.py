"""The x-death header, read and written in one place."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.amqp.x_death import EXPIRED, REJECTED, dead_lettered, deaths, is_cycle
from broker_client.message import Properties


def a_death(**changes: Any) -> dict[str, Any]:
    return {"queue": "q", "reason": REJECTED, "count": 1, **changes}


def written(headers: dict[str, Any] | None, **properties: Any) -> Properties:
    return dead_lettered(
        Properties(headers=headers, **properties),
        queue="q",
        reason=REJECTED,
        exchange="x",
        routing_keys=["key", "cc"],
        now=1_000.9,
    )


@pytest.mark.parametrize("value", [None, "text", 7, {"queue": "q"}, [], [1, "two", None]])
def test_malformed_header_tells_of_no_death_and_is_replaced(value: Any) -> None:
    assert deaths({"x-death": value}) == []
    headers = written({"x-death": value}).headers or {}
    assert [death["count"] for death in headers["x-death"]] == [1]
    assert headers["x-first-death-queue"] == "q"


def test_first_death_tells_where_the_message_came_from() -> None:
    properties = written(None, expiration="500")
    assert properties.expiration is None
    assert properties.headers == {
        "x-death": [
            {
                "count": 1,
                "exchange": "x",
                "queue": "q",
                "reason": "rejected",
                "routing-keys": ["key", "cc"],
                "time": datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC),
                "original-expiration": "500",
            }
        ],
        "x-first-death-exchange": "x",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
    }


def test_same_death_again_is_counted_up_and_comes_to_the_front() -> None:
    other = a_death(queue="other")
    sent = {"x-death": [other, a_death(count=4), a_death(count=2)], "x-first-death-queue": "first"}
    headers = written(sent).headers or {}
    first, second = headers["x-death"]
    assert (first["queue"], first["count"]) == ("q", 7)
    assert second == other
    assert headers["x-first-death-queue"] == "first"
    assert len(sent["x-death"]) == 3, "what was published is left alone"


@pytest.mark.parametrize(
    ("reason", "history", "expected"),
    [
        (EXPIRED, [a_death(reason=EXPIRED)], True),
        (REJECTED, [a_death(reason=EXPIRED)], False),
        (EXPIRED, [a_death(queue="retry"), a_death(reason=EXPIRED)], False),
        (EXPIRED, [a_death(queue="other", reason=EXPIRED)], False),
    ],
)
def test_cycle_is_one_that_no_consumer_steers(
    reason: str, history: list[dict[str, Any]], expected: bool
) -> None:
    assert is_cycle({"x-death": history}, "q", reason) is expected
