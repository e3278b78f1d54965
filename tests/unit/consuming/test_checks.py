"""Checks before handlers: redelivery counters and deduplication."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.config import Ack, DeduplicateConfig, Nack, Republish
from broker_client.consuming.deduplication import handled_ids_from
from broker_client.consuming.redeliveries import MemoryCounter, RedeliveryCounter
from broker_client.errors import RedeliveriesExceededError, RedeliveriesUncountedError
from broker_client.message import Message
from tests.support.consuming import GatedHandler, SubscriptionHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop

ACK_2 = ("ack", 2, False)
DEAD = ("nack", 1, False, False)


class Counter:
    """A counter that answers as the test says."""

    def __init__(self, answer: object = 1, delay: float = 0.0) -> None:
        self.answer = answer
        self.delay = delay
        self.keys: list[str] = []

    async def increment(self, key: str) -> int:
        self.keys.append(key)
        await asyncio.sleep(self.delay)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value] # a store may answer anything

    async def close(self) -> None:
        """Does nothing."""


def a_desk(counter: RedeliveryCounter, **limits: Any) -> SubscriptionHarness:
    return SubscriptionHarness(setup={"counter": counter}, redeliveries={"limit": 2, **limits})


# --------------------------------------------------------------------------- counting


async def test_first_delivery_is_not_counted() -> None:
    counter = Counter()
    async with a_desk(counter) as harness:
        channel = await harness.consume()
        channel.deliver()
        await settle()
        assert counter.keys == []
        assert harness.kept[0][0].headers["rascal"]["redeliveries"] == 0


async def test_delivery_without_an_id_is_not_counted() -> None:
    counter = Counter()
    async with a_desk(counter) as harness:
        channel = await harness.consume()
        channel.deliver(redelivered=True, message_id=None)
        await settle()
        assert counter.keys == []
        assert harness.kept[0][0].redeliveries == 0


async def test_redelivery_is_counted_by_subscription_and_id_and_shown_to_the_handler() -> None:
    counter = MemoryCounter(10)
    async with a_desk(counter) as harness:
        channel = await harness.consume()
        for _ in range(2):
            channel.deliver(redelivered=True, message_id="m")
        await settle()
        shown = [message.headers["rascal"]["redeliveries"] for message, _, _ in harness.kept]
        assert shown == [1, 2]
        assert [message.attempts for message, _, _ in harness.kept] == [2, 3]
        assert await counter.increment("orders/m") == 3


async def test_broker_that_counts_is_believed() -> None:
    """`x-delivery-count` of quorum queues, attempts of the built-in broker."""
    counter = Counter()
    async with a_desk(counter, limit=5) as harness:
        channel = await harness.consume()
        channel.deliver(redelivered=True, headers={"x-delivery-count": 4})
        channel.deliver(redelivered=True, attempts=3)
        await settle()
        assert counter.keys == []
        assert [message.redeliveries for message, _, _ in harness.kept] == [4, 2]


async def test_no_counter_sets_no_limit() -> None:
    """`stub`."""
    async with SubscriptionHarness(redeliveries={"limit": 0}) as harness:
        channel = await harness.consume()
        channel.deliver(redelivered=True, attempts=500)
        assert len(harness.kept) == 1


@pytest.mark.parametrize(("count", "handled"), [(2, True), (3, False)])
async def test_limit_is_exceeded_by_more_than_it(count: int, handled: bool) -> None:
    async with a_desk(Counter(count)) as harness:
        harness.listen("error")
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        await settle()
        assert bool(harness.kept) is handled
        assert harness.events() == ([] if handled else ["error"])
        assert channel.settled == ([] if handled else [DEAD])


@pytest.mark.parametrize(
    ("listening", "heard"),
    [
        (("redeliveries_exceeded", "redeliveries_error", "error"), "redeliveries_exceeded"),
        (("redeliveries_error", "error"), "redeliveries_error"),
        (("error",), "error"),
    ],
)
async def test_exceeded_falls_through_to_the_next_event(
    listening: tuple[str, ...], heard: str
) -> None:
    async with a_desk(Counter(3)) as harness:
        harness.listen(*listening)
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        await settle()
        [(event, args)] = harness.heard
        assert event == heard
        error = args[0]
        assert isinstance(error, RedeliveriesExceededError)
        assert (error.redeliveries, error.limit) == (3, 2)
        if heard == "error":
            assert channel.settled == [DEAD]
        else:
            assert channel.settled == [], "the listener's to settle"
            await args[2]()
            assert channel.settled == [("ack", 1, False)]


@pytest.mark.parametrize(
    ("listening", "heard"),
    [
        (("redeliveries_exceeded", "redeliveries_error", "error"), "redeliveries_error"),
        (("redeliveries_exceeded", "error"), "error"),
        (("error",), "error"),
    ],
)
async def test_counter_that_does_not_answer_is_reported_and_costs_no_message(
    listening: tuple[str, ...], heard: str
) -> None:
    async with a_desk(Counter(delay=5.0), timeout=1.0) as harness:
        harness.listen(*listening)
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        await asyncio.sleep(1.1)
        [(event, args)] = harness.heard
        assert event == heard
        assert isinstance(args[0], RedeliveriesUncountedError)
        assert "1 s" in str(args[0])
        assert harness.contents() == ([b"hello"] if heard == "error" else [])
        assert channel.settled == []
        assert harness.subscription.stats().unsettled == 1
        harness.link.consuming().abort()


async def test_counter_that_fails_is_uncounted_too() -> None:
    async with a_desk(Counter(OSError("disk"))) as harness:
        harness.listen("redeliveries_error")
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        await settle()
        assert "disk" in str(harness.heard[0][1][0])


class OddError(BaseException):
    """A BaseException that is not an Exception, as those of test libraries."""


@pytest.mark.parametrize("answer", [None, "3", OddError("odd"), asyncio.CancelledError("inner")])
async def test_counter_that_does_anything_costs_no_message_and_the_next_one_comes(
    answer: object,
) -> None:
    async with a_desk(Counter(answer)) as harness:
        harness.listen("error")
        channel = await harness.consume()
        channel.deliver(b"one", redelivered=True)
        channel.deliver(b"two")
        await settle()
        assert harness.contents() == [b"one", b"two"]
        [(_, args)] = harness.heard
        assert isinstance(args[0], RedeliveriesUncountedError)
        harness.link.consuming().abort()


async def test_slow_counter_keeps_the_order_and_is_asked_for_all_at_once() -> None:
    counter = Counter(delay=1.0)
    async with a_desk(counter, timeout=3.0) as harness:
        channel = await harness.consume()
        channel.deliver(b"1", redelivered=True)
        channel.deliver(b"2", redelivered=True)
        channel.deliver(b"3")
        await settle()
        assert harness.kept == []
        await asyncio.sleep(1.01)
        assert harness.contents() == [b"1", b"2", b"3"]


async def test_cancel_gives_back_what_is_still_being_counted() -> None:
    async with a_desk(Counter(delay=60.0), timeout=90.0) as harness:
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        await harness.subscription.cancel()
        assert channel.settled == [("nack", 1, True, False)]
        assert harness.kept == []


async def test_channel_lost_before_the_counter_was_asked_leaves_nothing_behind() -> None:
    async with a_desk(Counter(delay=1.0), timeout=3.0) as harness:
        channel = await harness.consume()
        channel.deliver(redelivered=True)
        harness.replace_link()
        await asyncio.sleep(2.0)
        assert harness.kept == []
        assert harness.subscription.stats().waiting == 0


# --------------------------------------------------------------------------- immediate nack

FLAGGED = {"immediateNack": True, "xDeath": {"count": 0, "time": {"value": 0}}}


def flagged(**more: Any) -> dict[str, Any]:
    return {"rascal": {"recovery": {"fulfil": dict(FLAGGED)}}, **more}


async def test_copy_for_immediate_nack_is_nacked_without_its_handler() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        channel.deliver(headers=flagged())
        await settle()
        assert channel.settled == [DEAD]
        assert harness.kept == []


async def test_copy_that_was_rejected_since_is_delivered_without_its_flag() -> None:
    async with SubscriptionHarness() as harness:
        channel = await harness.consume()
        death = {"queue": "fulfil", "reason": "rejected", "count": 1}
        channel.deliver(headers=flagged(**{"x-death": [death]}))
        [(message, _, ack_or_nack)] = harness.kept
        assert message.headers["rascal"]["recovery"] == {"fulfil": {}}
        await ack_or_nack("again", Republish())
        headers = harness.republished[0].properties.headers
        assert headers is not None
        assert headers["rascal"]["recovery"] == {"fulfil": {"republished": 1}}


async def test_without_acks_there_is_nothing_to_nack() -> None:
    async with SubscriptionHarness(options={"no_ack": True}) as harness:
        channel = await harness.consume()
        channel.deliver(headers=flagged())
        assert len(harness.kept) == 1
        assert channel.settled == []


# --------------------------------------------------------------------------- deduplication


def once(**settings: Any) -> SubscriptionHarness:
    return SubscriptionHarness(
        setup={"handled": handled_ids_from(DeduplicateConfig(store="memory"))}, **settings
    )


async def ack(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
    await ack_or_nack()


async def test_message_handled_before_is_acked_without_its_handler() -> None:
    """an idempotent consumer."""
    async with once() as harness:
        harness.listen("duplicate")
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver(message_id="m")
        await gate.let(1)
        channel.deliver(message_id="m")
        await settle()
        assert gate.begun == ["m"]
        assert channel.settled == [("ack", 1, False), ("ack", 2, False)]
        [(_, (message,))] = harness.heard
        assert message.message_id == "m"
        assert harness.subscription.stats().duplicates == 1


async def test_message_that_failed_is_handled_again() -> None:
    async with once(recovery=[Nack(requeue=True)]) as harness:
        harness.listen("error", "duplicate")
        tries: list[str | None] = []

        async def fail_once(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            tries.append(message.message_id)
            if len(tries) == 1:
                raise ValueError("not yet")
            await ack_or_nack()

        channel = await harness.consume(fail_once)
        channel.deliver(message_id="m")
        await settle()
        channel.deliver(message_id="m", redelivered=True)
        await settle()
        assert tries == ["m", "m"]
        assert harness.events() == ["error"]


async def test_message_that_failed_and_was_acked_all_the_same_is_handled_again() -> None:
    """The strategy `ack` does not count as handled."""
    async with once() as harness:
        harness.listen("duplicate")
        channel = await harness.consume()
        channel.deliver(message_id="m")
        await settle()
        await harness.kept[0][2]("failed", Ack())
        await settle()
        channel.deliver(message_id="m")
        await settle()
        assert len(harness.kept) == 2
        assert harness.heard == []


async def test_message_whose_ack_was_lost_is_handled_again() -> None:
    async with once() as harness:
        harness.listen("duplicate", "ack_lost")
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver(message_id="m")
        await settle()
        harness.replace_link()
        await settle()
        harness.channel.deliver(message_id="m", redelivered=True)
        await gate.let(2)
        assert gate.begun == ["m", "m"]
        assert harness.events() == ["ack_lost"]


async def test_copy_that_arrives_while_the_first_is_handled_waits_for_it() -> None:
    async with once() as harness:
        harness.listen("duplicate")
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver(message_id="m")
        channel.deliver(message_id="m")
        await settle()
        assert gate.begun == ["m"]
        await gate.let(1)
        assert harness.events() == ["duplicate"]
        assert len(channel.settled) == 2


@pytest.mark.parametrize("dead", [False, True])
async def test_copy_behind_one_that_is_still_being_counted_waits_for_its_turn(dead: bool) -> None:
    """It would hold the message's id, and wait for the one before it, which waits for the id."""
    config = DeduplicateConfig()
    setup = {"counter": Counter(5 if dead else 1, delay=0.5), "handled": handled_ids_from(config)}
    async with SubscriptionHarness(setup=setup, redeliveries={"limit": 2}) as harness:
        harness.listen("duplicate")
        channel = await harness.consume(ack)
        channel.deliver(message_id="m", redelivered=True)
        channel.deliver(message_id="m")
        channel.deliver(message_id="n")
        await asyncio.sleep(10)
        assert channel.settled == [DEAD if dead else ("ack", 1, False), ACK_2, ("ack", 3, False)]
        assert harness.events() == ([] if dead else ["duplicate"])


