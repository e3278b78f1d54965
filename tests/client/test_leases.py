"""Message time-outs and touch, on the built-in broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_client import Broker, Message
from tests.support.eventually import eventually


def a_config(*, timeout: str, most: str, **subscription: Any) -> dict[str, Any]:
    return {
        "node": {"message_timeout": timeout, "max_message_timeout": most},
        "vhosts": {
            "/": {
                "queues": ["work"],
                "publications": {"work": {"queue": "work"}},
                "subscriptions": {"work": {"queue": "work", **subscription}},
            }
        },
    }


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_time_of_a_message_is_extended_while_its_handler_runs_or_it_waits_for_one(
    concurrency: int | None,
) -> None:
    config = a_config(timeout="1s", most="60s", concurrency=concurrency)
    async with Broker.create(config) as broker:
        subscription = await broker.subscribe("work")
        told: list[str] = []
        for event in ("ack_due", "message_timeout", "ack_lost"):
            subscription.on(event, lambda *args, event=event: told.append(event))
        handled: list[Any] = []

        @subscription.handle
        async def handle(content: Any) -> None:
            handled.append(content)
            await asyncio.sleep(2.5)

        for number in range(2):
            await (await broker.publish("work", number))
        await eventually(lambda: subscription.stats().acked == 2)
        assert (handled, told) == ([0, 1], [])


@pytest.mark.parametrize("strategy", ["republish", "forward"])
async def test_time_of_a_message_is_extended_while_its_recovery_waits(strategy: str) -> None:
    recovery = {"strategy": strategy, "defer": "2500ms", "attempts": 1}
    if strategy == "forward":
        recovery["publication"] = "work"
    config = a_config(timeout="1s", most="60s", recovery=[recovery, {"strategy": "ack"}])
    async with Broker.create(config) as broker:
        subscription = await broker.subscribe("work")
        told: list[str] = []
        for event in ("ack_due", "message_timeout", "ack_lost"):
            subscription.on(event, lambda *args, event=event: told.append(event))
        tries = 0

        @subscription.handle
        async def handle(content: Any) -> None:
            nonlocal tries
            tries += 1
            raise ValueError

        await (await broker.publish("work", "x"))
        await eventually(lambda: subscription.stats().acked == 1)
        assert (tries, told) == (2, [])


async def test_handler_beyond_the_longest_time_is_told_of_and_not_joined_by_another() -> None:
    config = a_config(timeout="500ms", most="1s", prefetch=1)
    async with Broker.create(config) as broker:
        subscription = await broker.subscribe("work")
        told: list[str] = []
        for event in ("ack_due", "message_timeout", "ack_lost"):
            subscription.on(event, lambda *args, event=event: told.append(event))
        timed_out = asyncio.Event()
        subscription.on("message_timeout", lambda message: timed_out.set())
        running, most, handled = 0, 0, 0

        @subscription.handle
        async def handle(content: Any, message: Message) -> None:
            nonlocal running, most, handled
            running += 1
            most = max(most, running)
            if not message.redelivered:
                await timed_out.wait()
            running -= 1
            handled += 1

        await (await broker.publish("work", "x"))
        await eventually(lambda: subscription.stats().acked == 1)
        assert (most, handled) == (1, 2)
        assert told[0] == "ack_due"
        assert [event for event in told if event != "ack_due"] == ["message_timeout", "ack_lost"]


async def test_message_that_no_handler_runs_for_times_out_as_before() -> None:
    config = a_config(timeout="200ms", most="60s", close_timeout="50ms")
    async with Broker.create(config) as broker:
        kept: list[Any] = []
        subscription = await broker.subscribe("work", lambda *args: kept.append(args))
        told: list[Message] = []
        subscription.on("message_timeout", told.append)
        await (await broker.publish("work", "x"))
        await eventually(lambda: told)


async def test_orderly_shutdowns_do_not_count_against_the_delivery_limit(tmp_path: Path) -> None:
    config = a_config(timeout="60s", most="900s", close_timeout="10ms", prefetch=5)
    vhost = config["vhosts"]["/"]
    vhost["connection"] = f"embedded://{tmp_path}/broker.db"
    vhost["queues"] = {"work": {"options": {"arguments": {"x-delivery-limit": 3}}}}
    for start in range(6):
        async with Broker.create(config) as broker:
            begun: list[Any] = []

            async def handle(content: Any, begun: list[Any] = begun) -> None:
                begun.append(content)
                await asyncio.sleep(60)

            if not start:
                for number in range(5):
                    await (await broker.publish("work", number))
            (await broker.subscribe("work")).handle(handle)
            await eventually(lambda begun=begun: sorted(begun) == [0, 1, 2, 3, 4])
