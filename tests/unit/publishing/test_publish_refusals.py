"""Publishes over which a broker closes a channel or a connection."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from broker_client.errors import (
    ChannelClosedError,
    InvalidMessageError,
    MessageTooLargeError,
    PublishRefusedError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.message import Outgoing
from broker_client.transport.limits import SizeLimit
from tests.support.eventually import eventually
from tests.support.links import FakeChannel
from tests.support.publish_queue import PublishQueueHarness, failure_of
from tests.support.warp import WarpLoop, settle

loop_factory = WarpLoop


class ChannelClosingBroker:
    """A broker that closes the channel over a message with a poisonous id."""

    def __init__(
        self, harness: PublishQueueHarness, code: int, *poison: str, once: bool = False
    ) -> None:
        self.harness, self.code, self.poison, self.once = harness, code, poison, once
        self.text = "PRECONDITION_FAILED"
        harness.link.auto_confirm = True
        harness.link.before = self.look

    def look(self, operation: str, name: str) -> None:
        if operation == "publish":
            asyncio.get_running_loop().call_soon(self.judge, self.harness.channel)

    def judge(self, channel: FakeChannel) -> None:
        for index, message_id in enumerate(channel.ids):
            if message_id in self.poison:
                if channel.on_confirm is not None and index:
                    channel.confirm(1, index)
                if self.once:
                    self.poison = ()
                channel.fail(ChannelClosedError(self.code, self.text))
                return


async def test_poison_alone_is_refused_and_the_rest_goes_through(
    harness: PublishQueueHarness,
) -> None:
    ChannelClosingBroker(harness, 406, "m4", "m7")
    made = await harness.publish(10)
    await asyncio.sleep(5.0)
    assert len(harness.ends()) == 10
    assert {event for event in harness.ends() if event[0] == "error"} == {
        ("error", "m4"),
        ("error", "m7"),
    }
    error = await failure_of(made[3])
    assert isinstance(error, PublishRefusedError)
    assert (error.reply_code, error.reply_text) == (406, "PRECONDITION_FAILED")
    assert (error.publication, error.message_id) == ("orders", "m4")
    successes = [message_id for event, message_id in harness.ends() if event == "success"]
    assert successes == [f"m{number}" for number in range(1, 11) if number not in (4, 7)]


class ConnectionClosingBroker:
    """A broker that closes the whole connection over a message with a poisonous id.

    With `code` 0 the connection is lost without a reason.
    """

    def __init__(self, harness: PublishQueueHarness, code: int, *poison: str) -> None:
        self.harness, self.code, self.poison = harness, code, poison
        self.losses = 0
        self.serve()

    def serve(self) -> None:
        self.harness.link.before = self.look

    def look(self, operation: str, name: str) -> None:
        if operation == "publish":
            asyncio.get_running_loop().call_soon(self.judge)

    def judge(self) -> None:
        link = self.harness.link
        for channel in link.channels:
            if channel.is_usable and any(each in self.poison for each in channel.ids):
                self.lose()
                return
        for channel in link.channels:
            if channel.is_usable and channel.on_confirm is not None and channel.seq:
                channel.confirm_all()

    def lose(self) -> None:
        self.losses += 1
        for channel in self.harness.link.channels:
            channel.fail(ChannelClosedError(0, "541 INTERNAL_ERROR", connection_code=self.code))
        self.harness.lose_link()
        asyncio.get_running_loop().call_later(0.5, self.back)

    def back(self) -> None:
        self.harness.restore_link()
        self.serve()


async def test_publish_that_ends_the_connection_is_refused_and_no_other() -> None:
    harness = PublishQueueHarness(max_channels=3)
    fragile = ConnectionClosingBroker(harness, 541, "m13")
    made = {name: [harness.make(name, timeout=30.0) for _ in range(10)] for name in ("a", "b", "c")}
    for name in made:
        for publication in made[name]:
            await harness.queue.put(publication, confirm=True)
    await asyncio.sleep(10.0)
    assert [end for end in harness.ends() if end[0] == "error"] == [("error", "m13")]
    assert len(harness.ends()) == 30
    assert fragile.losses == 2, "once with the others, once alone"
    error = await failure_of(made["b"][2])
    assert isinstance(error, PublishRefusedError)
    assert (error.reply_code, error.reply_text) == (541, "541 INTERNAL_ERROR")
    [later] = await harness.publish(name="d")
    await asyncio.sleep(1.0)
    assert later.is_ended
    await harness.close()


async def test_publish_that_costs_the_link_each_time_is_refused_once_others_have_passed() -> None:
    harness = PublishQueueHarness(max_channels=2)
    ConnectionClosingBroker(harness, 0, "m2")
    made = [harness.make(timeout=0.0) for _ in range(5)]
    other = [harness.make("other", timeout=0.0) for _ in range(5)]
    for publication in (*made, *other):
        await harness.queue.put(publication, confirm=True)
    await asyncio.sleep(30.0)
    assert [end for end in harness.ends() if end[0] == "error"] == [("error", "m2")]
    assert len(harness.ends()) == 10
    error = await failure_of(made[1])
    assert isinstance(error, PublishRefusedError)
    assert (error.reply_code, error.reply_text) == (
        320,
        "the link was lost each time it carried this message alone, and not with others",
    )
    await harness.close()


async def test_link_that_is_lost_whatever_is_sent_blames_no_message() -> None:
    harness = PublishQueueHarness()
    fragile = ConnectionClosingBroker(harness, 0, *(f"m{number}" for number in range(1, 6)))
    made = [harness.make(timeout=0.0) for _ in range(5)]
    for publication in made:
        await harness.queue.put(publication, confirm=True)
    await asyncio.sleep(60.0)
    assert fragile.losses > 50
    assert harness.ends() == []
    fragile.poison = ()
    await asyncio.sleep(5.0)
    assert sorted(harness.ends()) == [("success", f"m{number}") for number in range(1, 6)]
    assert harness.queue.stats().held_bytes == 0
    await harness.close()


async def test_links_lost_a_few_times_in_a_row_let_no_publish_overtake_another() -> None:
    harness = PublishQueueHarness()
    fragile = ConnectionClosingBroker(harness, 0, "m1", "m2", "m3")
    for _ in range(5):
        await harness.queue.put(harness.make(timeout=0.0), confirm=True)
    await eventually(lambda: fragile.losses == 7)
    fragile.poison = ()
    await asyncio.sleep(5.0)
    assert harness.ends() == [("success", f"m{number}") for number in range(1, 6)]
    await harness.close()


async def test_links_lost_five_times_in_a_row_send_one_by_one_and_a_confirm_starts_over(
    harness: PublishQueueHarness,
) -> None:
    async def lose(times: int) -> list[list[int]]:
        batches = []
        for _ in range(times):
            harness.lose_link()
            await settle()
            harness.restore_link()
            await asyncio.sleep(1.0)
            batches.append(harness.channel.batches)
        return batches

    await harness.publish(4)
    assert await lose(4) == [[4]] * 4
    harness.channel.confirm(1)
    assert await lose(5) == [*([[3]] * 4), [1]]
    while len(harness.ends()) < 4:
        harness.channel.confirm_all()
        await settle()


async def test_links_lost_over_one_that_is_probed_without_the_turn_let_no_other_overtake_it(
    harness: PublishQueueHarness,
) -> None:
    ChannelClosingBroker(harness, 406, "m1", once=True)
    harness.link.auto_confirm = False
    await harness.publish(3)
    for _ in range(4):
        assert harness.channel.ids == ["m1"]
        harness.lose_link()
        await settle()
        harness.restore_link()
        await asyncio.sleep(1.0)
    assert harness.channel.ids == ["m1"]
    while len(harness.ends()) < 3:
        harness.channel.confirm_all()
        await settle()


async def test_two_publishes_that_cost_the_link_are_both_refused_and_all_others_pass() -> None:
    harness = PublishQueueHarness()
    ConnectionClosingBroker(harness, 0, "m2", "m3")
    for _ in range(20):
        await harness.queue.put(harness.make(timeout=0.0), confirm=True)
    await asyncio.sleep(60.0)
    passed = [f"m{number}" for number in range(1, 21) if number not in (2, 3)]
    assert sorted(harness.ends()) == sorted(
        [("error", "m2"), ("error", "m3"), *(("success", message_id) for message_id in passed)]
    )
    await harness.close()


@pytest.mark.parametrize("losses", [0.3, 0.6, 0.8])
async def test_link_that_is_lost_by_chance_refuses_no_message(losses: float) -> None:
    chance = random.Random(5)
    harness = PublishQueueHarness(max_channels=2)
    flaky = ConnectionClosingBroker(harness, 0)
    judge = flaky.judge

    def judge_by_chance() -> None:
        if chance.random() < losses:
            flaky.lose()
        else:
            judge()

    flaky.judge = judge_by_chance  # type: ignore[method-assign]
    for number in range(400):
        publication = harness.make("other" if number % 2 else "orders", timeout=0.0)
        await harness.queue.put(publication, confirm=True)
        if number % 20 == 19:
            await asyncio.sleep(20.0)
    await asyncio.sleep(2000.0)
    assert flaky.losses > 10
    assert sorted(harness.ends()) == sorted(("success", f"m{number}") for number in range(1, 401))
    await harness.close()


async def test_broker_that_is_short_of_disk_is_asked_again_after_growing_pauses(
    harness: PublishQueueHarness,
) -> None:
    full = ChannelClosingBroker(harness, 406, "m1", "m2", "m3")
    full.text = "PRECONDITION_FAILED - low on disk space"
    made = await harness.publish(3, timeout=60.0)
    await asyncio.sleep(10.0)
    assert harness.ends() == []
    assert len(harness.channels) < 12
    full.poison = ()
    await asyncio.sleep(6.0)
    assert [(await each).message_id for each in made] == ["m1", "m2", "m3"]


async def test_missing_exchange_is_declared_again_before_anything_is_refused(
    harness: PublishQueueHarness,
) -> None:
    strict = ChannelClosingBroker(harness, 404, "m2")

    async def restore() -> None:
        harness.restored += 1
        strict.poison = ()

    harness.restore_topology = restore  # type: ignore[method-assign]
    await harness.publish(3)
    await asyncio.sleep(1.0)
    assert harness.restored == 1
    assert sorted(harness.ends()) == [("success", "m1"), ("success", "m2"), ("success", "m3")]


async def test_exchange_that_stays_missing_refuses_each_and_restores_once(
    harness: PublishQueueHarness,
) -> None:
    ChannelClosingBroker(harness, 404, "m1", "m2", "m3")
    made = await harness.publish(3)
    await asyncio.sleep(5.0)
    assert harness.ends() == [("error", "m1"), ("error", "m2"), ("error", "m3")]
    assert isinstance(await failure_of(made[0]), PublishRefusedError)
    assert harness.restored == 1


async def test_message_that_cannot_be_encoded_is_refused_alone(
    harness: PublishQueueHarness,
) -> None:
    harness.link.auto_confirm = True
    made = [harness.make(routing_key=key) for key in ("a", "b", "bad", "c")]

    def judge(batch: list[Outgoing]) -> None:
        if any(message.routing_key == "bad" for message in batch):
            raise InvalidMessageError("headers", "are too large")

    publish = FakeChannel.publish

    async def checked(self: FakeChannel, batch: Any) -> None:
        judge(list(batch))
        await publish(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeChannel, "publish", checked)
        for publication in made:
            await harness.queue.put(publication, confirm=True)
        await asyncio.sleep(1.0)
    error = await failure_of(made[2])
    assert isinstance(error, PublishRefusedError)
    assert str(error).endswith("was not sent: cannot publish: headers are too large")
    assert error.reply_code == 0
    assert sorted(harness.ends()) == [
        ("error", "m3"),
        ("success", "m1"),
        ("success", "m2"),
        ("success", "m4"),
    ]


async def test_body_above_the_limit_of_the_channel_is_not_sent_and_the_rest_is(
    harness: PublishQueueHarness,
) -> None:
    harness.link.size_limit = SizeLimit(3, "the test")
    bodies = [b"1", b"2222", b"333", b"4444", b"5"]
    made = [harness.make(body=body) for body in bodies]
    for publication in made:
        await harness.queue.put(publication, confirm=True)
    await settle()
    assert harness.channel.ids == ["m1", "m3", "m5"]
    assert harness.ends() == [("error", "m2"), ("error", "m4")]
    error = await failure_of(made[1])
    assert isinstance(error, MessageTooLargeError)
    assert (error.publication, error.message_id) == ("orders", "m2")
    assert (error.size_bytes, error.limit_bytes, error.source) == (4, 3, "the test")
    harness.channel.confirm_all()
    assert [(await made[index]).maybe_duplicate for index in (0, 2, 4)] == [False] * 3


TOO_LARGE = ChannelClosedError(
    406, "PRECONDITION_FAILED - message size 9 is larger than configured max size 8"
)


async def test_refusal_that_tells_the_limit_ends_the_culprit_without_trying_one_by_one(
    harness: PublishQueueHarness,
) -> None:
    made = [harness.make(body=b"x" * size) for size in (1, 9, 8)]
    for publication in made:
        await harness.queue.put(publication, confirm=True)
    await settle()
    harness.channel.fail(TOO_LARGE)
    await settle()
    assert harness.ends() == [("error", "m2")]
    assert (harness.channel.ids, harness.channel.batches) == (["m1", "m3"], [2])
    harness.channel.confirm_all()
    assert [(await made[index]).maybe_duplicate for index in (0, 2)] == [True, True]
    assert isinstance(await failure_of(made[1]), MessageTooLargeError)


async def test_refusal_for_size_that_fits_no_message_is_not_repeated_forever(
    harness: PublishQueueHarness,
) -> None:
    made = await harness.publish(1)
    for _ in range(2):
        harness.channel.fail(TOO_LARGE)
        await settle()
    assert harness.ends() == [("error", "m1")]
    assert type(await failure_of(made[0])) is PublishRefusedError


async def test_nothing_is_sent_beside_one_that_is_probed(harness: PublishQueueHarness) -> None:
    ChannelClosingBroker(harness, 406, "m1", once=True)
    harness.link.auto_confirm = False
    await harness.publish(1)
    await harness.publish(2)
    assert harness.channel.ids == ["m1"]
    harness.channel.confirm(1)
    await settle()
    assert harness.channel.batches == [1, 2]
    harness.channel.confirm(2, 3)


async def test_others_go_on_as_soon_as_the_suspects_are_through() -> None:
    harness = PublishQueueHarness(max_channels=2)
    await harness.publish(1)
    harness.channel.fail(ChannelClosedError(0, "541 INTERNAL_ERROR", connection_code=541))
    harness.lose_link()
    await settle()
    harness.restore_link()
    await settle()
    assert harness.channel.ids == ["m1"]
    await harness.publish(1)
    await harness.publish(1, name="other")
    assert [channel.ids for channel in harness.channels] == [["m1"]]
    harness.channel.confirm(1)
    await settle()
    assert sorted(str(each) for channel in harness.channels for each in channel.ids) == [
        "m1",
        "m2",
        "m3",
    ]
    await harness.close()


async def test_link_lost_while_probing_blames_no_message(harness: PublishQueueHarness) -> None:
    ChannelClosingBroker(harness, 406, "m1", once=True)
    harness.link.auto_confirm = False
    await harness.publish(3)
    assert harness.channel.ids == ["m1"]
    harness.lose_link()
    await settle()
    harness.restore_link(auto_confirm=True)
    await asyncio.sleep(1.0)
    assert sorted(harness.ends()) == [("success", "m1"), ("success", "m2"), ("success", "m3")]


async def test_time_out_while_probing_puts_the_blame_on_no_other(
    harness: PublishQueueHarness,
) -> None:
    ChannelClosingBroker(harness, 406, "m1", once=True)
    harness.link.auto_confirm = False
    [timed_out, *innocent] = [harness.make(timeout=timeout) for timeout in (2.0, 30.0, 30.0)]
    for publication in (timed_out, *innocent):
        await harness.queue.put(publication, confirm=True)
    await settle()
    probing = harness.channel
    assert probing.ids == ["m1"]
    loop = asyncio.get_running_loop()
    closed = ChannelClosedError(406, "PRECONDITION_FAILED")
    loop.call_at(timed_out.deadline, probing.fail, closed)
    await asyncio.sleep(2.5)
    assert isinstance(await failure_of(timed_out), PublishUnconfirmedError)
    for _ in range(2):
        harness.channel.confirm_all()
        await settle()
    assert [(await each).message_id for each in innocent] == ["m2", "m3"]


async def test_channel_refused_with_a_code_is_not_asked_for_without_pause(
    harness: PublishQueueHarness,
) -> None:
    attempts = 0

    async def refuse(*, confirm: bool = False) -> FakeChannel:
        nonlocal attempts
        attempts += 1
        raise ChannelClosedError(403, "ACCESS_REFUSED")

    harness.link.open_channel = refuse  # type: ignore[method-assign]
    [publication] = await harness.publish(1, timeout=1.0)
    assert isinstance(await failure_of(publication), PublishTimeoutError)
    assert attempts <= 30
