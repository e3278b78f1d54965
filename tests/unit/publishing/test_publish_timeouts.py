"""Publishes whose time runs out, and links that are slow or stuck."""

from __future__ import annotations

import asyncio

from broker_client.errors import (
    OperationTimeoutError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from tests.support.links import FakeChannel
from tests.support.publish_queue import PublishQueueHarness, failure_of
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


async def test_unsent_in_time_is_withdrawn_and_never_sent(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    [late] = await harness.publish(1, timeout=2.0)
    [patient] = await harness.publish(1, timeout=60.0)
    await asyncio.sleep(1.9)
    assert not late.is_ended
    await asyncio.sleep(0.2)
    error = await failure_of(late)
    assert isinstance(error, PublishTimeoutError)
    assert "not sent within 2 s and was withdrawn (link paused)" in str(error)
    harness.restore_link()
    await settle()
    assert harness.channel.ids == ["m2"]
    harness.channel.confirm(1)
    await patient
    assert harness.ends() == [("error", "m1"), ("success", "m2")]


async def test_time_out_of_a_later_publish_may_come_first(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    await harness.publish(1, timeout=60.0)
    await harness.publish(1, timeout=2.0)
    await harness.publish(1, timeout=1.0)
    await asyncio.sleep(1.1)
    assert harness.ends() == [("error", "m3")]
    await asyncio.sleep(1.0)
    assert harness.ends() == [("error", "m3"), ("error", "m2")]


async def test_sent_and_not_confirmed_in_time_is_unconfirmed_and_its_channel_retired(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(1, timeout=2.0)
    first = harness.channel
    await asyncio.sleep(2.1)
    error = await failure_of(publication)
    assert isinstance(error, PublishUnconfirmedError)
    assert "may or may not have it" in str(error)
    assert error.args == ("orders", "m1", 2.0, "up")
    assert first.is_usable
    await asyncio.sleep(6.0)
    assert first.how_ended == "aborted"
    await harness.publish(1)
    assert harness.channel is not first
    assert harness.channel.ids == ["m2"]
    harness.channel.confirm(1)


async def test_channel_that_answers_is_not_given_up_for_an_overdue_confirm(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1, timeout=2.0)
    [other] = await harness.publish(1, timeout=30.0)
    first = harness.channel
    await asyncio.sleep(3.0)
    assert first.asked == [("qos", 0)]
    assert harness.channel is first
    await harness.publish(1)
    assert first.ids == ["m1", "m2", "m3"]
    assert first.asked == [("qos", 0)]
    first.confirm(1, 3)
    assert not (await other).maybe_duplicate
    assert harness.ends() == [("error", "m1"), ("success", "m2"), ("success", "m3")]
    assert harness.queue.stats().resent == 0


async def test_channel_that_is_silent_since_it_was_sent_is_asked_even_if_heard_right_then(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(2, timeout=30.0)
    harness.channel.confirm(1)
    await harness.publish(1, timeout=2.0)  # no time has passed
    await asyncio.sleep(3.0)
    assert harness.channel.asked == [("qos", 0)]
    harness.channel.confirm(2, 3)


async def test_channel_that_confirms_others_is_not_even_asked(harness: PublishQueueHarness) -> None:
    await harness.publish(1, timeout=2.0)
    [other] = await harness.publish(1, timeout=30.0)
    await asyncio.sleep(1.0)
    harness.channel.confirm(2)
    await asyncio.sleep(2.0)
    assert (await other).message_id == "m2"
    assert harness.channel.asked == []


async def test_publish_that_would_be_confirmed_too_late_is_not_sent_behind_another(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1)
    await asyncio.sleep(8.0)
    harness.channel.confirm(1)  # so that a confirm is expected to take two seconds
    await settle()
    await harness.publish(1, timeout=30.0)
    [late] = await harness.publish(1, timeout=1.5)
    await harness.publish(1, timeout=2.5)
    assert harness.channel.ids == ["m1", "m2", "m4"]
    assert isinstance(await failure_of(late), PublishTimeoutError)
    harness.channel.confirm(2, 3)


async def test_publish_that_would_be_confirmed_too_late_is_sent_where_nothing_is_on_its_way(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1)
    await asyncio.sleep(8.0)
    harness.channel.confirm(1)
    await settle()
    await harness.publish(1, timeout=1.5)
    assert harness.channel.ids == ["m1", "m2"]
    harness.channel.confirm(2)


async def test_channel_that_does_not_answer_is_given_up_and_begins_with_one(
    harness: PublishQueueHarness,
) -> None:
    def answer_nothing(operation: str, name: str) -> None:
        if operation == "qos":
            raise OperationTimeoutError("channel 1", 10.0)

    harness.link.before = answer_nothing
    await harness.publish(1, timeout=2.0)
    others = await harness.publish(9, timeout=30.0)
    first = harness.channel
    await asyncio.sleep(3.0)
    assert first.how_ended == "aborted"
    assert harness.channel.batches == [1]
    while len(harness.ends()) < 10:
        harness.channel.confirm_all()
        await settle()
    assert harness.channel.batches[:3] == [1, 2, 4]
    assert harness.channel.ids == [f"m{number}" for number in range(2, 11)]
    assert [(await other).maybe_duplicate for other in others] == [True] * 9


async def test_confirm_overdue_while_the_broker_blocks_publishers_costs_nothing(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1, timeout=2.0)
    [other] = await harness.publish(1, timeout=30.0)
    harness.queue.pause()
    await asyncio.sleep(3.0)
    harness.queue.resume()
    await settle()
    assert harness.channel.asked == []
    harness.channel.confirm(1, 2)
    assert not (await other).maybe_duplicate


class SlowLink:
    """A link that carries `rate` messages a second, after a stall until `clear_at`."""

    def __init__(self, harness: PublishQueueHarness, rate: float, clear_at: float) -> None:
        self.harness, self.rate = harness, rate
        self.free_at = clear_at
        harness.link.before = self.look

    def look(self, operation: str, name: str) -> None:
        if operation == "publish":
            asyncio.get_running_loop().call_soon(self.carry)

    def carry(self) -> None:
        loop, channel = asyncio.get_running_loop(), self.harness.channel
        count = channel.batches[-1]
        for seq in range(channel.seq - count + 1, channel.seq + 1):
            self.free_at = max(self.free_at, loop.time()) + 1 / self.rate
            loop.call_at(self.free_at, self.arrive, channel, seq)

    def arrive(self, channel: FakeChannel, seq: int) -> None:
        if channel.on_confirm is not None:  # otherwise it was given up
            channel.confirm(seq)


async def test_slow_link_recovers_from_a_stall_and_sends_nothing_twice() -> None:
    harness = PublishQueueHarness()
    loop = asyncio.get_running_loop()
    start = loop.time()
    SlowLink(harness, 400.0, start + 15.0)
    made = []
    for _ in range(60 * 20):
        made += [harness.make() for _ in range(10)]  # 200 a second
        for publication in made[-10:]:
            await harness.queue.put(publication, confirm=True)
        await asyncio.sleep(0.05)
    ids = [message_id for channel in harness.channels for message_id in channel.ids]
    assert len(ids) == len(set(ids)), "messages were sent twice"
    ended = dict((message_id, event) for event, message_id in harness.ends())
    late = [p for p in made if p.started > start + 30.0 and p.started < start + 50.0]
    assert {ended[publication.message_id] for publication in late} == {"success"}
    await harness.close()


async def test_link_that_carries_less_than_is_published_still_confirms_what_it_carries() -> None:
    harness = PublishQueueHarness()
    SlowLink(harness, 100.0, 0.0)
    for _ in range(60 * 20):
        for _ in range(10):  # 200 a second
            await harness.queue.put(harness.make(), confirm=True)
        await asyncio.sleep(0.05)
    sent = sum(len(channel.ids) for channel in harness.channels)
    succeeded = harness.queue.stats().succeeded
    assert succeeded > 0.8 * sent
    assert succeeded > 4_500
    await harness.close()


async def test_late_confirm_of_a_timed_out_publish_makes_no_second_end(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(1, timeout=2.0)
    asyncio.get_running_loop().call_at(publication.deadline, harness.channel.confirm, 1)
    await asyncio.sleep(3.0)
    assert len(harness.ends()) == 1


async def test_timed_out_while_waiting_to_be_sent_again_is_unconfirmed(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(1, timeout=2.0)
    harness.lose_link()
    await asyncio.sleep(3.0)
    assert isinstance(await failure_of(publication), PublishUnconfirmedError)
    harness.restore_link()
    await settle()
    assert harness.channels == []


async def test_stuck_write_ends_in_time_and_its_channel_is_asked_first(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1)
    first = harness.channel
    first.confirm(1)
    await settle()
    first.gate = asyncio.Event()
    [stuck] = await harness.publish(1, timeout=2.0)
    [behind] = await harness.publish(1, timeout=2.0)
    await asyncio.sleep(2.1)
    assert isinstance(await failure_of(stuck), PublishUnconfirmedError)
    assert isinstance(await failure_of(behind), PublishTimeoutError)
    first.gate.set()
    await asyncio.sleep(0.1)
    assert first.asked == [("qos", 0)]
    await harness.publish(1)
    assert harness.channel.ids == ["m1", "m2", "m4"]
    harness.channel.confirm(2, 3)