async def test_copies_that_wait_for_a_lost_one_are_handled_once() -> None:
    async with once() as harness:
        harness.listen("duplicate", "ack_lost")
        gate = GatedHandler()
        channel = await harness.consume(gate)
        for _ in range(3):
            channel.deliver(message_id="m")
        await settle()
        harness.replace_link()
        await settle()
        for _ in range(3):
            harness.channel.deliver(message_id="m", redelivered=True)
        await gate.let(2)
        await settle()
        assert gate.begun == ["m", "m"]
        assert harness.events() == ["ack_lost", "duplicate", "duplicate"]
        assert len(harness.channel.settled) == 3


async def test_without_an_id_every_message_is_handled() -> None:
    async with once() as harness:
        channel = await harness.consume(ack)
        channel.deliver(message_id=None)
        channel.deliver(message_id=None)
        await settle()
        assert harness.subscription.stats().duplicates == 0
        assert len(channel.settled) == 2


@pytest.mark.parametrize(
    "failure", [OSError("disk"), OddError("odd"), asyncio.CancelledError("inner")]
)
async def test_store_that_fails_is_reported_and_the_message_handled(
    failure: BaseException,
) -> None:
    class Broken:
        async def contains(self, key: str) -> bool:
            raise failure

        async def add(self, key: str) -> None:
            raise failure

        async def close(self) -> None:
            """Does nothing."""

    async with SubscriptionHarness(setup={"handled": Broken()}) as harness:
        harness.listen("error")
        channel = await harness.consume(ack)
        channel.deliver()
        channel.deliver()
        await settle()
        assert harness.events() == ["error", "error"]
        assert channel.settled == [("ack", 1, False), ("ack", 2, False)]


