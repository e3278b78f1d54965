"""Recovery that publishes: immediate nack, dead letters with their first key, forwards."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config import Forward, ForwardOptions, Nack, Republish
from broker_client.consuming import recovery_headers as copies
from broker_client.errors import (
    PublishRefusedError,
    PublishUnconfirmedError,
    RecoveryFailedError,
)
from broker_client.message import Delivery, Message, Outgoing, Properties
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop

loop_factory = WarpLoop

T1, T2 = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


class Owner:
    """The subscription and its broker, as far as publishing goes."""

    can_defer = False
    max_hops = None

    def __init__(self, dead_letter_exchange: str | None = "dlx") -> None:
        self.dead_letter_exchange = dead_letter_exchange
        self.published: list[Outgoing] = []
        self.forwarded: list[tuple[str, Message, dict[str, Any], str | None]] = []
        self.failure: Exception | None = None
        self.settled_as: list[str] = []
        self.failures: list[RecoveryFailedError] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def republisher(self) -> Owner:
        return self

    async def republish(self, vhost: str, outgoing: Outgoing) -> None:
        if self.failure is not None:
            raise self.failure
        self.published.append(outgoing)

    async def forward_copy(
        self, publication: str, message: Message, headers: Any, routing_key: str | None
    ) -> None:
        self.forwarded.append((publication, message, headers, routing_key))

    async def pause(self, seconds: float) -> bool:
        return True

    def default_recovery(self, message: Message) -> tuple[Nack]:
        return (Nack(),)

    def another_try(self, message: Message) -> Nack:
        return Nack(requeue=True)

    def settled(self, settle: AckOrNack, how: str) -> None:
        self.settled_as.append(how)

    def settled_through(self, settle: AckOrNack, how: str) -> None:
        self.settled_as.append(f"{how} through")

    def settle_lost(self, settle: AckOrNack, error: Exception) -> None:
        self.settled_as.append("lost")

    def settled_twice(self, error: Exception) -> None:
        self.settled_as.append("twice")

    def recovery_failed(self, error: RecoveryFailedError) -> None:
        self.failures.append(error)


class Desk:
    def __init__(
        self,
        headers: dict[str, Any] | None = None,
        *,
        exchange: str = "orders",
        routing_key: str = "placed",
        owner: Owner | None = None,
        **properties: Any,
    ) -> None:
        self.owner = owner or Owner()
        self.channel = FakeChannel()
        delivery = Delivery(
            "ctag",
            7,
            False,
            exchange,
            routing_key,
            b"body",
            Properties(headers=headers, message_id="m1", **properties),
        )
        self.message = Message(delivery, queue="fulfil", vhost="/", touch=lambda tag: 0.0)
        self.settle = AckOrNack(self.owner, self.channel, self.message)


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


def a_copy_desk(headers: dict[str, Any] | None = None, **more: Any) -> Desk:
    return Desk(headers or a_copy(), exchange="", routing_key="fulfil", **more)


def death(count: int = 1, time: datetime = T1, **more: Any) -> dict[str, Any]:
    return {"queue": "fulfil", "reason": "rejected", "count": count, "time": time, **more}


# --------------------------------------------------------------------------- immediate nack


async def test_immediate_nack_takes_the_place_of_the_counters() -> None:
    desk = Desk(a_copy(republished=3))
    await desk.settle(ValueError("bad"), Republish(immediate_nack=True))
    [outgoing] = desk.owner.published
    assert outgoing.properties.headers is not None
    history = outgoing.properties.headers["rascal"]
    assert history["recovery"] == {
        "fulfil": {"immediateNack": True, "xDeath": {"count": 0, "time": {"value": 0}}}
    }
    assert history["error"] == {"message": "bad"}


async def test_immediate_nack_remembers_the_rejections_so_far() -> None:
    others = {**death(9), "queue": "other"}
    expired = {**death(8), "reason": "expired"}
    desk = Desk({"x-death": [others, expired, death(2)]})
    await desk.settle("bad", Republish(immediate_nack=True))
    [outgoing] = desk.owner.published
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
def test_flag_counts_until_the_queue_has_rejected_the_message(
    deaths: Any, before: Any, expected: bool
) -> None:
    headers = a_copy(immediateNack=True, xDeath=before)
    desk = a_copy_desk({**headers, "x-death": deaths})
    assert copies.is_to_be_nacked(desk.message.delivery, "fulfil") is expected


def test_flag_of_another_queue_does_not_count() -> None:
    desk = a_copy_desk(a_copy(immediateNack=True, xDeath=NEVER))
    assert copies.is_to_be_nacked(desk.message.delivery, "other") is None


def test_flag_is_taken_off_and_all_else_is_left() -> None:
    """one-shot."""
    headers = a_copy(immediateNack=True, xDeath=NEVER, forwarded=2)
    before = copy.deepcopy(headers)
    desk = a_copy_desk(headers)
    cleaned = copies.unflagged(desk.message.delivery, "fulfil")
    assert cleaned.properties.headers == a_copy(forwarded=2)
    assert headers == before, "what others hold is not changed"


# --------------------------------------------------------------------------- dead letters


async def test_first_delivery_is_dead_lettered_by_the_broker() -> None:
    desk = Desk()
    await desk.settle("bad", Nack())
    assert desk.channel.settled == [("nack", 7, False, False)]
    assert desk.owner.published == []


async def test_republished_copy_is_dead_lettered_with_its_first_key() -> None:
    desk = a_copy_desk(expiration="1000", priority=3)
    await desk.settle("bad", Nack())
    [outgoing] = desk.owner.published
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
    assert desk.channel.settled == [("ack", 7, False)]
    assert desk.owner.settled_as == ["nacked"]


async def test_last_resort_dead_letters_with_the_first_key_too() -> None:
    """D5: a chain whose attempts are used up."""
    desk = a_copy_desk(a_copy(republished=2))
    await desk.settle("bad", Republish(attempts=2))
    assert [outgoing.routing_key for outgoing in desk.owner.published] == ["placed"]


async def test_second_death_is_counted_and_moved_to_the_front() -> None:
    other = {**death(4), "queue": "other"}
    desk = a_copy_desk({**a_copy(), "x-death": [other, death(2, T1)], "x-first-death-queue": "o"})
    await desk.settle("bad", Nack())
    headers = desk.owner.published[0].properties.headers or {}
    first, second = headers["x-death"]
    assert (first["queue"], first["count"]) == ("fulfil", 3)
    assert first["time"] > T1
    assert second == other
    assert headers["x-first-death-queue"] == "o"


@pytest.mark.parametrize(
    "desk",
    [
        a_copy_desk(owner=Owner(dead_letter_exchange=None)),
        Desk(a_copy()),  # came by an exchange, with a key of its own
        a_copy_desk(a_copy(forwarded=1)),
        Desk({}, exchange="", routing_key="fulfil"),
    ],
    ids=["no-such-exchange", "has-its-key", "not-republished", "sent-to-the-queue"],
)
async def test_others_are_left_to_the_broker(desk: Desk) -> None:
    await desk.settle("bad", Nack())
    assert desk.owner.published == []
    assert desk.channel.settled == [("nack", 7, False, False)]


@pytest.mark.parametrize(("requeue", "all"), [(True, False), (False, True)])
async def test_giving_back_and_all_are_left_to_the_broker(requeue: bool, all: bool) -> None:
    desk = a_copy_desk()
    await desk.settle("bad", Nack(requeue=requeue), all=all)
    assert desk.owner.published == []
    assert desk.channel.settled == [("nack", 7, requeue, all)]


async def test_dead_letter_that_is_not_confirmed_keeps_the_message() -> None:
    """D5: never zero copies."""
    desk = a_copy_desk()
    desk.owner.failure = PublishUnconfirmedError("republish", "m1", 30.0, "up")
    await desk.settle("bad", Nack())
    assert desk.channel.settled == [("nack", 7, True, False)]
    assert len(desk.owner.failures) == 1


async def test_dead_letter_exchange_that_is_missing_is_left_to_the_broker() -> None:
    desk = a_copy_desk()
    desk.owner.failure = PublishRefusedError("republish", "m1", 404, "no exchange")
    await desk.settle("bad", Nack())
    assert desk.channel.settled == [("nack", 7, False, False)]
    assert len(desk.owner.failures) == 1


# --------------------------------------------------------------------------- forward


async def test_x_death_fix_leaves_the_deaths_out() -> None:
    desk = Desk({"x-death": [death()], "kept": 1})
    await desk.settle("bad", Forward(publication="retry", x_death_fix=True))
    [(_, _, headers, _)] = desk.owner.forwarded
    assert "x-death" not in headers
    assert headers["kept"] == 1


async def test_x_death_stays_otherwise() -> None:
    desk = Desk({"x-death": [death()]})
    await desk.settle("bad", Forward(publication="retry"))
    assert desk.owner.forwarded[0][2]["x-death"] == [death()]


async def test_options_of_forward_change_the_copy() -> None:
    desk = Desk({"mine": 1, "theirs": 1}, priority=1, delivery_mode=2, content_type="text/plain")
    options = ForwardOptions(
        expiration=1.5, priority=9, persistent=False, headers={"theirs": 2}, app_id="a"
    )
    await desk.settle("bad", Forward(publication="retry", options=options, routing_key="again"))
    [(publication, message, headers, routing_key)] = desk.owner.forwarded
    assert (publication, routing_key) == ("retry", "again")
    properties = message.properties
    assert (properties.expiration, properties.priority, properties.delivery_mode) == ("1500", 9, 1)
    assert (properties.content_type, properties.app_id) == ("text/plain", "a")
    assert (headers["mine"], headers["theirs"]) == (1, 2)
    assert headers["rascal"]["recovery"]["fulfil"]["forwarded"] == 1
    assert message.queue == "fulfil"
