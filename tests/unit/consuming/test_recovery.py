"""Recovery that publishes: immediate nack, dead letters with their original key, forwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.config import Forward, Nack, Republish
from broker_client.consuming import recovery_headers
from broker_client.errors import (
    PublishRefusedError,
    PublishUnconfirmedError,
)
from tests.support.consuming import SettlingHarness
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

T1, T2 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def a_copy(**state: Any) -> dict[str, Any]:
    """Headers of a copy that `republish` made."""
    return {
        "rascal": {
            "originalQueue": "fulfil",
            "originalVhost": "/",
            "originalExchange": "orders",
            "originalRoutingKey": "placed",
            "restoreRoutingHeaders": True,
            "recovery": {"fulfil": state or {"republished": 1}},
            "error": {"message": "failed"},
        }
    }


def a_republished_delivery(headers: dict[str, Any] | None = None, **more: Any) -> SettlingHarness:
    return SettlingHarness(headers or a_copy(), exchange="", routing_key="fulfil", **more)


def death(count: int = 1, time: datetime = T1, **more: Any) -> dict[str, Any]:
    return {"queue": "fulfil", "reason": "rejected", "count": count, "time": time, **more}


# --------------------------------------------------------------------------- immediate nack


async def test_immediate_nack_takes_the_place_of_the_counters() -> None:
    harness = SettlingHarness(a_copy(republished=3))
    await harness.settle(ValueError("bad"), Republish(immediate_nack=True))
    [outgoing] = harness.publisher.republished
    assert outgoing.properties.headers is not None
    history = outgoing.properties.headers["rascal"]
    assert history["recovery"] == {
        "fulfil": {"immediateNack": True, "xDeath": {"count": 0, "time": {"value": 0}}}
    }
    assert history["error"] == {"message": "bad", "name": "ValueError"}


async def test_immediate_nack_remembers_the_rejections_so_far() -> None:
    others = {**death(9), "queue": "other"}
    expired = {**death(8), "reason": "expired"}
    harness = SettlingHarness({"x-death": [others, expired, death(2)]})
    await harness.settle("bad", Republish(immediate_nack=True))
    [outgoing] = harness.publisher.republished
    assert outgoing.properties.headers is not None
    assert outgoing.properties.headers["rascal"]["recovery"]["fulfil"]["xDeath"] == death(2)


NEVER = {"count": 0, "time": {"value": 0}}


@pytest.mark.parametrize(
    ("deaths", "before", "expected"),
    [
        ([], NEVER, True),
        ([death()], NEVER, False),
        ([{**death(), "queue": "other"}], NEVER, True),
        ([{**death(), "reason": "expired"}], NEVER, True),
        ([death(1, T1)], death(1, T1), True),
        ([death(2, T1)], death(1, T1), False),  # RabbitMQ 3.12: the time is static
        ([death(1, T2)], death(1, T1), False),  # RabbitMQ 3.13: the count is
        ([death(1, T2)], {"count": 1, "time": {"value": T1.timestamp()}}, False),
        ([death(1, T1)], {"count": 1, "time": {"value": T1.timestamp()}}, True),
        ("nonsense", "nonsense", True),
    ],
)
async def test_flag_counts_until_the_queue_has_rejected_the_message(
    deaths: Any, before: Any, expected: bool
) -> None:
    headers = a_copy(immediateNack=True, xDeath=before)
    harness = a_republished_delivery({**headers, "x-death": deaths})
    assert recovery_headers.is_to_be_nacked(harness.message.delivery, "fulfil") is expected


async def test_flag_of_another_queue_does_not_count() -> None:
    harness = a_republished_delivery(a_copy(immediateNack=True, xDeath=NEVER))
    assert recovery_headers.is_to_be_nacked(harness.message.delivery, "other") is None


async def test_flag_is_taken_off_and_all_else_is_left() -> None:
    """one-shot."""
    headers = a_copy(immediateNack=True, xDeath=NEVER, forwarded=2)
    before = copy.deepcopy(headers)
    harness = a_republished_delivery(headers)
    cleaned = recovery_headers.unflagged(harness.message.delivery, "fulfil")
    assert cleaned.properties.headers == a_copy(forwarded=2)
    assert headers == before, "what others hold is not changed"


# --------------------------------------------------------------------------- dead letters


async def test_first_delivery_is_dead_lettered_by_the_broker() -> None:
    harness = SettlingHarness()
    await harness.settle("bad", Nack())
    assert harness.sent == [("nack", 7, False, False)]
    assert harness.publisher.republished == []


async def test_republished_copy_is_dead_lettered_with_its_first_key() -> None:
    harness = a_republished_delivery(expiration="1000", priority=3)
    await harness.settle("bad", Nack())
    [outgoing] = harness.publisher.republished
    assert (outgoing.exchange, outgoing.routing_key) == ("dlx", "placed")
    assert (outgoing.body, outgoing.mandatory) == (b"body", False)
    properties = outgoing.properties
    assert (properties.message_id, properties.priority, properties.expiration) == ("m1", 3, None)
    headers = dict(properties.headers or {})
    [entry] = headers.pop("x-death")
    assert isinstance(entry.pop("time"), datetime)
    assert entry == {
        "count": 1,
        "exchange": "orders",
        "queue": "fulfil",
        "reason": "rejected",
        "routing-keys": ["placed"],
        "original-expiration": "1000",
    }
    assert headers.pop("x-first-death-exchange") == "orders"
    assert headers.pop("x-first-death-queue") == "fulfil"
    assert headers.pop("x-first-death-reason") == "rejected"
    assert headers == a_copy()
    assert harness.sent == [("ack", 7, False)]
    assert harness.outcomes == ["nacked"]


async def test_dead_letter_of_ours_carries_the_user_id_of_another_in_a_header() -> None:
    harness = a_republished_delivery(user_id="another")
    await harness.settle("bad", Nack())
    [outgoing] = harness.publisher.republished
    assert outgoing.properties.user_id is None
    assert (outgoing.properties.headers or {})["x-original-user-id"] == "another"


async def test_last_resort_dead_letters_with_the_first_key_too() -> None:
    """A chain whose attempts are used up."""
    harness = a_republished_delivery(a_copy(republished=2))
    await harness.settle("bad", Republish(attempts=2))
    assert [outgoing.routing_key for outgoing in harness.publisher.republished] == ["placed"]


async def test_second_death_is_counted_and_moved_to_the_front() -> None:
    other = {**death(4), "queue": "other"}
    harness = a_republished_delivery(
        {**a_copy(), "x-death": [other, death(2, T1)], "x-first-death-queue": "o"}
    )
    await harness.settle("bad", Nack())
    headers = harness.publisher.republished[0].properties.headers or {}
    first, second = headers["x-death"]
    assert (first["queue"], first["count"]) == ("fulfil", 3)
    assert first["time"] > T1
    assert second == other
    assert headers["x-first-death-queue"] == "o"


@pytest.mark.parametrize(
    "make",
    [
        lambda: a_republished_delivery(dead_letter_exchange=None),
        lambda: SettlingHarness(a_copy()),  # came by an exchange, with a key of its own
        lambda: a_republished_delivery(a_copy(forwarded=1)),
        lambda: SettlingHarness({}, exchange="", routing_key="fulfil"),
    ],
    ids=["no-such-exchange", "has-its-key", "not-republished", "sent-to-the-queue"],
)
async def test_others_are_left_to_the_broker(make: Callable[[], SettlingHarness]) -> None:
    harness = make()
    await harness.settle("bad", Nack())
    assert harness.publisher.republished == []
    assert harness.sent == [("nack", 7, False, False)]


@pytest.mark.parametrize(("requeue", "all"), [(True, False), (False, True)])
async def test_giving_back_and_all_are_left_to_the_broker(requeue: bool, all: bool) -> None:
    harness = a_republished_delivery()
    await harness.settle("bad", Nack(requeue=requeue), all=all)
    assert harness.publisher.republished == []
    assert harness.sent == [("nack", 7, requeue, all)]


async def test_dead_letter_that_is_not_confirmed_keeps_the_message() -> None:
    """At least one copy of the message is left."""
    harness = a_republished_delivery()
    harness.publisher.failure = PublishUnconfirmedError("republish", "m1", 30.0, "up")
    await harness.settle("bad", Nack())
    assert harness.sent == [("nack", 7, True, False)]
    assert len(harness.reported["recovery_failed"]) == 1


async def test_dead_letter_exchange_that_is_missing_is_left_to_the_broker() -> None:
    harness = a_republished_delivery()
    harness.publisher.failure = PublishRefusedError("republish", "m1", 404, "no exchange")
    await harness.settle("bad", Nack())
    assert harness.sent == [("nack", 7, False, False)]
    assert len(harness.reported["recovery_failed"]) == 1


# --------------------------------------------------------------------------- forward


async def test_x_death_fix_leaves_the_deaths_out() -> None:
    harness = SettlingHarness({"x-death": [death()], "kept": 1})
    await harness.settle("bad", Forward(publication="retry", x_death_fix=True))
    [(_, headers, _)] = harness.publisher.forwarded
    assert "x-death" not in headers
    assert headers["kept"] == 1


async def test_x_death_stays_otherwise() -> None:
    harness = SettlingHarness({"x-death": [death()]})
    await harness.settle("bad", Forward(publication="retry"))
    assert harness.publisher.forwarded[0][1]["x-death"] == [death()]
