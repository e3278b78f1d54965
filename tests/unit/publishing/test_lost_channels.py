"""Channels that die under a publish queue: what was not confirmed is sent again, in order."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker_client.errors import (
    ChannelClosedError,
)
from tests.support.publish_queue import PublishQueueHarness
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


async def test_channel_dead_between_acquire_and_publish_costs_nothing(
    harness: PublishQueueHarness,
) -> None:
    # rascal PR 81: the pool lends a channel that has just been closed; the publish is counted as
    # done, no event comes, the message is gone.
    await harness.publish(1)
    harness.channel.confirm(1)
    await settle()
    first = harness.channel
    made = [harness.make() for _ in range(3)]
    for publication in made:
        await harness.queue.put(publication, confirm=True)
    first.fail()  # idle in the pool, and its next user is on the way
    await settle()
    assert harness.channel is not first
    assert harness.channel.ids == ["m2", "m3", "m4"]
    harness.channel.confirm_all()
    assert [(await publication).maybe_duplicate for publication in made] == [False] * 3


async def test_channel_found_dead_by_the_publish_itself_sends_all_again_in_order(
    harness: PublishQueueHarness,
) -> None:
    calls = 0

    def die_first(operation: str, name: str) -> None:
        nonlocal calls
        calls += 1
        if operation == "publish" and calls == 1:
            harness.channels[0].fail()
            raise ChannelClosedError(0, "closed meanwhile")

    harness.link.before = die_first
    made = await harness.publish(3)
    await asyncio.sleep(1.0)
    assert [channel.ids for channel in harness.channels] == [[], ["m1", "m2", "m3"]]
    harness.channel.confirm_all()
    assert [(await publication).message_id for publication in made] == ["m1", "m2", "m3"]
    assert harness.ends() == [("success", "m1"), ("success", "m2"), ("success", "m3")]


async def test_channel_that_dies_during_the_write_sends_all_again_in_order(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1)
    harness.channel.confirm(1)
    await settle()
    first = harness.channel
    first.gate = asyncio.Event()
    made = await harness.publish(3)
    first.fail()
    first.gate.set()
    await asyncio.sleep(1.0)
    assert (first.ids[1:], harness.channel.ids) == (["m2", "m3", "m4"], ["m2", "m3", "m4"])
    harness.channel.confirm_all()
    outcomes = [await publication for publication in made]
    assert [outcome.message_id for outcome in outcomes] == ["m2", "m3", "m4"]
    assert all(outcome.maybe_duplicate for outcome in outcomes)


async def test_channel_that_dies_before_the_confirms_sends_the_unconfirmed_again_in_order(
    harness: PublishQueueHarness,
) -> None:
    made = await harness.publish(5)
    first = harness.channel
    first.confirm(2)
    later = await harness.publish(2)
    first.fail()
    await asyncio.sleep(1.0)
    assert harness.channel.ids == ["m1", "m3", "m4", "m5", "m6", "m7"]
    harness.channel.confirm_all()
    for publication in (*made, *later):
        await publication
    assert sorted(harness.ends()) == sorted(("success", f"m{number}") for number in range(1, 8))
    assert harness.queue.stats().resent == 6


async def test_channel_that_ended_without_a_reason_casts_no_suspicion(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(3)
    harness.channel.is_usable = False
    await harness.publish(1)
    await asyncio.sleep(3.0)
    assert harness.channel.batches == [4]
    harness.channel.confirm_all()
    assert harness.ends() == [("success", f"m{number}") for number in range(1, 5)]


async def test_each_time_that_a_publish_is_sent_again_is_counted(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(2)
    for _ in range(3):
        harness.channel.fail()
        await asyncio.sleep(1.0)
    assert harness.queue.stats().resent == 6
    harness.channel.confirm_all()


async def test_order_holds_over_many_failures(harness: PublishQueueHarness) -> None:
    for number in range(10):
        await harness.publish(3)
        if number % 3 == 0:
            harness.channel.confirm(harness.channel.seq)
        harness.channel.fail()
        await asyncio.sleep(0.1)
    harness.channel.confirm_all()
    first_seen = list(dict.fromkeys(i for channel in harness.channels for i in channel.ids))
    assert first_seen == [f"m{number}" for number in range(1, 31)]
    for channel in harness.channels:
        numbers = [int(str(message_id)[1:]) for message_id in channel.ids]
        assert numbers == sorted(numbers)
    assert len(harness.ends()) == 30
    assert set(harness.ends()) == {("success", f"m{number}") for number in range(1, 31)}


async def test_order_holds_where_a_nacked_one_waits_as_the_channel_dies(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(3, max_nacks=3)
    harness.channel.confirm(2, acked=False)
    await settle()
    harness.channel.fail()
    await asyncio.sleep(1.0)
    while len(harness.ends()) < 3:  # after a nack it begins with one
        harness.channel.confirm_all()
        await settle()
    assert harness.channel.ids == ["m1", "m2", "m3"]


async def test_error_of_the_pool_is_tried_again(harness: PublishQueueHarness) -> None:
    harness.link.die_silently()
    [publication] = await harness.publish(1)
    assert not publication.is_ended
    harness.link.is_open = True
    await asyncio.sleep(0.2)
    harness.channel.confirm(1)
    await publication


async def test_fault_of_ours_strands_nothing(
    harness: PublishQueueHarness, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [KeyError("a bug"), TimeoutError("a foreign one")]

    def fault(operation: str, name: str) -> None:
        if operation == "publish" and faults:
            raise faults.pop()

    harness.link.before = fault
    with caplog.at_level(logging.ERROR):
        [publication] = await harness.publish(1)
        await asyncio.sleep(1.0)
    harness.channel.confirm(1)
    await publication
    assert caplog.text.count("publishing orders") == 2
