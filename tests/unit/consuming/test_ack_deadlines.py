"""Warnings of deliveries that are about to time out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from broker_client.consuming.ack_deadlines import AckDeadlines
from broker_client.consuming.delivery import UnackedDelivery
from broker_client.consuming.reports import Reports
from tests.support.consuming import SettlingHarness, SubscriptionHarness, a_message, a_setup
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


# --------------------------------------------------------------------------- time that runs out


def limited(**settings: Any) -> SubscriptionHarness:
    return SubscriptionHarness(setup={"settle_within": 10.0}, **settings)


async def test_delivery_is_told_of_when_most_of_its_time_is_over() -> None:
    async with limited() as harness:
        harness.listen("ack_due")
        channel = await harness.consume()
        channel.deliver()
        await asyncio.sleep(1.0)
        channel.deliver()
        channel.deliver()
        await asyncio.sleep(6.9)
        assert harness.heard == []
        await harness.kept[1][2]()
        await asyncio.sleep(0.2)
        [(_, (message, left))] = harness.heard
        assert (message.message_id, left) == ("m1", pytest.approx(2.0))
        await asyncio.sleep(1.0)
        assert [args[0].message_id for _, args in harness.heard] == ["m1", "m3"]
        await asyncio.sleep(60.0)
        assert len(harness.heard) == 2, "once each"
        channel.deliver()
        await asyncio.sleep(8.1)
        assert len(harness.heard) == 3, "and the next after a rest"
        for _, _, ack_or_nack in (harness.kept[0], *harness.kept[2:]):
            await ack_or_nack()


async def test_delivery_that_was_touched_has_its_time_again() -> None:
    async with limited() as harness:
        harness.listen("ack_due")
        channel = await harness.consume()
        touched: list[int] = []

        def touch(delivery_tag: int) -> float:
            touched.append(delivery_tag)
            return 10.0

        channel.touch = touch  # type: ignore[method-assign] # a broker that can
        channel.deliver()
        for _ in range(3):
            await asyncio.sleep(7.0)
            assert harness.kept[0][0].touch() == 10.0
        assert (touched, harness.heard) == ([1, 1, 1], [])
        await asyncio.sleep(8.1)
        assert harness.events() == ["ack_due"]
        await harness.kept[0][2]()


async def test_delivery_of_a_lost_channel_is_not_told_of() -> None:
    async with limited() as harness:
        harness.listen("ack_due")
        (await harness.consume()).deliver()
        harness.replace_link()
        await asyncio.sleep(60.0)
        assert harness.heard == []


class CountedDeliveries(list[UnackedDelivery]):
    """Unacked deliveries that count how often they were iterated."""

    looks = 0

    def __iter__(self) -> Iterator[UnackedDelivery]:
        self.looks += 1
        return super().__iter__()


async def test_many_deliveries_are_looked_at_a_few_times_only() -> None:
    unacked = CountedDeliveries()
    harness = SettlingHarness()
    deadlines = AckDeadlines(10.0, unacked, Reports("s", harness.events))
    for number in range(1_000):
        entry = UnackedDelivery(harness.recovery, FakeChannel(), a_message(number + 1))
        unacked.append(entry)
        deadlines.start(entry)
        await asyncio.sleep(0.01)
    await asyncio.sleep(20.0)
    assert 10 < unacked.looks / 2 < 60
    assert all(entry.ack_deadline == float("inf") for entry in unacked)


async def test_time_without_a_listener_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with limited() as harness:
        (await harness.consume()).deliver()
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(8.1)
        assert "message m1 is unsettled, and its broker waits 2 s more" in caplog.text
        await harness.kept[0][2]()


@pytest.mark.parametrize(
    ("url", "queue", "consumer", "expected"),
    [
        ("embedded://", {}, {}, 60.0),
        ("embedded://", {"x-message-timeout": 5_000}, {}, 5.0),
        ("embedded://", {"x-message-timeout": 5_000}, {"x-message-timeout": 700}, 0.7),
        ("amqp://localhost", {}, {}, None),
        ("amqp://localhost", {"x-consumer-timeout": 900_000}, {}, 900.0),
        ("amqp://localhost", {}, {"x-consumer-timeout": 60_000}, 60.0),
    ],
)
def test_nearest_time_out_that_the_configuration_tells_counts(
    url: str, queue: dict[str, int], consumer: dict[str, int], expected: float | None
) -> None:
    assert a_setup(url, queue, {"arguments": consumer}).settle_within == expected


def test_without_acks_nothing_is_due() -> None:
    assert a_setup(options={"no_ack": True}).settle_within is None
