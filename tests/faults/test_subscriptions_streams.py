"""After a cut, a stream is read from behind the last settled message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.message import Message
from tests.faults.app import QUICK
from tests.faults.conftest import Place
from tests.support.eventually import eventually

pytestmark = pytest.mark.rabbitmq


def a_config(place: Place, **options: Any) -> dict[str, Any]:
    return {
        "vhosts": {
            place.vhost: {
                "connection": {"url": place.url, "vhost": place.vhost, "retry": QUICK},
                "queues": {"log": {"options": {"arguments": {"x-queue-type": "stream"}}}},
                "publications": {"log": {"queue": "log"}},
                "subscriptions": {
                    "log": {"queue": "log", "prefetch": 10, "retry": QUICK, "options": options}
                },
            }
        }
    }


async def fill(broker: Broker, first: int, last: int) -> None:
    for number in range(first, last):
        await (await broker.publish("log", number))


@pytest.mark.timeout(120)
async def test_reading_goes_on_behind_the_last_settled(place: Place) -> None:
    """Read 10 from the first, cut after 4 settled: the fifth is next, no settled repeated."""
    async with Broker.create(a_config(place, offset="first")) as broker:
        broker.on("error", lambda error, vhost: None)
        await fill(broker, 0, 10)
        held: list[tuple[int, AckOrNack]] = []
        subscription = await broker.subscribe("log")
        subscription.on("ack_lost", lambda message, error: None)
        subscription.on("error", lambda error: None)
        subscription.on("message", lambda m, content, settle: held.append((content, settle)))
        await eventually(lambda: len(held) == 10)
        for number in (0, 1, 2, 3, 6):
            await held[number][1]()
        await asyncio.sleep(0.2)  # let the acks reach the broker, which does not confirm them
        before = list(held)
        held.clear()
        place.proxy.cut()
        await eventually(lambda: len(held) == 5)
        assert [content for content, _ in held] == [4, 5, 7, 8, 9]
        await before[4][1]()  # too late, of the lost channel
        for _, settle in held:
            await settle()
        held.clear()
        place.proxy.cut()
        await fill(broker, 10, 13)
        await eventually(lambda: len(held) == 3)
        assert [content for content, _ in held] == [10, 11, 12]
        for _, settle in held:
            await settle()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("offset", "expected"), [("last", None), (3, [3, 4, 5]), ("next", [])])
async def test_reading_begins_where_the_options_say(
    place: Place, offset: object, expected: list[int] | None
) -> None:
    async with Broker.create(a_config(place, offset=offset)) as broker:
        await fill(broker, 0, 6)
        seen: list[int] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append(content)
            await ack_or_nack()

        subscription = await broker.subscribe("log", handle)
        await eventually(lambda: subscription.is_subscribed)
        await fill(broker, 6, 7)
        await eventually(lambda: 6 in seen)
        if expected is not None:
            assert seen == [*expected, 6]
