"""A consumer that the broker lost without a word is noticed and made anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker_client.errors import ChannelClosedError, ConsumerLostError
from broker_client.transport.base import Capabilities
from tests.support.consuming import ConsumerDesk
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop

PERIOD = 60.0


@pytest.fixture
async def desk() -> AsyncIterator[ConsumerDesk]:
    async with ConsumerDesk() as desk:
        desk.listen("cancelled", "error")
        yield desk


def questions(desk: ConsumerDesk) -> int:
    return desk.link.asked.count(("check_queue", "fulfil"))


async def test_consumer_that_is_gone_without_a_word_is_made_anew(desk: ConsumerDesk) -> None:
    channel = await desk.consume()
    await asyncio.sleep(2 * PERIOD)
    assert desk.events() == []
    channel.consumers.clear()
    await asyncio.sleep(PERIOD + 5.0)
    assert desk.events() == ["cancelled"]
    [error] = desk.heard[0][1]
    assert isinstance(error, ConsumerLostError)
    assert "knows of no consumer on queue 'fulfil'" in str(error)
    assert desk.channel is not channel
    assert desk.subscription.is_subscribed
    desk.channel.deliver(b"after")
    await settle()
    assert desk.contents() == [b"after"]


async def test_consumer_is_asked_for_soon_after_it_was_made_and_then_seldom(
    desk: ConsumerDesk,
) -> None:
    await desk.consume()
    asked = []
    for seconds in (0.9, 0.2, PERIOD - 1.0, 1.0, 10 * PERIOD):
        await asyncio.sleep(seconds)
        asked.append(questions(desk))
    assert asked == [0, 1, 1, 2, 12]
    assert sum(each.is_usable for each in desk.link.channels) == 1, "questions keep no channel"


async def test_count_that_is_none_for_a_moment_only_changes_nothing(desk: ConsumerDesk) -> None:
    channel = await desk.consume()
    counts = iter([0, 1, 0, 1, 1])
    desk.link.count_consumers = lambda: next(counts)  # type: ignore[method-assign]
    await asyncio.sleep(2 * PERIOD + 5.0)
    assert desk.channel is channel
    assert desk.events() == []


async def test_broker_that_never_counts_us_is_asked_no_more(
    desk: ConsumerDesk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.link.count_consumers = lambda: 0  # type: ignore[method-assign]
    await desk.consume()
    await asyncio.sleep(10 * PERIOD)
    assert desk.events() == ["cancelled"], "one attempt with a new consumer, and no more"
    assert questions(desk) == 4
    assert desk.subscription.is_subscribed
    assert [each.levelno for each in caplog.records if "asked no more" in each.message] == [
        logging.WARNING
    ]


@pytest.mark.parametrize("code", [403, 405])
async def test_broker_that_does_not_tell_is_asked_no_more(
    desk: ConsumerDesk, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    refuse(desk, code)
    channel = await desk.consume()
    await asyncio.sleep(10 * PERIOD)
    assert desk.channel is channel
    assert desk.events() == []
    assert len([each for each in caplog.records if "asked no more" in each.message]) == 1


def refuse(desk: ConsumerDesk, code: int) -> None:
    def before(operation: str, name: str) -> None:
        if operation == "check_queue":
            raise ChannelClosedError(code, "no")

    desk.link.before = before


async def test_consumer_of_a_queue_that_is_not_there_is_made_anew(desk: ConsumerDesk) -> None:
    channel = await desk.consume()
    refuse(desk, 404)
    await asyncio.sleep(1.5)
    desk.link.before = None
    await asyncio.sleep(2.0)
    assert desk.events() == ["cancelled"]
    assert desk.channel is not channel


async def test_question_that_fails_otherwise_is_asked_again_the_next_time(
    desk: ConsumerDesk,
) -> None:
    channel = await desk.consume()
    refuse(desk, 0)
    await asyncio.sleep(PERIOD / 2)
    desk.link.before = None
    channel.consumers.clear()
    await asyncio.sleep(PERIOD + 5.0)
    assert desk.events() == ["cancelled"]


async def test_paused_subscription_is_not_missed(desk: ConsumerDesk) -> None:
    channel = await desk.consume()
    await desk.subscription.pause()
    channel.consumers.clear()
    await asyncio.sleep(10 * PERIOD)
    assert questions(desk) == 0
    await desk.subscription.resume()
    await asyncio.sleep(10 * PERIOD)
    assert questions(desk) > 0
    assert desk.events() == []


async def test_pause_while_the_broker_answers_is_no_loss(
    desk: ConsumerDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.consume()
    check = FakeChannel.check_queue

    async def slow(self: FakeChannel, name: str) -> Any:
        state = await check(self, name)
        await asyncio.sleep(1.0)
        return state._replace(consumer_count=0)

    monkeypatch.setattr(FakeChannel, "check_queue", slow)
    await asyncio.sleep(3.5)  # the second answer is on its way
    assert questions(desk) == 2
    await desk.subscription.pause()
    await desk.subscription.resume()
    await asyncio.sleep(1.0)
    assert desk.events() == []


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
    async with ConsumerDesk(setup=setup, capabilities=capabilities, **settings) as desk:
        await desk.consume()
        await asyncio.sleep(10 * PERIOD)
        assert questions(desk) == 0
