"""Recovery while connections are cut, and handlers that block the loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.message import Message
from tests.faults.app import QUICK, drained
from tests.faults.conftest import Place
from tests.support.eventually import eventually


def a_config(place: Place, **subscription: Any) -> dict[str, Any]:
    return {
        "vhosts": {
            place.vhost: {
                "connection": {
                    "url": place.url,
                    "vhost": place.vhost,
                    "heartbeat": "1s",
                    "retry": QUICK,
                },
                "exchanges": ["orders", "dead"],
                "queues": {"work": {"options": {"dead_letter_exchange": "dead"}}, "cemetery": {}},
                "bindings": ["orders[#] -> work", "dead[order.#] -> cemetery"],
                "publications": {"orders": {"exchange": "orders", "routing_key": "order.placed"}},
                "subscriptions": {"work": {"queue": "work", "retry": QUICK, **subscription}},
            }
        }
    }


@pytest.mark.served
@pytest.mark.timeout(150)
@pytest.mark.parametrize("cuts", [0, 3])
async def test_poison_ends_in_the_dead_letter_queue_and_nowhere_else(
    place: Place, chance: random.Random, cuts: int
) -> None:
    """Without cuts exactly once each; with them at least once, and none is lost."""
    recovery = [{"strategy": "republish", "attempts": 3, "defer": "20ms"}, {"strategy": "nack"}]
    async with Broker.create(a_config(place, recovery=recovery, prefetch=5)) as broker:
        broker.on("error", lambda error, vhost: None)
        subscription = await broker.subscribe("work")
        for event in ("error", "ack_lost", "recovery_failed"):
            subscription.on(event, lambda *args: None)
        deliveries: Counter[str | None] = Counter()

        def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            deliveries[message.message_id] += 1
            raise ValueError("poison")

        names = [f"m{number:02}" for number in range(30)]
        for name in names:
            await (await broker.publish("orders", {"id": name}, message_id=name))
        subscription.on("message", fail)
        for _ in range(cuts):
            await asyncio.sleep(chance.uniform(0.05, 0.3))
            place.proxy.cut()

        async def work_is_empty() -> bool:
            if subscription.stats().unsettled or sum(deliveries.values()) < 4 * 30:
                return False
            link = await broker.connect(place.vhost)
            try:
                channel = await link.open_channel()
                work = await channel.check_queue("work")
                dead = await channel.check_queue("cemetery")
                # More consumers: the broker has not yet seen a cut, and holds what it will requeue.
                return (work.message_count, work.consumer_count, dead.message_count >= 30) == (
                    *(0, 1),
                    True,
                )
            finally:
                await link.close()

        await eventually(work_is_empty, timeout=30.0)
        await subscription.cancel()
    dead = Counter(await drained(place.server.url(), place.vhost, "cemetery"))
    assert sorted(dead) == names
    assert await drained(place.server.url(), place.vhost, "work") == []
    if not cuts:
        assert set(dead.values()) == {1}
        assert set(deliveries.values()) == {4}


@pytest.mark.timeout(120)
async def test_plain_handler_may_block_for_longer_than_the_heartbeat(place: Place) -> None:
    """It runs in a thread."""
    async with Broker.create(a_config(place)) as broker:
        lost: list[Any] = []
        broker.on("disconnect", lambda *args: lost.append(args))
        subscription = await broker.subscribe("work")
        calls: list[Any] = []

        @subscription.handle
        def handle(content: Any) -> None:
            calls.append(content)
            time.sleep(4.0)

        await (await broker.publish("orders", 1))
        await eventually(lambda: subscription.stats().acked == 1)
        assert calls == [1]
        assert lost == []


@pytest.mark.timeout(120)
async def test_handler_that_blocks_the_loop_is_named_and_its_message_comes_again(
    place: Place,
) -> None:
    """Heartbeats are missed meanwhile."""
    async with Broker.create(a_config(place, loop_lag="2s")) as broker:
        broker.on("error", lambda error, vhost: None)
        subscription = await broker.subscribe("work")
        blocked: list[tuple[float, str]] = []
        subscription.on("loop_blocked", lambda *args: blocked.append(args))
        subscription.on("ack_lost", lambda *args: None)
        subscription.on("error", lambda *args: None)
        seen: list[bool] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            seen.append(message.redelivered)
            if len(seen) == 1:
                time.sleep(5.0)  # noqa: ASYNC251 - that it blocks is the point
            await ack_or_nack()

        await (await broker.publish("orders", 1))
        subscription.on("message", handle)
        await eventually(lambda: blocked)
        [(seconds, name)] = blocked
        assert seconds >= 5.0
        assert name == "work"
        await eventually(lambda: subscription.is_subscribed)
        await (await broker.publish("orders", 2))
        await eventually(lambda: len(seen) >= 2)
    left = await drained_ids(place)
    assert left == []


async def drained_ids(place: Place) -> list[str]:
    """The messages left in the work queue."""
    return await drained(place.server.url(), place.vhost, "work")


async def test_cuts_add_no_handlers_beyond_the_prefetch(place: Place) -> None:
    async with Broker.create(a_config(place, prefetch=3)) as broker:
        broker.on("error", lambda error, vhost: None)
        running, go = Counter[Any](), asyncio.Event()
        most = 0

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            nonlocal most
            running[message.message_id] += 1
            most = max(most, running.total())
            await go.wait()
            running[message.message_id] -= 1
            await ack_or_nack()

        subscription = await broker.subscribe("work", handle)
        subscription.on("ack_lost", lambda *args: None)
        for number in range(12):
            await (await broker.publish("orders", number))
        await eventually(lambda: running.total() == 3)
        for _ in range(3):
            place.proxy.cut()
            await eventually(lambda: broker.health().ready is False)
            await eventually(lambda: broker.health().ready)
            await (await broker.publish("orders", "behind the cut"))
        assert (most, subscription.stats().unsettled) == (3, 0)
        go.set()
        await eventually(lambda: subscription.stats().acked >= 15)
        assert most == 3
