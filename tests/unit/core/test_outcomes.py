"""Ack, requeue and touch: what becomes of the message."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Deliver, MessageTimedOut
from broker_client.core.settle_results import Done, NotInFlight, NotOwner
from broker_client.errors import ReplyError
from broker_client.runtime.deadlines import NEVER
from tests.support.builders import EngineHarness, a_message


def filled(harness: EngineHarness, count: int = 1, **arguments: Any) -> None:
    harness.queue(**arguments)
    harness.publish(*(a_message(body=b"%d" % n) for n in range(1, count + 1)))
    harness.take()


def test_finish_settles_and_a_second_is_not_in_flight(harness: EngineHarness) -> None:
    """no error, no closed channel, and the queue is as it was."""
    filled(harness)
    harness.get()
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now) == Done()
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now) == NotInFlight(1)
    assert harness.engine.consuming.requeue(harness.channel, 1, harness.now) == NotInFlight(1)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == NotInFlight(1)
    assert (harness.stats().ack_count, harness.stats().requeue_count) == (1, 0)
    assert harness.engine.channel_count == 1


def test_what_was_never_delivered_or_came_from_a_closed_channel_is_not_in_flight(
    harness: EngineHarness,
) -> None:
    """a tag is a number here, so none is malformed."""
    filled(harness)
    for tag in (0, 1, -1, 99):
        assert harness.engine.consuming.finish(harness.channel, tag, harness.now) == NotInFlight(
            tag
        )
    assert harness.engine.consuming.finish(12345, 1, harness.now) == NotInFlight(1)


def test_who_lost_a_delivery_to_another_is_told_so_and_the_other_is_unharmed(
    harness: EngineHarness,
) -> None:
    """A late FIN never finishes a newer delivery."""
    filled(harness, message_timeout=1000)
    other = harness.another_channel()
    harness.get()
    harness.advance(1.0)
    got = harness.engine.consuming.get(other, "q", harness.now)
    assert got is not None
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now) == NotOwner(1)
    assert harness.engine.consuming.requeue(harness.channel, 1, harness.now) == NotOwner(1)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == NotOwner(1)
    assert harness.stats().in_flight == 1
    assert harness.engine.consuming.finish(other, 1, harness.now) == Done()
    assert harness.engine.consuming.finish(other, 1, harness.now) == NotInFlight(1)
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now) == NotInFlight(1)
    assert harness.stats().ack_count == 1
    assert harness.engine.late_settles == 4


def test_the_new_delivery_on_the_same_channel_has_a_tag_of_its_own(harness: EngineHarness) -> None:
    """the old tag does not settle it."""
    filled(harness, message_timeout=1000)
    harness.get()
    harness.advance(1.0)
    harness.get()
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now) == NotOwner(1)
    assert harness.engine.consuming.finish(harness.channel, 2, harness.now) == Done()


def test_only_done_is_true() -> None:
    assert Done()
    assert not NotInFlight(1)
    assert not NotOwner(1)


def test_requeue_goes_to_its_place_and_with_a_delay_to_the_tail(harness: EngineHarness) -> None:
    """without delay the head, as AMQP wants it, not nsq's tail."""
    filled(harness, 3)
    harness.get()
    assert harness.engine.consuming.requeue(harness.channel, 1, harness.now)
    again = harness.get()
    assert again is not None
    assert (again.body, again.attempts) == (b"1", 2)
    assert harness.engine.consuming.requeue(harness.channel, 2, harness.now, delay=5.0)
    assert (harness.stats().deferred, harness.stats().requeue_count) == (1, 2)
    harness.advance(5.0)
    assert harness.drain() == [b"2", b"3", b"1"]


@pytest.mark.parametrize(("delay", "waits"), [(-3.0, 0.0), (0.0, 0.0), (7_200.0, 3_600.0)])
def test_a_requeue_out_of_range_is_cut_and_the_consumer_lives(
    harness: EngineHarness, delay: float, waits: float
) -> None:
    """nsq clamps too."""
    filled(harness)
    harness.consume()
    harness.take()
    assert harness.engine.consuming.requeue(harness.channel, 1, harness.now, delay=delay)
    if waits:
        harness.advance(waits - 0.1)
        assert harness.deliveries() == []
        harness.advance(0.1)
    (delivery,) = harness.deliveries()
    assert delivery.attempts == 2
    assert harness.stats().consumers == 1


def test_attempts_go_on_past_what_sixteen_bits_hold(harness: EngineHarness) -> None:
    filled(harness)
    for tag in range(1, 70_001):
        harness.get()
        harness.nack(tag)
    last = harness.get()
    assert last is not None
    assert last.attempts == 70_001
    assert harness.stats().requeue_count == 70_000


# --------------------------------------------------------------------- touch


