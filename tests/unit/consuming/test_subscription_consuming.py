"""Concurrency, pausing, iterating, prefetch and releasing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config import Nack, Republish
from broker_client.errors import ChannelClosedError
from broker_client.message import Message
from tests.support.consuming import GatedHandler, SubscriptionHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


def given_back(*tags: int) -> list[tuple[Any, ...]]:
    return [("nack", tag, True, False) for tag in tags]


def acked(*tags: int) -> list[tuple[Any, ...]]:
    return [("ack", tag, False) for tag in tags]


# --------------------------------------------------------------------------- names


async def test_qualified_queue_is_consumed_and_is_the_message_queue() -> None:
    async with SubscriptionHarness(setup={"queue": "ns:fulfil"}) as harness:
        channel = await harness.consume()
        assert ("consume", "ns:fulfil") in channel.asked
        channel.deliver()
        [(message, _, ack_or_nack)] = harness.kept
        assert message.queue == harness.subscription.queue == "ns:fulfil"
        assert message.headers["rascal"] == {
            "originalQueue": "ns:fulfil",
            "originalVhost": "/",
            "redeliveries": 0,
        }
        await ack_or_nack("failed", Republish())
        [copy] = harness.republished
        assert copy.routing_key == "ns:fulfil"
        assert copy.properties.headers is not None
        assert list(copy.properties.headers["rascal"]["recovery"]) == ["ns:fulfil"]


# --------------------------------------------------------------------------- concurrency


async def test_concurrency_limits_the_handlers_that_run_and_keeps_the_order() -> None:
    """apart from prefetch."""
    async with SubscriptionHarness(prefetch=5, concurrency=2) as harness:
        gate = GatedHandler()
        channel = await harness.consume(gate)
        for _ in range(5):
            channel.deliver()
        await settle()
        assert gate.begun == ["m1", "m2"]
        assert harness.subscription.stats().waiting == 3
        await gate.let(5)
        assert gate.begun == ["m1", "m2", "m3", "m4", "m5"]
        assert gate.most == 2
        assert channel.settled == acked(1, 2, 3, 4, 5)


async def test_failing_handlers_make_room_too() -> None:
    async with SubscriptionHarness(concurrency=1, recovery=[Nack()]) as harness:
        harness.listen("error")

        async def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            raise ValueError(message.message_id)

        channel = await harness.consume(fail)
        for _ in range(3):
            channel.deliver()
        await settle()
        assert channel.settled == [("nack", tag, False, False) for tag in (1, 2, 3)]


async def test_cancel_gives_back_what_has_not_started_and_finishes_what_has() -> None:
    async with SubscriptionHarness(prefetch=5, concurrency=2) as harness:
        gate = GatedHandler()
        channel = await harness.consume(gate)
        for _ in range(5):
            channel.deliver()
        await settle()
        cancelling = asyncio.create_task(harness.subscription.cancel())
        await settle()
        assert channel.settled == given_back(3, 4, 5)
        await gate.let(2)
        await cancelling
        assert channel.settled == given_back(3, 4, 5) + acked(1, 2)
        assert gate.begun == ["m1", "m2"]
        assert channel.how_ended == "closed"
        stats = harness.subscription.stats()
        assert (stats.acked, stats.given_back, stats.unsettled) == (2, 3, 0)


async def test_delivery_that_crosses_the_cancel_is_given_back() -> None:
    async with SubscriptionHarness() as harness:
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver()
        await settle()

        def cross(operation: str, name: str) -> None:
            if operation == "cancel":
                channel.deliver()

        channel.before = cross
        cancelling = asyncio.create_task(harness.subscription.cancel())
        await settle()
        assert gate.begun == ["m1"]
        assert channel.settled == given_back(2)
        await gate.let(1)
        await cancelling


async def test_without_acks_cancel_handles_what_it_has() -> None:
    async with SubscriptionHarness(concurrency=1, options={"no_ack": True}) as harness:
        handled: list[Any] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            await asyncio.sleep(0.1)
            handled.append(message.message_id)

        channel = await harness.consume(handle)
        channel.deliver()
        channel.deliver()
        await harness.subscription.cancel()
        assert handled[:1] == ["m1"]
        assert channel.settled == []


async def test_unstarted_deliveries_of_a_lost_channel_are_dropped() -> None:
    async with SubscriptionHarness(concurrency=1) as harness:
        harness.listen("ack_lost")
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver()
        channel.deliver()
        await settle()
        harness.replace_link()
        await settle()
        await gate.let(3)
        assert gate.begun == ["m1"]
        assert harness.events() == ["ack_lost"], "of the one that ran"
        assert channel.settled == []


# --------------------------------------------------------------------------- pause, resume


async def test_pause_stops_the_consumer_gives_back_the_unstarted_and_resume_goes_on() -> None:
    async with SubscriptionHarness(prefetch=5, concurrency=1) as harness:
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver()
        channel.deliver()
        await settle()
        await harness.subscription.pause()
        assert harness.subscription.is_paused
        assert not harness.subscription.is_subscribed
        assert channel.settled == given_back(2)
        await gate.let(1)
        assert channel.settled == given_back(2) + acked(1), "what ran may finish"
        channel.consumers.clear()
        await harness.subscription.resume()
        assert harness.channel is channel, "the same session"
        channel.deliver()
        await gate.let(1)
        assert gate.begun == ["m1", "m3"]


async def test_pause_outlives_a_reconnect() -> None:
    async with SubscriptionHarness() as harness:
        await harness.consume()
        await harness.subscription.pause()
        harness.replace_link()
        await settle()
        assert [question[0] for question in harness.link.asked] == ["qos"]
        assert harness.subscription.stats().state == "paused"
        await harness.subscription.resume()
        assert harness.subscription.is_subscribed


async def test_pause_before_the_first_listener_holds_the_start() -> None:
    async with SubscriptionHarness() as harness:
        await harness.subscription.pause()
        harness.subscription.on("message", lambda *args: None)
        await settle()
        assert "consume" not in [question[0] for question in harness.link.asked]


async def test_pause_and_resume_twice_have_no_effect() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        await asyncio.gather(harness.subscription.pause(), harness.subscription.pause())
        await asyncio.gather(harness.subscription.resume(), harness.subscription.resume())
        assert [question[0] for question in channel.asked] == [
            "qos",
            "consume",
            "cancel",
            "consume",
        ]


async def test_resume_on_a_channel_that_fails_consumes_on_another() -> None:
    async with SubscriptionHarness() as harness:
        harness.listen("error")
        channel = await harness.consume()
        await harness.subscription.pause()

        def refuse(operation: str, name: str) -> None:
            if operation == "consume":
                channel.is_usable = False
                raise ChannelClosedError(404, "no queue")

        channel.before = refuse
        await harness.subscription.resume()
        await asyncio.sleep(3.0)
        assert harness.subscription.is_subscribed
        assert harness.channel is not channel


# --------------------------------------------------------------------------- async for


async def test_async_for_takes_deliveries_in_order_and_ends_with_the_subscription() -> None:
    async with SubscriptionHarness(prefetch=3) as harness:
        taken: list[Any] = []

        async def loop() -> str:
            async for message, content, ack_or_nack in harness.subscription:
                taken.append((message.message_id, content))
                await ack_or_nack()
            return "ended"

        task = asyncio.create_task(loop())
        await settle()
        channel = harness.channel
        for body in (b"a", b"b"):
            channel.deliver(body)
        await settle()
        assert taken == [("m1", b"a"), ("m2", b"b")]
        await harness.subscription.cancel()
        assert await task == "ended"
        assert channel.settled == acked(1, 2)


async def test_what_no_loop_has_taken_is_given_back_at_the_end() -> None:
    async with SubscriptionHarness(prefetch=3) as harness:
        iterator = aiter(harness.subscription)
        await settle()
        channel = harness.channel
        for _ in range(3):
            channel.deliver()
        message, _, ack_or_nack = await anext(iterator)
        assert harness.subscription.stats().waiting == 2
        cancelling = asyncio.create_task(harness.subscription.cancel())
        await settle()
        await ack_or_nack()
        await cancelling
        assert message.message_id == "m1"
        assert channel.settled == given_back(2, 3) + acked(1)
        assert [item async for item in harness.subscription] == []


async def test_loop_does_not_see_deliveries_of_a_lost_channel() -> None:
    async with SubscriptionHarness() as harness:
        iterator = aiter(harness.subscription)
        await settle()
        harness.channel.deliver(b"old")
        harness.replace_link()
        await settle()
        harness.channel.deliver(b"new")
        _, content, ack_or_nack = await anext(iterator)
        assert content == b"new"
        await ack_or_nack()


# --------------------------------------------------------------------------- prefetch


async def test_channel_prefetch_is_set_for_the_whole_channel() -> None:
    async with SubscriptionHarness(prefetch=7, channel_prefetch=20) as harness:
        channel = await harness.consume()
        assert channel.asked[:2] == [("qos", 7), ("qos", 20, "shared")]


async def test_channel_prefetch_changes_at_once_and_for_later_channels() -> None:
    async with SubscriptionHarness(prefetch=7) as harness:
        await harness.subscription.set_channel_prefetch(3)  # no channel yet
        channel = await harness.consume()
        await harness.subscription.set_channel_prefetch(4)
        assert channel.asked == [
            ("qos", 7),
            ("qos", 3, "shared"),
            ("consume", "fulfil"),
            ("qos", 4, "shared"),
        ]
        harness.replace_link()
        await settle()
        assert ("qos", 4, "shared") in harness.channel.asked


async def test_channel_prefetch_that_is_refused_is_not_asked_for_again() -> None:
    """RabbitMQ 4.3 refuses it, and closes the channel."""
    async with SubscriptionHarness(channel_prefetch=3) as harness:
        harness.listen("error")
        channel = await harness.consume()
        refused = ChannelClosedError(540, "NOT_IMPLEMENTED")

        def refuse(operation: str, name: str) -> None:
            if operation == "qos":
                channel.fail(refused)
                raise refused

        channel.before = refuse
        with pytest.raises(ChannelClosedError):
            await harness.subscription.set_channel_prefetch(9)
        await asyncio.sleep(3.0)
        assert harness.subscription.is_subscribed
        assert ("qos", 3, "shared") in harness.channel.asked


async def test_prefetch_held_by_recoveries_that_wait_is_reported_once() -> None:
    """Without deferred requeue they wait in the client."""
    async with SubscriptionHarness(prefetch=2, recovery=[Nack(requeue=True, defer=2.0)]) as harness:
        harness.listen("prefetch_saturated")
        channel = await harness.consume()
        for _ in range(3):
            channel.deliver()
        waits = [asyncio.create_task(each("failed")) for _, _, each in harness.kept]
        await settle()
        assert harness.heard == [("prefetch_saturated", (2,))]
        await asyncio.gather(*waits)
        assert sorted(channel.settled) == given_back(1, 2, 3)
        assert harness.events() == ["prefetch_saturated"]


async def test_recovery_that_waits_leaves_room_unsaid() -> None:
    async with SubscriptionHarness(prefetch=2, recovery=[Nack(requeue=True, defer=2.0)]) as harness:
        harness.listen("prefetch_saturated")
        channel = await harness.consume()
        channel.deliver()
        await harness.kept[0][2]("failed")
        assert harness.heard == []


# --------------------------------------------------------------------------- ack time-outs


async def test_channel_closed_over_a_late_ack_is_reported_and_consumed_again_at_once() -> None:
    async with SubscriptionHarness() as harness:
        harness.listen("ack_timeout", "error", "ack_lost")
        channel = await harness.consume()
        channel.deliver()
        closed = ChannelClosedError(
            406,
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
            "Timeout value used: 1000 ms",
        )
        channel.fail(closed)
        await settle()
        assert harness.heard == [("ack_timeout", (closed,))]
        assert harness.subscription.is_subscribed
        await harness.kept[0][2]()
        assert channel.settled == []
        assert harness.events() == ["ack_timeout", "ack_lost"]
        harness.channel.deliver(b"next")
        assert harness.contents()[-1] == b"next"


async def test_late_ack_without_retries_ends_the_subscription() -> None:
    async with SubscriptionHarness(retry=False) as harness:
        harness.listen("ack_timeout", "error")
        channel = await harness.consume()
        channel.fail(ChannelClosedError(406, "delivery acknowledgement on channel 1 timed out"))
        await settle()
        assert harness.events() == ["ack_timeout"]
        assert harness.subscription.stats().state == "cancelled"


async def test_other_precondition_is_an_error() -> None:
    async with SubscriptionHarness() as harness:
        harness.listen("ack_timeout", "error")
        channel = await harness.consume()
        channel.fail(ChannelClosedError(406, "PRECONDITION_FAILED - unknown delivery tag 7"))
        await settle()
        assert harness.events() == ["error"]


# --------------------------------------------------------------------------- cancel notice


@pytest.mark.parametrize("event", ["cancelled", "cancel"])
async def test_cancel_by_the_broker_is_heard_under_either_name(event: str) -> None:
    async with SubscriptionHarness() as harness:
        harness.listen(event, "error")
        channel = await harness.consume()
        channel.cancel_consumer()
        await settle()
        assert harness.events() == [event]
