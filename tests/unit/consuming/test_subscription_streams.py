"""Reading a stream continues behind the last settled message."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.stream_position import StreamPosition
from broker_client.message import Delivery, Properties
from tests.support.consuming import GatedHandler, SubscriptionHarness
from tests.support.links import FakeChannel
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


def at(offset: int | None) -> Delivery:
    headers = {} if offset is None else {"x-stream-offset": offset}
    return Delivery("c", 1, False, "", "q", b"", Properties(headers=headers))


class Reader:
    """A stream position and the settled deliveries."""

    def __init__(self, *offsets: int) -> None:
        self.position = StreamPosition()
        for offset in offsets:
            assert self.position.take(at(offset))

    def settle(self, *offsets: int) -> None:
        for offset in offsets:
            self.position.ended(at(offset), DeliveryOutcome.ACKED)

    def lose(self, *offsets: int) -> None:
        for offset in offsets:
            self.position.ended(at(offset), DeliveryOutcome.LOST)


def test_nothing_read_has_no_place_to_go_on() -> None:
    """The configured offset is used."""
    assert StreamPosition().resume_at() is None


def test_all_settled_goes_on_behind_the_last() -> None:
    reader = Reader(10, 11, 12)
    reader.settle(10, 11, 12)
    assert reader.position.resume_at() == 13


def test_goes_on_at_the_first_that_was_lost() -> None:
    reader = Reader(10, 11, 12)
    reader.settle(10)
    reader.lose(11, 12)
    assert reader.position.resume_at() == 11


def test_settled_behind_one_that_was_lost_is_not_taken_again() -> None:
    """Settled messages are not repeated."""
    reader = Reader(10, 11, 12)
    reader.settle(10, 12)
    reader.lose(11)
    assert [reader.position.take(at(offset)) for offset in (10, 11, 12, 13)] == [
        False,
        True,
        False,
        True,
    ]


def test_offset_in_hand_is_not_taken_twice() -> None:
    reader = Reader(10)
    assert reader.position.resume_at() == 11
    assert not reader.position.take(at(10))


def test_lost_again_before_all_came_back_still_goes_on_at_the_first() -> None:
    reader = Reader(10, 11, 12)
    reader.lose(10, 11, 12)
    assert reader.position.take(at(10))
    reader.lose(10)
    assert reader.position.resume_at() == 10
    reader.settle(10)
    assert reader.position.resume_at() == 11


def test_delivery_without_an_offset_is_always_taken() -> None:
    reader = Reader()
    assert reader.position.take(at(None))
    reader.settle()
    reader.position.ended(at(None), DeliveryOutcome.ACKED)
    reader.position.ended(at(None), DeliveryOutcome.LOST)
    assert reader.position.resume_at() is None


# --------------------------------------------------------------------------- in a subscription


class Offsets(FakeChannel):
    """A channel that records the arguments of its consumers."""

    async def consume(self, queue: str, callbacks: Any, **options: Any) -> str:
        self.asked.append(("offset", (options["arguments"] or {}).get("x-stream-offset")))
        return await super().consume(queue, callbacks, **options)


def a_stream(**settings: Any) -> SubscriptionHarness:
    return SubscriptionHarness(
        setup={"is_stream": True}, **{"options": {"offset": "first"}, "prefetch": 10, **settings}
    )


def offsets(harness: SubscriptionHarness) -> list[Any]:
    return [name for operation, name, *_ in harness.link.asked if operation == "offset"]


async def test_reconnect_goes_on_behind_the_last_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.links.FakeChannel", Offsets)
    async with a_stream() as harness:
        harness.listen("ack_lost")
        channel = await harness.consume()
        assert offsets(harness) == ["first"]
        for offset in range(10):
            channel.deliver(b"%d" % offset, headers={"x-stream-offset": offset})
        for _, _, ack_or_nack in harness.kept[:4]:
            await ack_or_nack()
        await harness.kept[6][2]()
        harness.kept.clear()
        harness.replace_link()
        await settle()
        assert offsets(harness) == [4]
        for offset in range(4, 12):
            harness.channel.deliver(b"%d" % offset, headers={"x-stream-offset": offset})
        assert harness.contents() == [b"4", b"5", b"7", b"8", b"9", b"10", b"11"]
        assert harness.channel.settled == [("ack", 3, False)], "6 was settled before"


async def test_pause_and_resume_go_on_behind_what_is_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.support.links.FakeChannel", Offsets)
    async with a_stream(concurrency=1) as harness:
        gate = GatedHandler()
        channel = await harness.consume(gate)
        channel.deliver(headers={"x-stream-offset": 5})
        channel.deliver(headers={"x-stream-offset": 6})
        await settle()
        await harness.subscription.pause()
        channel.consumers.clear()
        await harness.subscription.resume()
        assert offsets(harness) == ["first", 6], "5 is being handled"
        await gate.let(1)


async def test_failed_message_of_a_stream_is_passed_over() -> None:
    """A stream requeues nothing."""
    async with a_stream() as harness:
        harness.listen("error")

        def fail(*args: Any) -> None:
            raise ValueError("no")

        channel = await harness.consume(fail)
        channel.deliver(headers={"x-stream-offset": 1})
        await settle()
        assert channel.settled == [("nack", 1, False, False)]
        assert harness.events() == ["error"]
