"""The end of a subscription with handlers that do not end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config.loader import load_config
from broker_client.consuming.consumer import CANCEL_TIMEOUT
from broker_client.consuming.redeliveries import MemoryCounter
from broker_client.consuming.setup import ConsumingStores
from broker_client.message import Message
from tests.support.consuming import SubscriptionHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


async def test_handler_that_refuses_to_end_holds_up_the_end_for_a_while_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = asyncio.Event()

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with SubscriptionHarness(close_timeout=2.0) as harness:
        channel = await harness.consume(handle)
        channel.deliver()
        now = asyncio.get_running_loop().time()
        with caplog.at_level(logging.ERROR):
            await harness.subscription.cancel()
        assert asyncio.get_running_loop().time() - now == 2.0 + CANCEL_TIMEOUT
        assert "handler was cancelled 5 s ago and is still running" in caplog.text
        go.set()
        await settle()


async def test_handlers_end_in_their_time_also_while_the_link_is_away() -> None:
    ended: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await asyncio.sleep(1.0)
        ended.append("ended")

    async with SubscriptionHarness(close_timeout=2.0) as harness:
        channel = await harness.consume(handle)
        channel.deliver()
        harness.up.clear()
        harness.link.lose()
        await settle()
        await harness.subscription.cancel()
        assert ended == ["ended"]


async def test_all_that_came_without_acks_is_handled_before_the_end() -> None:
    handled: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await asyncio.sleep(0.1)
        handled.append(content)

    async with SubscriptionHarness(
        close_timeout=2.0, concurrency=1, options={"no_ack": True}
    ) as harness:
        channel = await harness.consume(handle)
        for _ in range(5):
            channel.deliver()
        await harness.subscription.cancel()
        assert len(handled) == 5


async def test_store_that_does_not_let_go_holds_up_the_end_for_a_while_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Clinging(MemoryCounter):
        async def close(self) -> None:
            await asyncio.Event().wait()

    config = load_config(
        {
            "redeliveries": {"counters": {"c": {"type": "custom"}}},
            "vhosts": {
                "/": {
                    "queues": ["q"],
                    "subscriptions": {"s": {"queue": "q", "redeliveries": {"counter": "c"}}},
                }
            },
        }
    )
    stores = ConsumingStores(config, {"c": lambda counter: Clinging(10)})
    stores.setup(config.subscriptions["s"])
    now = asyncio.get_running_loop().time()
    await stores.close()
    assert asyncio.get_running_loop().time() - now == 5.0
    assert "while closing: TimeoutError()" in caplog.text
