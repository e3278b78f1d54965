"""Finish, requeue and touch as nsq has them: outcomes to look at ."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Deliver, MessageTimedOut
from broker_client.core.outcomes import Done, NotInFlight, NotOwner
from broker_client.errors import ReplyError
from tests.support.builders import Desk, a_message


def filled(desk: Desk, count: int = 1, **arguments: Any) -> None:
    desk.queue(**arguments)
    desk.publish(*(a_message(body=b"%d" % n) for n in range(1, count + 1)))
    desk.take()


def test_finish_settles_and_a_second_is_not_in_flight(desk: Desk) -> None:
    """no error, no closed channel, and the queue is as it was."""
    filled(desk)
    desk.get()
    assert desk.engine.finish(desk.channel, 1, desk.now) == Done()
    assert desk.engine.finish(desk.channel, 1, desk.now) == NotInFlight(1)
    assert desk.engine.requeue(desk.channel, 1, desk.now) == NotInFlight(1)
    assert desk.engine.extend(desk.channel, 1, desk.now) == NotInFlight(1)
    assert (desk.stats().ack_count, desk.stats().requeue_count) == (1, 0)
    assert desk.engine.channel_count == 1


def test_what_was_never_delivered_or_came_from_a_closed_channel_is_not_in_flight(
    desk: Desk,
) -> None:
    """a tag is a number here, so none is malformed."""
    filled(desk)
    for tag in (0, 1, -1, 99):
        assert desk.engine.finish(desk.channel, tag, desk.now) == NotInFlight(tag)
    assert desk.engine.finish(12345, 1, desk.now) == NotInFlight(1)


def test_who_lost_a_delivery_to_another_is_told_so_and_the_other_is_unharmed(desk: Desk) -> None:
    """G3: a late FIN never finishes a newer delivery."""
    filled(desk, message_timeout=1000)
    other = desk.another_channel()
    desk.get()
    desk.advance(1.0)
    got = desk.engine.get(other, "q", desk.now)
    assert got is not None
    assert desk.engine.finish(desk.channel, 1, desk.now) == NotOwner(1)
    assert desk.engine.requeue(desk.channel, 1, desk.now) == NotOwner(1)
    assert desk.engine.extend(desk.channel, 1, desk.now) == NotOwner(1)
    assert desk.stats().in_flight == 1
    assert desk.engine.finish(other, 1, desk.now) == Done()
    assert desk.engine.finish(other, 1, desk.now) == NotInFlight(1)
    assert desk.engine.finish(desk.channel, 1, desk.now) == NotInFlight(1)
    assert desk.stats().ack_count == 1
    assert desk.engine.late_settles == 4


def test_the_new_delivery_on_the_same_channel_has_a_tag_of_its_own(desk: Desk) -> None:
    """the old tag does not settle it."""
    filled(desk, message_timeout=1000)
    desk.get()
    desk.advance(1.0)
    desk.get()
    assert desk.engine.finish(desk.channel, 1, desk.now) == NotOwner(1)
    assert desk.engine.finish(desk.channel, 2, desk.now) == Done()


def test_only_done_is_true() -> None:
    assert Done()
    assert not NotInFlight(1)
    assert not NotOwner(1)


def test_requeue_goes_to_its_place_and_with_a_delay_to_the_tail(desk: Desk) -> None:
    """without delay the head, as AMQP wants it, not nsq's tail."""
    filled(desk, 3)
    desk.get()
    assert desk.engine.requeue(desk.channel, 1, desk.now)
    again = desk.get()
    assert again is not None
    assert (again.body, again.attempts) == (b"1", 2)
    assert desk.engine.requeue(desk.channel, 2, desk.now, delay=5.0)
    assert (desk.stats().deferred, desk.stats().requeue_count) == (1, 2)
    desk.advance(5.0)
    assert desk.drain() == [b"2", b"3", b"1"]


@pytest.mark.parametrize(("delay", "waits"), [(-3.0, 0.0), (0.0, 0.0), (7_200.0, 3_600.0)])
def test_a_requeue_out_of_range_is_cut_and_the_consumer_lives(
    desk: Desk, delay: float, waits: float
) -> None:
    """nsq clamps too."""
    filled(desk)
    desk.consume()
    desk.take()
    assert desk.engine.requeue(desk.channel, 1, desk.now, delay=delay)
    if waits:
        desk.advance(waits - 0.1)
        assert desk.deliveries() == []
        desk.advance(0.1)
    (delivery,) = desk.deliveries()
    assert delivery.attempts == 2
    assert desk.stats().consumers == 1