@pytest.mark.parametrize("silent", ["contains", "add"])
async def test_store_that_never_answers_is_reported_and_the_messages_handled(silent: str) -> None:
    class Silent:
        async def contains(self, key: str) -> bool:
            await self._answer("contains")
            return False

        async def add(self, key: str) -> None:
            await self._answer("add")

        async def _answer(self, question: str) -> None:
            if question == silent:
                await asyncio.Event().wait()

        async def close(self) -> None:
            """Does nothing."""

    async with SubscriptionHarness(
        setup={"handled": Silent()}, deduplicate={"timeout": 2.0}
    ) as harness:
        harness.listen("error")
        channel = await harness.consume(ack)
        channel.deliver(message_id="a")
        channel.deliver(message_id="a")
        await asyncio.sleep(10)
        assert channel.settled == [("ack", 1, False), ("ack", 2, False)]
        assert {str(error) for _, (error,) in harness.heard} == {
            "store of handled ids: no answer within 2 s"
        }


async def test_acked_along_with_a_later_one_counts_as_handled() -> None:
    async with once() as harness:
        harness.listen("duplicate")
        channel = await harness.consume()
        channel.deliver(message_id="a")
        channel.deliver(message_id="b")
        await settle()
        await harness.kept[1][2](all=True)
        await settle()
        for message_id in ("a", "b"):
            channel.deliver(message_id=message_id)
        await settle()
        assert harness.events() == ["duplicate", "duplicate"]
