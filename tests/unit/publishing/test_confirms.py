"""How confirms, nacks and returns end the publishes of a queue."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

from broker_client.errors import (
    MessageReturnedError,
    PublishNackedError,
)
from tests.support.publish_queue import PublishQueueHarness, failure_of
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


# --------------------------------------------------------------------------- confirms


async def test_what_waits_is_sent_in_batches_in_order(harness: PublishQueueHarness) -> None:
    await harness.publish(450)
    assert harness.channel.batches == [200, 200, 50]
    assert harness.channel.ids == [f"m{number}" for number in range(1, 451)]
    harness.channel.confirm_all()


async def test_batch_ends_with_the_message_that_makes_it_a_mebibyte(
    harness: PublishQueueHarness,
) -> None:
    made = [harness.make(body=b"x" * 2**18) for _ in range(6)]
    for publication in made:
        await harness.queue.put(publication, confirm=True)
    await settle()
    assert harness.channel.batches == [4, 2]
    harness.channel.confirm_all()


async def test_confirm_of_a_range_settles_each_in_order(harness: PublishQueueHarness) -> None:
    await harness.publish(5)
    harness.channel.confirm(1, 3)
    assert harness.ends() == [("success", "m1"), ("success", "m2"), ("success", "m3")]
    harness.channel.confirm(5)
    harness.channel.confirm(4)
    assert [message_id for _, message_id in harness.ends()] == ["m1", "m2", "m3", "m5", "m4"]
    assert harness.queue.stats().succeeded == 5


async def test_nack_of_a_range_ends_each_as_nacked(harness: PublishQueueHarness) -> None:
    made = await harness.publish(3)
    harness.channel.confirm(1, 2, acked=False)
    harness.channel.confirm(3)
    assert isinstance(await failure_of(made[1]), PublishNackedError)
    assert harness.ends() == [("error", "m1"), ("error", "m2"), ("success", "m3")]


async def test_nacked_publication_is_sent_again_as_often_as_it_may(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(max_nacks=2, timeout=60.0)
    for seq in (1, 2, 3):
        harness.channel.confirm(seq, acked=False)
        await asyncio.sleep(5.0)
    assert harness.channel.ids == ["m1", "m1", "m1"]
    assert isinstance(await failure_of(publication), PublishNackedError)
    assert harness.ends() == [("error", "m1")]


async def test_nacked_publication_that_is_confirmed_at_last_succeeds(
    harness: PublishQueueHarness,
) -> None:
    [publication] = await harness.publish(max_nacks=2)
    harness.channel.confirm(1, acked=False)
    await asyncio.sleep(1.0)
    harness.channel.confirm(harness.channel.seq)
    outcome = await publication
    assert not outcome.maybe_duplicate
    assert harness.ends() == [("success", "m1")]


class NackingBroker:
    """A broker that nacks everything until `at`, and then confirms it."""

    def __init__(self, harness: PublishQueueHarness, at: float) -> None:
        self.at = at
        self.times: list[float] = []
        self.harness = harness
        harness.link.before = self.look

    def look(self, operation: str, name: str) -> None:
        if operation == "publish":
            loop = asyncio.get_running_loop()
            self.times.append(loop.time())
            loop.call_soon(self.judge, self.harness.channel.seq + 1)

    def judge(self, first: int) -> None:
        acked = asyncio.get_running_loop().time() >= self.at
        self.harness.channel.confirm(first, self.harness.channel.seq, acked=acked)


async def test_nacks_of_an_election_are_bridged_in_order_with_growing_pauses(
    harness: PublishQueueHarness,
) -> None:
    start = asyncio.get_running_loop().time()
    electing = NackingBroker(harness, start + 3.0)
    made = await harness.publish(300, max_nacks=math.inf)
    await asyncio.sleep(8.0)
    assert [(await each).maybe_duplicate for each in made] == [False] * 300
    successes = [message_id for event, message_id in harness.ends() if event == "success"]
    assert successes == [f"m{number}" for number in range(1, 301)]
    tries = [at - start for at in electing.times if at < electing.at]
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert len(tries) < 10, "it asked again and again while there was no leader"
    assert all(after > before for before, after in itertools.pairwise(pauses))
    assert len(harness.channel.ids) < 2 * 300 + 20, "all were sent again each time"


async def test_nacked_until_its_deadline_ends_as_nacked(harness: PublishQueueHarness) -> None:
    NackingBroker(harness, math.inf)
    [publication] = await harness.publish(max_nacks=math.inf, timeout=3.0)
    await asyncio.sleep(3.1)
    assert isinstance(await failure_of(publication), PublishNackedError)


async def test_nacked_without_a_deadline_ends_as_nacked_after_a_while(
    harness: PublishQueueHarness,
) -> None:
    NackingBroker(harness, math.inf)
    [publication] = await harness.publish(max_nacks=math.inf, timeout=0.0)
    await asyncio.sleep(60.0)
    assert not publication.is_ended
    await asyncio.sleep(120.0)
    assert isinstance(await failure_of(publication), PublishNackedError)


async def test_returned_and_then_confirmed_ends_as_return_only(
    harness: PublishQueueHarness,
) -> None:
    made = await harness.publish(3)
    harness.channel.give_back(2)
    harness.channel.confirm(1, 3)
    assert harness.ends() == [("return", "m2"), ("success", "m1"), ("success", "m3")]
    error = await failure_of(made[1])
    assert isinstance(error, MessageReturnedError)
    assert (error.reply_code, error.routing_key) == (312, "placed")
    stats = harness.queue.stats()
    assert (stats.returned, stats.succeeded, stats.waiting, stats.unconfirmed) == (1, 2, 0, 0)


async def test_nack_of_a_range_ends_those_behind_a_returned_one_too(
    harness: PublishQueueHarness,
) -> None:
    made = await harness.publish(4)
    harness.channel.give_back(1)
    harness.channel.give_back(3)
    harness.channel.confirm(1, 4, acked=False)
    assert harness.ends() == [("return", "m1"), ("return", "m3"), ("error", "m2"), ("error", "m4")]
    stats = harness.queue.stats()
    counts = (stats.published, stats.succeeded, stats.returned, stats.failed)
    assert (counts, stats.paused) == ((4, 0, 2, 2), False)
    error = await failure_of(made[0])
    assert isinstance(error, MessageReturnedError)
    assert (error.publication, error.message_id) == ("orders", "m1")
    assert (error.exchange, error.reply_text) == ("orders", "NO_ROUTE")


async def test_return_event_has_the_message_as_it_came_back(harness: PublishQueueHarness) -> None:
    [publication] = await harness.publish()
    seen: list[Any] = []
    publication.on("return", seen.append)
    harness.channel.give_back(1)
    await settle()
    assert [(each.reply_text, each.routing_key) for each in seen] == [("NO_ROUTE", "placed")]


async def test_stats_do_not_count_a_returned_one_that_awaits_its_confirm(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(2)
    harness.channel.give_back(1)
    stats = harness.queue.stats()
    assert (stats.waiting, stats.unconfirmed) == (0, 1)


async def test_return_names_the_right_one_of_two_with_the_same_id(
    harness: PublishQueueHarness,
) -> None:
    first, second = [
        *await harness.publish(message_id="same", routing_key="here"),
        *await harness.publish(message_id="same", routing_key="nowhere"),
    ]
    harness.channel.give_back(2)
    harness.channel.confirm_all()
    assert (await first).message_id == "same"
    assert isinstance(await failure_of(second), MessageReturnedError)


async def test_confirm_of_an_unknown_number_is_ignored(harness: PublishQueueHarness) -> None:
    await harness.publish(1)
    harness.channel.confirm(1, 7)
    harness.channel.confirm(1)
    assert harness.ends() == [("success", "m1")]


async def test_no_more_than_max_in_flight_are_unconfirmed() -> None:
    harness = PublishQueueHarness(max_in_flight=10, batch=4)
    await harness.publish(25)
    assert harness.channel.batches == [4, 4, 2]
    harness.channel.confirm(1, 3)
    await settle()
    assert harness.channel.batches == [4, 4, 2, 3]
    while len(harness.ends()) < 25:
        harness.channel.confirm_all()
        await settle()
    assert harness.channel.ids == [f"m{number}" for number in range(1, 26)]
    await harness.close()


# --------------------------------------------------------------------------- regular channels


async def test_without_confirms_written_is_success(harness: PublishQueueHarness) -> None:
    made = await harness.publish(3, confirm=False)
    assert not harness.channel.confirms
    assert harness.ends() == [("success", "m1"), ("success", "m2"), ("success", "m3")]
    assert not (await made[0]).maybe_duplicate
    assert harness.regular.stats().idle == 1


async def test_without_confirms_a_failed_write_is_tried_again(harness: PublishQueueHarness) -> None:
    await harness.publish(1, confirm=False)
    first = harness.channel
    first.gate = asyncio.Event()
    await harness.publish(2, confirm=False)
    first.fail()
    harness.lose_link()
    first.gate.set()
    await settle()
    harness.restore_link()
    await settle()
    assert sorted(harness.ends()) == [("success", "m1"), ("success", "m2"), ("success", "m3")]


async def test_one_publication_with_and_without_confirms_uses_both_pools(
    harness: PublishQueueHarness,
) -> None:
    await harness.publish(1, confirm=True)
    await harness.publish(1, confirm=False)
    assert [channel.confirms for channel in harness.channels] == [True, False]
    harness.channels[0].confirm(1)