def test_attempts_go_on_past_what_sixteen_bits_hold(desk: Desk) -> None:
    filled(desk)
    for tag in range(1, 70_001):
        desk.get()
        desk.nack(tag)
    last = desk.get()
    assert last is not None
    assert last.attempts == 70_001
    assert desk.stats().requeue_count == 70_000


# --------------------------------------------------------------------- touch


def test_touch_gives_the_time_left_and_stops_at_the_most_from_delivery() -> None:
    """the deadline is pinned, and touching goes on to succeed."""
    desk = Desk(message_timeout=60.0, max_message_timeout=100.0)
    filled(desk)
    desk.get()
    lefts = []
    for _ in range(4):
        desk.advance(30.0)
        outcome = desk.engine.extend(desk.channel, 1, desk.now)
        lefts.append(outcome.seconds_left if isinstance(outcome, Done) else None)
    assert lefts == [60.0, 40.0, 10.0, None]
    assert desk.stats().timeout_count == 1


def test_touch_never_makes_a_deadline_earlier() -> None:
    """Where a queue allows more than max_message_timeout."""
    desk = Desk(max_message_timeout=10.0)
    filled(desk, message_timeout=60_000)
    desk.get()
    desk.advance(5.0)
    assert desk.engine.extend(desk.channel, 1, desk.now) == Done(55.0)


# --------------------------------------------------------------------- a consumer's own time


def test_a_consumer_brings_its_own_message_timeout(desk: Desk) -> None:
    """beside the queue's and the node's; touch uses it too."""
    filled(desk, 2, message_timeout=30_000)
    desk.engine.qos(desk.channel, 1)
    desk.consume(arguments={"x-message-timeout": 2_000})
    other = desk.another_channel()
    desk.engine.qos(other, 1)
    desk.consume(channel=other)
    desk.take()
    first, second = desk.engine.in_flight("/", "q")
    assert (first.deadline, second.deadline) == (desk.now + 2.0, desk.now + 30.0)
    assert desk.engine.extend(desk.channel, 1, desk.now) == Done(2.0)
    desk.advance(2.0)
    stats = {each.channel: each for each in desk.stats().consumer_stats}
    assert (stats[desk.channel].timeout_count, stats[other].timeout_count) == (1, 0)
    assert stats[desk.channel].message_timeout == 2.0


@pytest.mark.parametrize("value", [0, -1, 900_001, "1000", True, 1.5])
def test_a_message_timeout_that_is_none_is_refused_and_no_consumer_made(
    desk: Desk, value: object
) -> None:
    """nsq's `msg timeout (%d) is invalid`."""
    desk.queue()
    with pytest.raises(ReplyError, match="x-message-timeout") as refused:
        desk.consume(arguments={"x-message-timeout": value})
    assert refused.value.reply_code == 406
    assert desk.stats().consumers == 0


def test_a_consumers_own_timeout_gives_back_where_its_queue_would_close(desk: Desk) -> None:
    """who asks for a time-out of its own, asks for nsq's way."""
    filled(desk, consumer_timeout=1_000)
    desk.consume(arguments={"x-message-timeout": 500})
    desk.take()
    desk.advance(0.5)
    notice, again = desk.take()
    assert isinstance(notice, MessageTimedOut)
    assert isinstance(again, Deliver)
    assert (again.delivery.attempts, again.delivery.redelivered) == (2, True)
    assert desk.engine.channel_count == 1


# --------------------------------------------------------------------- what is in flight


def test_what_is_in_flight_is_listed_with_who_since_when_until_when_and_attempt(
    desk: Desk,
) -> None:
    desk.queue()
    desk.publish(a_message(body=b"abc", message_id="m1"), a_message(message_id="m2"))
    desk.take()
    desk.get()
    desk.nack(1)
    began = desk.now
    tag = desk.consume()
    desk.advance(10.0)
    first, second = desk.engine.in_flight("/", "q")
    assert (first.message_id, first.attempts, first.size_bytes) == ("m1", 2, 3)
    assert (first.connection, first.channel) == (desk.connection, desk.channel)
    assert (first.consumer_tag, first.delivery_tag) == (tag, 2)
    assert (first.delivered_at, first.deadline) == (began, began + 60.0)
    assert (second.message_id, second.attempts) == ("m2", 1)
    assert len(desk.engine.in_flight("/", "q", most=1)) == 1


def test_a_missing_queue_cannot_be_looked_into(desk: Desk) -> None:
    for look in (desk.engine.in_flight, desk.engine.deferred):
        for vhost in ("/", "none"):
            with pytest.raises(ReplyError, match="no queue 'q' in vhost"):
                look(vhost, "q")
