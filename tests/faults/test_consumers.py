"""Consumers whose queue, channel or link goes away under them."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.errors import ConsumerCancelledError, ConsumerLostError
from broker_client.message import Message
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.faults.app import App, a_config, drained
from tests.faults.conftest import Place
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_queue_deleted_while_consuming_comes_back_and_is_consumed(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost)) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        subscription = await app.consume()
        cancelled: list[Any] = []
        subscription.on("cancelled", cancelled.append)
        await eventually(lambda: subscription.is_subscribed)
        other = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
        await (await other.open_channel()).delete_queue("work")
        await other.close()
        await eventually(lambda: cancelled)
        assert isinstance(cancelled[0], ConsumerCancelledError)
        await eventually(lambda: subscription.is_subscribed)
        await app.publish(1)
        await app.all_handled(timeout=30.0)
        assert app.errors == []


@pytest.mark.rabbitmq
@pytest.mark.timeout(120)
async def test_consumer_that_the_broker_loses_without_a_word_is_back(place: Place) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["subscriptions"]["work"]["check_interval"] = "200ms"
    server = place.server
    assert isinstance(server, RabbitMQ), "no other can lose them"
    async with Broker.create(config) as broker:
        app = App(broker)
        subscription = await app.consume()
        cancelled: list[Any] = []
        subscription.on("cancelled", cancelled.append)
        await eventually(lambda: subscription.is_subscribed)
        assert await asyncio.to_thread(server.lose_consumers, place.vhost, "work") == 1
        await app.publish(1)
        await app.all_handled(timeout=30.0)
        assert [type(error) for error in cancelled] == [ConsumerLostError]
        assert broker.stats().vhosts[place.vhost].connects == 1
        assert app.errors == []
        assert await asyncio.to_thread(server.lose_consumers, place.vhost, "work") == 1


@pytest.mark.timeout(120)
async def test_queue_of_another_that_is_missing_is_reported_until_it_is_back(
    place: Place,
) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["queues"] = {"work": {"assert": False}, "record": {}}
    config["vhosts"][place.vhost]["bindings"] = ["orders[order.#] -> record"]
    async with Broker.create(config) as broker:
        app = App(broker)
        subscription = await app.consume()
        await eventually(lambda: len(app.errors) >= 3)
        assert all("404" in str(error) for error in app.errors)
        other = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
        channel = await other.open_channel()
        await channel.declare_queue("work")
        await channel.bind_queue("work", "orders", "order.#")
        await eventually(lambda: subscription.is_subscribed)
        await app.publish(1)
        await app.all_handled(timeout=30.0)
        await other.close()


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_late_ack_after_a_cut_is_reported_and_not_sent(place: Place) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["subscriptions"]["work"]["prefetch"] = 3
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        subscription = await broker.subscribe("work")
        subscription.on("error", app.errors.append)
        lost: list[str | None] = []
        subscription.on("ack_lost", lambda message, error: lost.append(message.message_id))
        held: list[AckOrNack] = []
        again: list[str | None] = []

        @subscription.on("message")
        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            if len(held) < 3:
                held.append(ack_or_nack)
            else:
                again.append(message.message_id)
                await ack_or_nack()

        await app.publish(3, names=("a",))
        for publication in app.publications:
            await publication
        await eventually(lambda: len(held) == 3)
        place.proxy.cut()
        await eventually(lambda: len(again) == 3)
        for ack_or_nack in held:
            await ack_or_nack()
        assert lost == ["a00000", "a00001", "a00002"]
        assert sorted(filter(None, again)) == ["a00000", "a00001", "a00002"]
        await app.publish(1, names=("a",))
        await eventually(lambda: len(again) == 4)
        assert app.errors == []
        assert broker.stats().vhosts[place.vhost].connects == 2
    assert await drained(place.server.url(), place.vhost, "work") == []


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_acks_of_handled_messages_reach_the_broker_when_it_shuts_down(place: Place) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["subscriptions"]["work"]["prefetch"] = 50
    async with Broker.create(config) as broker:
        app = App(broker)
        await app.publish(50)
        for publication in app.publications:
            await publication
        going, finish = asyncio.Event(), asyncio.Event()
        done: list[str | None] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            going.set()
            await finish.wait()
            follow_up = await broker.publish("b", {"done": message.message_id})
            await follow_up
            await ack_or_nack()
            done.append(message.message_id)

        subscription = await broker.subscribe("work", handle)
        await eventually(lambda: subscription.stats().unsettled == 50)
        shutting = asyncio.create_task(broker.shutdown())
        await asyncio.sleep(0)
        finish.set()
        await shutting
        assert len(done) == 50
    link = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
    channel = await link.open_channel()

    async def has_the_follow_ups_alone() -> bool:
        return (await channel.check_queue("work")).message_count == 50

    await eventually(has_the_follow_ups_alone)
    await link.close()


@pytest.mark.timeout(120)
async def test_unreferenced_subscription_consumes_on_after_a_cut(place: Place) -> None:
    """The broker references what it needs; the application need not."""
    handled: list[str | None] = []

    async def subscribe(broker: Broker) -> None:
        subscription = await broker.subscribe("work")

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            handled.append(message.message_id)
            await ack_or_nack()

        subscription.on("message", handle)
        await eventually(lambda: subscription.is_subscribed)

    async with Broker.create(a_config(place.url, place.vhost)) as broker:
        broker.on("error", lambda error, vhost: None)
        await subscribe(broker)
        gc.collect()
        connects = broker.stats().vhosts[place.vhost].connects
        place.proxy.cut()
        await eventually(lambda: broker.stats().vhosts[place.vhost].connects > connects)
        await (await broker.publish("a", {"id": "m1"}, message_id="m1"))
        await eventually(lambda: handled == ["m1"])