def test_touch_gives_the_time_left_and_stops_at_the_most_from_delivery() -> None:
    """the deadline is pinned, and touching goes on to succeed."""
    harness = EngineHarness(message_timeout=60.0, max_message_timeout=100.0)
    filled(harness)
    harness.get()
    lefts = []
    for _ in range(4):
        harness.advance(30.0)
        outcome = harness.engine.consuming.touch(harness.channel, 1, harness.now)
        lefts.append(outcome.seconds_left if isinstance(outcome, Done) else None)
    assert lefts == [60.0, 40.0, 10.0, None]
    assert harness.stats().timeout_count == 1


def test_touch_tells_of_less_than_a_second_left() -> None:
    harness = EngineHarness(message_timeout=60.0, max_message_timeout=60.5)
    filled(harness)
    harness.get()
    harness.advance(59.75)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(0.75)


def test_touch_of_a_delivery_that_may_take_forever_leaves_it_so() -> None:
    harness = EngineHarness(message_timeout=0.0)
    filled(harness)
    harness.get()
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(NEVER)


def test_requeue_with_a_delay_of_less_than_a_second_waits_that_long(
    harness: EngineHarness,
) -> None:
    filled(harness)
    harness.get()
    assert harness.engine.consuming.requeue(harness.channel, 1, harness.now, delay=0.5) == Done()
    assert harness.engine.next_deadline() == harness.now + 0.5
    assert (harness.stats().ready, harness.stats().deferred) == (0, 1)


def test_touch_never_makes_a_deadline_earlier() -> None:
    """Where a queue allows more than max_message_timeout."""
    harness = EngineHarness(max_message_timeout=10.0)
    filled(harness, message_timeout=60_000)
    harness.get()
    harness.advance(5.0)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(55.0)


# --------------------------------------------------------------------- a consumer's own time


def test_a_consumer_brings_its_own_message_timeout(harness: EngineHarness) -> None:
    """beside the queue's and the node's; touch uses it too."""
    filled(harness, 2, message_timeout=30_000)
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume(arguments={"x-message-timeout": 2_000})
    other = harness.another_channel()
    harness.engine.consuming.qos(other, 1)
    harness.consume(channel=other)
    harness.take()
    first, second = harness.engine.admin.in_flight("/", "q")
    assert (first.deadline, second.deadline) == (harness.now + 2.0, harness.now + 30.0)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(2.0)
    harness.advance(2.0)
    stats = {each.channel: each for each in harness.stats().consumer_stats}
    assert (stats[harness.channel].timeout_count, stats[other].timeout_count) == (1, 0)
    assert stats[harness.channel].message_timeout == 2.0


@pytest.mark.parametrize("value", [0, -1, 900_001, "1000", True, 1.5])
def test_a_message_timeout_that_is_none_is_refused_and_no_consumer_made(
    harness: EngineHarness, value: object
) -> None:
    """nsq's `msg timeout (%d) is invalid`."""
    harness.queue()
    with pytest.raises(ReplyError, match="x-message-timeout") as refused:
        harness.consume(arguments={"x-message-timeout": value})
    assert refused.value.reply_code == 406
    assert harness.stats().consumers == 0


def test_a_consumers_own_timeout_gives_back_where_its_queue_would_close(
    harness: EngineHarness,
) -> None:
    """who asks for a time-out of its own, asks for nsq's way."""
    filled(harness, consumer_timeout=1_000, queue_type="quorum")
    harness.consume(arguments={"x-message-timeout": 500})
    harness.take()
    harness.advance(0.5)
    notice, again = harness.take()
    assert isinstance(notice, MessageTimedOut)
    assert isinstance(again, Deliver)
    assert (again.delivery.attempts, again.delivery.redelivered) == (2, True)
    assert harness.engine.channel_count == 1


# --------------------------------------------------------------------- what is in flight


def test_what_is_in_flight_is_listed_with_who_since_when_until_when_and_attempt(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message(body=b"abc", message_id="m1"), a_message(message_id="m2"))
    harness.take()
    harness.get()
    harness.nack(1)
    began = harness.now
    tag = harness.consume()
    harness.advance(10.0)
    first, second = harness.engine.admin.in_flight("/", "q")
    assert (first.message_id, first.attempts, first.size_bytes) == ("m1", 2, 3)
    assert (first.connection, first.channel) == (harness.connection, harness.channel)
    assert (first.consumer_tag, first.delivery_tag) == (tag, 2)
    assert (first.delivered_at, first.deadline) == (began, began + 60.0)
    assert (second.message_id, second.attempts) == ("m2", 1)
    assert len(harness.engine.admin.in_flight("/", "q", most=1)) == 1


def test_what_was_got_without_a_consumer_is_in_flight_with_nobodys_tag(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message())
    harness.get()
    assert [each.consumer_tag for each in harness.engine.admin.in_flight("/", "q")] == [""]


def test_a_missing_queue_cannot_be_looked_into(harness: EngineHarness) -> None:
    for look in (harness.engine.admin.in_flight, harness.engine.admin.deferred):
        for vhost in ("/", "none"):
            with pytest.raises(ReplyError, match="no queue 'q' in vhost"):
                look(vhost, "q")
