"""The publish queue: aborts, limits, pauses, turns, and its end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from broker_client.config import PublishQueueConfig
from broker_client.errors import (
    PublishAbortedError,
    PublishQueueFullError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.publishing.queue import PublishQueue
from broker_client.publishing.sender import Sender
from tests.support.links import FakeChannel
from tests.support.publish_queue import PublishQueueHarness, failure_of
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


# --------------------------------------------------------------------------- abort


async def test_abort_of_an_unsent_one_removes_it(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    made = await harness.publish(3)
    assert made[1].abort()
    assert not made[1].abort()
    error = await failure_of(made[1])
    assert isinstance(error, PublishAbortedError)
    harness.restore_link()
    await settle()
    assert harness.channel.ids == ["m1", "m3"]
    harness.channel.confirm_all()
    assert harness.ends() == [("error", "m2"), ("success", "m1"), ("success", "m3")]


async def test_abort_of_one_that_waits_for_room_is_refused() -> None:
    harness = PublishQueueHarness(max_queued=1)
    await harness.publish(1)
    waiting = harness.make()
    put = asyncio.create_task(harness.queue.put(waiting, confirm=True))
    await settle()
    assert not waiting.abort()
    harness.channel.confirm(1)
    await put
    assert not waiting.is_ended
    await harness.close()


async def test_abort_of_one_without_confirms_removes_it_too(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    [publication] = await harness.publish(1, confirm=False)
    assert publication.abort()


async def test_abort_of_a_sent_one_is_refused_and_changes_nothing(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(1)
    assert not publication.abort()
    harness.channel.confirm(1)
    await publication
    assert not publication.abort()


async def test_abort_of_one_that_was_sent_on_a_lost_link_is_refused(
    harness: PublishQueueHarness,
) -> None:
    # The broker may have it, so "will never be sent" would be wrong.
    [publication] = await harness.publish(1)
    harness.lose_link()
    await settle()
    assert not publication.abort()
    harness.restore_link(auto_confirm=True)
    assert (await publication).maybe_duplicate


# --------------------------------------------------------------------------- limits


async def test_full_queue_that_rejects_says_so(harness: PublishQueueHarness) -> None:
    harness = PublishQueueHarness(max_queued=2, policy="reject")
    await harness.publish(2)
    with pytest.raises(PublishQueueFullError, match="2 messages are waiting"):
        await harness.publish(1)
    harness.channel.confirm(1)
    await harness.publish(1)
    harness.channel.confirm_all()
    await harness.close()


async def test_who_is_told_of_one_confirm_of_many_finds_the_room_of_all_of_them() -> None:
    harness = PublishQueueHarness(max_queued=3, policy="reject")
    made = await harness.publish(3)
    more = [harness.make() for _ in range(4)]
    accepted: list[bool] = []

    def publish_more(message_id: str) -> None:
        accepted.extend(harness.queue.put_now(each, confirm=True) for each in more)

    made[0].on("success", publish_more)
    harness.channel.confirm_all()
    assert accepted == [True, True, True, False]
    await settle()
    harness.channel.confirm_all()
    assert all(each.event == "success" for each in (*made, *more[:3]))
    assert await harness.queue.drain(1.0)
    await harness.close()


async def test_full_queue_in_bytes_rejects_what_does_not_fit(harness: PublishQueueHarness) -> None:
    harness = PublishQueueHarness(max_queued_bytes=100, policy="reject")
    await harness.publish(1, body=b"x" * 60)
    with pytest.raises(PublishQueueFullError):
        await harness.publish(1, body=b"x" * 41)
    await harness.publish(1, body=b"x" * 40)
    assert harness.queue.stats().held_bytes == 100
    harness.channel.confirm_all()
    assert harness.queue.stats().held_bytes == 0
    await harness.close()


async def test_body_larger_than_the_limit_is_taken_by_an_empty_queue() -> None:
    harness = PublishQueueHarness(max_queued_bytes=100, policy="reject")
    [publication] = await harness.publish(1, body=b"x" * 1_000)
    harness.channel.confirm_all()
    outcome = await publication
    assert outcome.message_id == publication.message_id
    await harness.close()


async def test_full_queue_that_waits_takes_callers_in_order_as_room_comes() -> None:
    harness = PublishQueueHarness(max_queued=2)
    await harness.publish(2)
    waiting = [harness.make() for _ in range(3)]
    puts = [asyncio.create_task(harness.queue.put(each, confirm=True)) for each in waiting]
    await settle()
    assert not any(put.done() for put in puts)
    harness.channel.confirm(1)
    await settle()
    assert [put.done() for put in puts] == [True, False, False]
    while len(harness.ends()) < 5:
        harness.channel.confirm_all()
        await settle()
    assert harness.channel.ids == ["m1", "m2", "m3", "m4", "m5"]
    await harness.close()


async def test_full_queue_in_bytes_takes_what_waits_as_soon_as_it_just_fits() -> None:
    harness = PublishQueueHarness(max_queued_bytes=10)
    for body in (b"12345", b"1234"):
        await harness.publish(body=body)
    entering = asyncio.create_task(harness.queue.put(harness.make(body=b"123456"), confirm=True))
    await settle()
    assert not entering.done()
    harness.channel.confirm(1)
    await settle()
    assert entering.done()
    assert harness.queue.stats().held_bytes == 10
    harness.channel.confirm_all()
    await harness.close()


async def test_body_larger_than_the_limit_waits_until_the_queue_is_empty() -> None:
    harness = PublishQueueHarness(max_queued_bytes=10)
    await harness.publish(1)
    put = asyncio.create_task(harness.queue.put(harness.make(body=b"x" * 11), confirm=True))
    await settle()
    assert not put.done()
    harness.channel.confirm(1)
    await settle()
    assert put.done()
    harness.channel.confirm_all()
    await harness.close()


async def test_caller_that_waits_for_room_gives_up_at_its_deadline() -> None:
    harness = PublishQueueHarness(max_queued=1)
    await harness.publish(1)
    with pytest.raises(PublishTimeoutError):
        await harness.queue.put(harness.make(timeout=2.0), confirm=True)
    harness.channel.confirm_all()
    await harness.publish(1)
    assert harness.channel.ids == ["m1", "m3"]
    harness.channel.confirm_all()
    await harness.close()


async def test_caller_cancelled_as_room_comes_passes_it_on() -> None:
    harness = PublishQueueHarness(max_queued=1)
    await harness.publish(1)
    first, second = [
        asyncio.create_task(harness.queue.put(harness.make(), confirm=True)) for _ in range(2)
    ]
    await settle()
    harness.channel.confirm(1)
    first.cancel()
    await settle()
    assert first.cancelled()
    assert second.done()
    assert harness.channel.ids == ["m1", "m3"]
    harness.channel.confirm_all()
    await harness.close()


async def test_full_queue_that_drops_the_oldest_ends_it_and_takes_the_new() -> None:
    harness = PublishQueueHarness(max_queued=3, policy="drop_oldest")
    harness.lose_link()
    made = await harness.publish(5)
    assert harness.ends() == [("error", "m1"), ("error", "m2")]
    assert (await failure_of(made[0])).args == ("orders", "m1", "dropped: the queue was full")
    harness.restore_link(auto_confirm=True)
    await settle()
    assert harness.channel.ids == ["m3", "m4", "m5"]
    await harness.close()


async def test_drop_oldest_never_drops_what_the_broker_may_have() -> None:
    harness = PublishQueueHarness(max_queued=3, policy="drop_oldest")
    await harness.publish(2)
    harness.lose_link()
    await settle()
    await harness.publish(2)
    assert harness.ends() == [("error", "m3")]
    harness.restore_link(auto_confirm=True)
    await settle()
    assert harness.channel.ids == ["m1", "m2", "m4"]
    await harness.close()


async def test_drop_oldest_drops_what_was_published_first_under_any_name() -> None:
    harness = PublishQueueHarness(max_queued=2, policy="drop_oldest")
    harness.lose_link()
    for name in ("orders", "bills", "orders", "orders"):
        await harness.publish(name=name)
        await asyncio.sleep(0.1)
    assert harness.ends() == [("error", "m1"), ("error", "m2")]
    await harness.close()


async def test_drop_oldest_with_nothing_to_drop_takes_the_new_one_all_the_same() -> None:
    harness = PublishQueueHarness(max_queued=2, policy="drop_oldest")
    await harness.publish(2)
    await harness.publish(1)
    assert harness.channel.ids == ["m1", "m2", "m3"]
    assert harness.ends() == []
    await harness.close()


# --------------------------------------------------------------------------- pausing


async def test_paused_queue_sends_nothing_and_tells_each(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    await harness.publish(2)
    assert harness.channels == []
    assert harness.events == [("paused", "m1"), ("paused", "m2")]
    harness.restore_link(auto_confirm=True)
    await settle()
    assert harness.ends() == [("success", "m1"), ("success", "m2")]


async def test_queue_is_paused_until_the_link_is_up(harness: PublishQueueHarness) -> None:
    queue = PublishQueue(
        "/",
        PublishQueueConfig(),
        harness,
        regular=harness.regular,
        confirm=harness.confirm,
        tasks=harness.tasks,
    )
    publication = harness.make()
    await queue.put(publication, confirm=True)
    assert queue.stats().paused
    assert ("paused", "m1") in harness.events
    assert harness.link.channels == []
    await queue.close()


async def test_loss_of_the_link_tells_the_unconfirmed_and_the_unsent() -> None:
    harness = PublishQueueHarness(max_in_flight=2)
    await harness.publish(3)
    harness.lose_link()
    await settle()
    assert sorted(harness.events) == [("paused", "m1"), ("paused", "m2"), ("paused", "m3")]
    harness.restore_link(auto_confirm=True)
    await settle()
    assert harness.channel.ids == ["m1", "m2", "m3"]
    await harness.close()


async def test_blocked_broker_stops_a_sender_that_is_sending() -> None:
    # connection.blocked: the link stays up, and sent publishes are still confirmed.
    harness = PublishQueueHarness(max_in_flight=4, batch=2)
    await harness.publish(10)
    harness.queue.pause()
    harness.channel.confirm(1, 2)
    await settle()
    assert harness.channel.ids == ["m1", "m2", "m3", "m4"]
    harness.queue.resume()
    await settle()
    assert harness.channel.ids == ["m1", "m2", "m3", "m4", "m5", "m6"]
    while len(harness.ends()) < 10:
        harness.channel.confirm_all()
        await settle()
    await harness.close()


async def test_blocked_broker_and_nothing_unconfirmed_resumes_in_order(
    harness: PublishQueueHarness,
) -> None:
    harness.queue.pause()
    await harness.publish(3)
    assert harness.channels == []
    harness.queue.resume()
    await settle()
    assert harness.channel.ids == ["m1", "m2", "m3"]
    harness.channel.confirm_all()


# --------------------------------------------------------------------------- fairness


@pytest.mark.parametrize("batch", [1, 5])
async def test_more_busy_publications_than_channels_share_them(batch: int) -> None:
    harness = PublishQueueHarness(max_channels=1, max_in_flight=5, batch=batch)
    harness.link.auto_confirm = True
    written: list[str] = []
    names: dict[str | None, str] = {}
    publish = FakeChannel.publish

    async def noted(self: FakeChannel, batch: Any) -> None:
        written.extend(names[message.properties.message_id] for message in batch)
        await publish(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeChannel, "publish", noted)
        for name in ("a", "b", "c"):
            for _ in range(30):
                publication = harness.make(name)
                names[publication.message_id] = name
                await harness.queue.put(publication, confirm=True)
        while len(harness.ends()) < 90:
            await settle()
    turns = [written[at] for at in range(0, 90, 5)]
    assert turns == ["a", "b", "c"] * 6
    await harness.close()


async def test_sender_keeps_its_channel_while_no_other_wants_one(
    harness: PublishQueueHarness,
) -> None:
    harness.link.auto_confirm = True
    for _ in range(30):
        await harness.publish(100)
    assert len(harness.channels) == 1


# --------------------------------------------------------------------------- the end


async def test_drain_waits_for_every_end(harness: PublishQueueHarness) -> None:
    await harness.publish(2)
    draining = asyncio.create_task(harness.queue.drain(10.0))
    await settle()
    harness.channel.confirm(1)
    await settle()
    assert not draining.done()
    harness.channel.confirm(2)
    assert await draining


async def test_drain_says_when_time_was_too_short(harness: PublishQueueHarness) -> None:
    await harness.publish(1)
    assert not await harness.queue.drain(1.0)
    harness.channel.confirm_all()
    assert await harness.queue.drain(0.0)


async def test_close_ends_all_that_is_left_and_says_which_was_sent() -> None:
    harness = PublishQueueHarness(max_in_flight=2, max_queued=4)
    made = await harness.publish(4)
    waiting = harness.make()
    put = asyncio.create_task(harness.queue.put(waiting, confirm=True))
    await asyncio.sleep(1.5)
    await harness.close()
    with pytest.raises(PublishAbortedError) as refused:
        await put
    assert refused.value.args == ("orders", "m5", "the broker was shut down")
    errors = [await failure_of(publication) for publication in made]
    assert [type(error) for error in errors] == [
        PublishUnconfirmedError,
        PublishUnconfirmedError,
        PublishAbortedError,
        PublishAbortedError,
    ]
    assert errors[1].args == ("orders", "m2", 1.5, "closed")
    assert errors[2].args == ("orders", "m3", "the broker was shut down")
    assert len(harness.ends()) == 4
    with pytest.raises(PublishAbortedError, match="shut down"):
        await harness.publish(1)
    await harness.queue.close()


async def test_close_while_paused_ends_what_waits(harness: PublishQueueHarness) -> None:
    harness.lose_link()
    [publication] = await harness.publish(1)
    await harness.queue.close()
    assert isinstance(await failure_of(publication), PublishAbortedError)


async def test_repr_tells_the_state(harness: PublishQueueHarness) -> None:
    assert repr(harness.queue) == "<PublishQueue /: running, 0 held>"
    harness.queue.pause()
    await harness.publish(1)
    assert repr(harness.queue) == "<PublishQueue /: paused, 1 held>"
    await harness.queue.close()
    assert repr(harness.queue) == "<PublishQueue /: closed, 0 held>"


async def test_names_that_were_used_once_are_forgotten_and_those_in_use_are_not() -> None:
    harness = PublishQueueHarness(max_channels=2)
    [again] = await harness.publish(name="sent again")
    harness.channel.fail()
    await asyncio.sleep(1.0)
    harness.channel.confirm_all()
    await again
    [slow] = await harness.publish(name="slow")
    slow_channel = harness.channel
    for number in range(300):
        [publication] = await harness.publish(name=f"reply to {number}")
        harness.channel.confirm_all()
        await publication
        await settle()
    gc.collect()
    assert sum(type(each) is Sender for each in gc.get_objects()) <= 200
    assert harness.queue.stats().resent == 1
    assert not slow.is_ended
    slow_channel.confirm_all()
    await slow
    await harness.close()
