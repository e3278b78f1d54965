"""The consumer of a subscription: its states, waits, and the order of its checks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from broker_client.config import Ack, Forward, Nack, Republish, Strategy
from broker_client.errors import ChannelClosedError
from broker_client.message import Message
from tests.support.consuming import SubscriptionHarness
from tests.support.eventually import eventually
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


def now() -> float:
    return asyncio.get_running_loop().time()


# --------------------------------------------------------------------------- the consumer


async def test_waits_begin_anew_once_the_consumer_was_stable() -> None:
    async with SubscriptionHarness(
        retry={"min": 1.0, "max": 64.0, "stable_after": 30.0}
    ) as harness:
        times: list[float] = []
        harness.subscription.on("error", lambda error: times.append(now()))
        refused = True

        def refuse(operation: str, name: str) -> None:
            if operation == "consume" and refused:
                raise ChannelClosedError(403, "ACCESS_REFUSED")

        harness.link.before = refuse
        harness.subscription.on("message", lambda *args: None)
        await asyncio.sleep(20.0)
        before = [later - earlier for earlier, later in pairwise(times)]
        refused = False
        await asyncio.sleep(60.0)
        assert harness.subscription.is_subscribed
        times.clear()
        harness.channel.fail(ChannelClosedError(541, "INTERNAL_ERROR"))
        await settle()
        lost = now()
        await eventually(lambda: harness.subscription.is_subscribed, timeout=60.0)
        assert now() - lost < before[1], "as short as the first"


async def test_channel_is_the_subscriptions_own_and_has_no_confirms() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        assert not channel.confirms
        harness.replace_link()
        await settle()
        assert harness.channel is not channel
        assert len(harness.link.channels) == 1, "one for each session"


async def test_operations_on_the_channel_run_one_at_a_time() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        under_way, most = 0, 0

        def slow(ask: Callable[..., Any]) -> Callable[..., Any]:
            async def asked(*args: Any, **more: Any) -> Any:
                nonlocal under_way, most
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(1.0)
                under_way -= 1
                return await ask(*args, **more)

            return asked

        for operation in ("qos", "consume", "cancel"):
            setattr(channel, operation, slow(getattr(channel, operation)))
        channel.asked.clear()
        await asyncio.gather(
            harness.subscription.set_channel_prefetch(3),
            harness.subscription.pause(),
            harness.subscription.set_channel_prefetch(4),
        )
        channel.consumers.clear()
        await asyncio.gather(harness.subscription.resume(), harness.subscription.cancel())
        assert [each[0] for each in channel.asked] == ["qos", "cancel", "qos", "consume", "cancel"]
        assert most == 1


async def test_cancel_ends_the_wait_to_subscribe_again() -> None:
    async with SubscriptionHarness(retry={"min": 60.0, "max": 60.0}) as harness:
        harness.listen("error")
        channel = await harness.consume()
        channel.fail(ChannelClosedError(541, "INTERNAL_ERROR"))
        await settle()
        began = now()
        await harness.subscription.cancel()
        assert now() == began
        await asyncio.sleep(600.0)
        assert harness.link.channels == [channel]


async def test_subscription_tells_its_name_its_configuration_and_whether_it_ended() -> None:
    async with SubscriptionHarness(prefetch=3) as harness:
        await harness.consume()
        assert (harness.subscription.name, harness.subscription.queue) == ("orders", "fulfil")
        assert harness.subscription.config.prefetch == 3
        assert not harness.subscription.is_cancelled
        await harness.subscription.cancel()
        assert harness.subscription.is_cancelled


async def test_consumer_that_begins_while_it_is_cancelled_is_stopped() -> None:
    async with SubscriptionHarness(close_timeout=60.0) as harness:
        channel = await harness.consume()
        await harness.subscription.pause()
        channel.consumers.clear()
        consume, answer = channel.consume, asyncio.Event()

        async def answered(*args: Any, **more: Any) -> str:
            await answer.wait()
            return await consume(*args, **more)

        channel.consume = answered  # type: ignore[method-assign] # a broker that takes its time
        resuming = asyncio.create_task(harness.subscription.resume())
        cancelling = asyncio.create_task(harness.subscription.cancel())
        await settle()
        answer.set()
        await asyncio.gather(resuming, cancelling)
        assert [each[0] for each in channel.asked][-2:] == ["consume", "cancel"]
        assert harness.subscription.stats().state == "cancelled"


# --------------------------------------------------------------------------- a delivery's way


class Counter:
    """A counter that counts every redelivery as the hundredth."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def increment(self, key: str) -> int:
        self.asked.append(key)
        return 100

    async def close(self) -> None:
        """Does nothing."""


