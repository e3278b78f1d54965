"""Connections cut by `bounce`: everything comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from broker_client.errors import UnknownNameError
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually

CONFIG: dict[str, Any] = {
    "queues": ["q", "other"],
    "publications": {"p": {"queue": "q"}},
    "subscriptions": {"s": {"queue": "q"}},
}


async def _publish(broker: Broker, *contents: Any) -> None:
    for content in contents:
        await (await broker.publish("p", content))


async def test_bounce_brings_subscriptions_and_publishing_back(start: StartBroker) -> None:
    broker = await start(CONFIG)
    heard: list[str] = []
    broker.on("error", lambda error, vhost: None)
    for event in ("disconnect", "connect"):
        broker.on(event, lambda *_, event=event: heard.append(event))
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    subscription = await broker.subscribe("s", handle)
    await eventually(lambda: subscription.is_subscribed)
    for number in range(5):
        await broker.bounce()
        assert subscription.is_subscribed
        await _publish(broker, number)
    # A cut may lose an ack: its message comes again.
    await eventually(lambda: set(handled) == {0, 1, 2, 3, 4})
    assert heard == ["disconnect", "connect"] * 5


async def test_bounce_with_a_message_in_hand_has_it_delivered_again(start: StartBroker) -> None:
    broker = await start(CONFIG)
    broker.on("error", lambda error, vhost: None)
    arrived: asyncio.Queue[AckOrNack] = asyncio.Queue()
    lost: list[str] = []
    subscription = await broker.subscribe(
        "s", lambda message, content, ack_or_nack: arrived.put_nowait(ack_or_nack)
    )
    subscription.on("ack_lost", lambda *_: lost.append("ack_lost"))
    await _publish(broker, "x")
    async with asyncio.timeout(30.0):
        first = await arrived.get()
        await broker.bounce()
        second = await arrived.get()
    await first()
    await second()
    await eventually(lambda: lost == ["ack_lost"])
    assert subscription.stats().acked == 1


async def test_subscription_made_while_a_bounce_goes_on_gets_its_messages(
    start: StartBroker,
) -> None:
    broker = await start(CONFIG)
    broker.on("error", lambda error, vhost: None)
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    bouncing = asyncio.create_task(broker.bounce())
    await asyncio.sleep(0)
    await broker.subscribe("s", handle)
    await bouncing
    await _publish(broker, "x")
    await eventually(lambda: handled == ["x"])


async def test_purge_of_one_queue_leaves_the_others_alone(start: StartBroker) -> None:
    broker = await start(CONFIG)
    await _publish(broker, 1, 2, 3)
    await (await broker.publish("/other", 4))
    assert await broker.purge("q") == 3
    assert await broker.purge() == 1
    with pytest.raises(UnknownNameError, match=r"'othr'.*did you mean 'other'"):
        await broker.purge("othr")
