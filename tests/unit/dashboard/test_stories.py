"""The history of a message, from headers of several clients."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.dashboard.stories import attempts_of, error_of, origin_of, story_of


def a_death(queue: str = "orders", reason: str = "rejected", **more: Any) -> dict[str, Any]:
    keys = {"exchange": "events", "routing-keys": ["order.placed"], "time": 1_700_000_000}
    return {"queue": queue, "reason": reason, "count": 1, **keys, **more}


def texts(headers: Any, **properties: Any) -> list[str]:
    told = story_of({"headers": headers, **properties}, "", "dead")
    return [each["text"] for each in told]


def test_message_that_was_only_published_has_a_short_story() -> None:
    told = story_of({"app_id": "shop", "timestamp": 1_700_000_000}, "events", "order.placed")
    assert told == [
        {
            "kind": "published",
            "exchange": "events",
            "text": "Published by shop to exchange 'events' with routing key 'order.placed'.",
            "time": 1_700_000_000,
        }
    ]


def test_dead_letter_tells_where_it_was_published_first() -> None:
    assert texts({"x-death": [a_death()]}) == [
        "Published to exchange 'events' with routing key 'order.placed'.",
        "Dead-lettered from queue 'orders' because a consumer rejected it.",
    ]


def test_deaths_are_told_oldest_first_with_their_counts() -> None:
    headers = {"x-death": [a_death("retry", "expired", count=3), a_death(count=3)]}
    assert texts(headers)[1:] == [
        "Dead-lettered from queue 'orders' 3 times, last because a consumer rejected it.",
        "Dead-lettered from queue 'retry' 3 times, last because its time to live had expired.",
    ]


def test_tries_of_a_subscription_and_its_error_are_told() -> None:
    history = {
        "originalExchange": "events",
        "originalRoutingKey": "order.placed",
        "tries": 4,
        "recovery": {"orders": {"republished": 3}},
        "error": {"name": "ValueError", "message": "no such <b>item</b>"},
    }
    headers = {"rascal": history, "x-death": [{**a_death(), "routing-keys": ["orders"]}]}
    assert texts(headers) == [
        "Published to exchange 'events' with routing key 'order.placed'.",
        "Failed in queue 'orders' and was put back to try again, 3 times.",
        "Try 4 ended with ValueError: no such <b>item</b>",
        "Dead-lettered from queue 'orders' because a consumer rejected it.",
    ]
    assert error_of(headers) == "ValueError: no such <b>item</b>"
    assert origin_of(headers) == {
        "queue": "orders",
        "reason": "rejected",
        "error": "ValueError: no such <b>item</b>",
    }


def test_error_of_spring_is_known() -> None:
    assert error_of({"x-exception-message": "boom"}) == "boom"


def test_times_are_seconds_whoever_read_the_header() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    by_amqp = story_of({"headers": {"x-death": [a_death(time=moment)]}}, "", "dead")
    assert by_amqp[-1]["time"] == moment.timestamp()


@pytest.mark.parametrize(
    ("timestamp", "expected"), [(1_700_000_000_000, 1_700_000_000), (-1, None), (2**63, None)]
)
def test_timestamp_that_is_no_time_is_left_out(timestamp: int, expected: float | None) -> None:
    (published,) = story_of({"timestamp": timestamp}, "", "q")
    assert published.get("time") == expected


def test_counts_of_quorum_queues_are_attempts() -> None:
    assert attempts_of({"x-delivery-count": 2}) == 2
    assert attempts_of({"x-acquired-count": 3, "x-delivery-count": 0}) == 3
    assert attempts_of({}) is None
    assert (
        texts({"x-delivery-count": 2})[-1]
        == "Delivered 2 times from this queue, and returned to it."
    )


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        "text",
        {"x-death": "none"},
        {"x-death": [1, {}, {"queue": 5}]},
        {"rascal": 1},
        {"rascal": {"recovery": 1, "error": "x", "tries": "many"}},
        {"rascal": {"recovery": {"q": {"republished": "often", "forwarded": True}, "r": 5}}},
        {"x-delivery-count": -1},
        {"x-delivery-count": "2"},
    ],
    ids=repr,
)
def test_headers_that_anybody_may_write_break_nothing(headers: Any) -> None:
    assert [each["kind"] for each in story_of({"headers": headers}, "", "q")] == ["published"]


def test_death_for_a_reason_that_is_not_known_is_reported() -> None:
    assert "of 'solar flare'" in texts({"x-death": [a_death(reason="solar flare")]})[-1]