def counted(counter: Counter) -> SubscriptionHarness:
    return SubscriptionHarness(setup={"counter": counter}, redeliveries={"limit": 2})


async def test_immediate_nack_comes_before_counting() -> None:
    counter = Counter()
    async with counted(counter) as harness:
        harness.listen("redeliveries_exceeded")
        channel = await harness.consume()
        flag = {"immediateNack": True, "xDeath": {"count": 0, "time": {"value": 0}}}
        headers = {"rascal": {"recovery": {"fulfil": flag}}}
        channel.deliver(redelivered=True, headers=headers)
        await settle()
        assert channel.settled == [("nack", 1, False, False)]
        assert (counter.asked, harness.events()) == ([], [])


async def test_counting_comes_before_reading_the_body() -> None:
    async with counted(Counter()) as harness:
        harness.listen("redeliveries_exceeded", "invalid_content")
        channel = await harness.consume()
        channel.deliver(b"{", redelivered=True, content_type="application/json")
        await settle()
        assert harness.events() == ["redeliveries_exceeded"]
        await harness.heard[0][1][2]()


@pytest.mark.parametrize(
    ("restore", "shown"),
    [(True, ("first", "key")), (False, ("", "fulfil")), (None, ("", "fulfil"))],
)
async def test_copy_shows_its_first_routing_where_its_header_says_so(
    restore: bool | None, shown: tuple[str, str]
) -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        history = {"originalExchange": "first", "originalRoutingKey": "key"}
        if restore is not None:
            history["restoreRoutingHeaders"] = restore  # type: ignore[assignment] # a header
        channel.deliver(exchange="", routing_key="fulfil", headers={"rascal": history})
        [(message, _, ack_or_nack)] = harness.kept
        assert (message.exchange, message.routing_key) == shown
        await ack_or_nack()


# --------------------------------------------------------------------------- strategies


@pytest.mark.parametrize(
    "strategy",
    [
        Ack(defer=5.0),
        Nack(defer=5.0),
        Nack(requeue=True, defer=5.0),
        Republish(defer=5.0),
        Forward(publication="p", defer=5.0),
    ],
    ids=str,
)
async def test_every_strategy_waits_with_the_message_unsettled(strategy: Strategy) -> None:
    async with SubscriptionHarness() as harness:
        sent: list[str] = []

        async def forward_copy(message: Message, *more: Any) -> None:
            sent.append(message.queue)

        harness.forward_copy = forward_copy  # type: ignore[assignment] # the test's own
        channel = await harness.consume()
        channel.deliver()
        began = now()
        settling = asyncio.create_task(harness.kept[0][2]("bad", strategy))
        await asyncio.sleep(4.9)
        assert (channel.settled, harness.republished, sent) == ([], [], [])
        assert harness.subscription.stats().unsettled == 1
        await settling
        assert now() - began == pytest.approx(5.0)
        assert len(channel.settled) == 1


async def test_strategy_ack_of_all_acks_everything_before_it() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        for _ in range(3):
            channel.deliver()
        await harness.kept[1][2]("bad", Ack(), all=True)
        assert channel.settled == [("ack", 2, True)]
        assert harness.subscription.stats().unsettled == 1
        await harness.kept[2][2]()


# --------------------------------------------------------------------------- hops


def travelled(**queues: dict[str, int]) -> dict[str, Any]:
    return {"rascal": {"recovery": queues}}


@pytest.mark.parametrize(
    ("headers", "copied"),
    [
        ({}, True),
        (travelled(fulfil={"republished": 2}, other={"forwarded": 1}), True),
        (travelled(fulfil={"republished": 2}, other={"forwarded": 2}), False),
        (travelled(other={"republished": 9}), False),
        ({"rascal": "nonsense"}, True),
        ({"rascal": {"recovery": ["nonsense"]}}, True),
        ({"rascal": {"recovery": {"fulfil": {"republished": "nonsense"}}}}, True),
    ],
)
async def test_hops_over_all_queues_are_limited(headers: dict[str, Any], copied: bool) -> None:
    async with SubscriptionHarness(max_hops=4, recovery=[Republish(), Nack()]) as harness:
        channel = await harness.consume()
        channel.deliver(headers=headers)
        await harness.kept[0][2]("bad")
        assert len(harness.republished) == copied
        assert channel.settled == [("ack", 1, False) if copied else ("nack", 1, False, False)]
