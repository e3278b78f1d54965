"""A consumer that the broker lost silently is noticed and replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.errors import ChannelClosedError, ConsumerLostError
from broker_client.transport.base import Capabilities
from tests.support.consuming import SubscriptionHarness
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop

PERIOD = 60.0


@pytest.fixture
async def harness() -> AsyncIterator[SubscriptionHarness]:
    async with SubscriptionHarness() as harness:
        harness.listen("cancelled", "error")
        yield harness


def questions(harness: SubscriptionHarness) -> int:
    return harness.link.asked.count(("check_queue", "fulfil"))


async def test_consumer_that_is_gone_without_a_word_is_made_anew(
    harness: SubscriptionHarness,
) -> None:
    channel = await harness.consume()
    await asyncio.sleep(2 * PERIOD)
    assert harness.events() == []
    channel.consumers.clear()
    await asyncio.sleep(PERIOD + 5.0)
    assert harness.events() == ["cancelled"]
    [error] = harness.heard[0][1]
    assert isinstance(error, ConsumerLostError)
    assert "no longer has a consumer on queue 'fulfil'" in str(error)
    assert harness.channel is not channel
    assert harness.subscription.is_subscribed
    harness.channel.deliver(b"after")
    await settle()
    assert harness.contents() == [b"after"]


async def test_consumer_is_asked_for_soon_after_it_was_made_and_then_seldom(
    harness: SubscriptionHarness,
) -> None:
    await harness.consume()
    asked = []
    for seconds in (0.9, 0.2, PERIOD - 1.0, 1.0, 10 * PERIOD):
        await asyncio.sleep(seconds)
        asked.append(questions(harness))
    assert asked == [0, 1, 1, 2, 12]
    assert sum(each.is_usable for each in harness.link.channels) == 1, "questions keep no channel"


async def test_count_of_zero_for_a_moment_changes_nothing(
    harness: SubscriptionHarness,
) -> None:
    channel = await harness.consume()
    counts = iter([0, 1, 0, 1, 1])
    harness.link.count_consumers = lambda: next(counts)  # type: ignore[method-assign]
    await asyncio.sleep(2 * PERIOD + 5.0)
    assert harness.channel is channel
    assert harness.events() == []


async def test_broker_that_never_counts_us_is_asked_no_more(
    harness: SubscriptionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.link.count_consumers = lambda: 0  # type: ignore[method-assign]
    await harness.consume()
    await asyncio.sleep(10 * PERIOD)
    assert harness.events() == ["cancelled"], "one attempt with a new consumer, and no more"
    assert questions(harness) == 4
    assert harness.subscription.is_subscribed
    assert [each.levelno for each in caplog.records if "is turned off" in each.message] == [
        logging.WARNING
    ]


@pytest.mark.parametrize("code", [403, 405])
async def test_broker_that_does_not_tell_is_asked_no_more(
    harness: SubscriptionHarness, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    refuse(harness, code)
    channel = await harness.consume()
    await asyncio.sleep(10 * PERIOD)
    assert harness.channel is channel
    assert harness.events() == []
    assert len([each for each in caplog.records if "is turned off" in each.message]) == 1


def refuse(harness: SubscriptionHarness, code: int) -> None:
    def before(operation: str, name: str) -> None:
        if operation == "check_queue":
            raise ChannelClosedError(code, "no")

    harness.link.before = before


async def test_consumer_of_a_queue_that_is_not_there_is_made_anew(
    harness: SubscriptionHarness,
) -> None:
    channel = await harness.consume()
    refuse(harness, 404)
    await asyncio.sleep(1.5)
    harness.link.before = None
    await asyncio.sleep(2.0)
    assert harness.events() == ["cancelled"]
    assert harness.channel is not channel


async def test_question_that_fails_otherwise_is_asked_again_the_next_time(
    harness: SubscriptionHarness,
) -> None:
    channel = await harness.consume()
    refuse(harness, 0)
    await asyncio.sleep(PERIOD / 2)
    harness.link.before = None
    channel.consumers.clear()
    await asyncio.sleep(PERIOD + 5.0)
    assert harness.events() == ["cancelled"]


async def test_paused_subscription_is_not_missed(harness: SubscriptionHarness) -> None:
    channel = await harness.consume()
    await harness.subscription.pause()
    channel.consumers.clear()
    await asyncio.sleep(10 * PERIOD)
    assert questions(harness) == 0
    await harness.subscription.resume()
    await asyncio.sleep(10 * PERIOD)
    assert questions(harness) > 0
    assert harness.events() == []


async def test_subscription_that_ends_and_waits_for_a_handler_is_not_missed(
    harness: SubscriptionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    channel = await harness.consume()
    channel.deliver()  # and it is never acked
    ending = asyncio.create_task(harness.subscription.cancel())
    await asyncio.sleep(9.0)  # of ten
    assert not ending.done()
    assert questions(harness) == 0
    await ending
    assert "is turned off" not in caplog.text


async def test_pause_while_the_broker_answers_is_no_loss(
    harness: SubscriptionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.consume()
    check = FakeChannel.check_queue

    async def slow(self: FakeChannel, name: str) -> Any:
        state = await check(self, name)
        await asyncio.sleep(1.0)
        return state._replace(consumer_count=0)

    monkeypatch.setattr(FakeChannel, "check_queue", slow)
    await asyncio.sleep(3.5)  # the second answer is on its way
    assert questions(harness) == 2
    await harness.subscription.pause()
    await harness.subscription.resume()
    await asyncio.sleep(1.0)
    assert harness.events() == []


@pytest.mark.parametrize(
    ("setup", "capabilities", "settings"),
    [
        ({}, Capabilities(), {"check_interval": 0.0}),
        ({"is_stream": True}, Capabilities(), {}),
        ({}, Capabilities(), {"options": {"offset": "first"}}),
        ({}, Capabilities(lasting_consumers=True), {}),
    ],
    ids=["turned off", "stream", "read as a stream", "built-in broker"],
)
async def test_broker_is_not_asked_where_that_tells_nothing(
    setup: dict[str, Any], capabilities: Capabilities, settings: dict[str, Any]
) -> None:
    async with SubscriptionHarness(setup=setup, capabilities=capabilities, **settings) as harness:
        await harness.consume()
        await asyncio.sleep(10 * PERIOD)
        assert questions(harness) == 0
