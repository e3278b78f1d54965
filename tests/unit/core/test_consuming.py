"""Delivery, settlement, and the order in which things come back."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import CloseChannel, Deliver
from broker_client.errors import ReplyError
from broker_client.message import Delivery
from tests.support.builders import Desk, a_message


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(1, count + 1)]


def filled(desk: Desk, count: int, **arguments: Any) -> None:
    desk.queue(**arguments)
    desk.publish(*(a_message(body=body) for body in numbered(count)))
    desk.take()


def test_a_message_is_delivered_with_what_it_was_published_with(desk: Desk) -> None:
    desk.queue()
    tag = desk.consume()
    message = a_message(body=b"x", message_id="m1")
    desk.publish(message)
    assert desk.deliveries() == [Delivery(tag, 1, False, "", "q", b"x", message.properties, 1)]


def test_prefetch_limits_what_is_unsettled_and_settling_brings_the_next(desk: Desk) -> None:
    filled(desk, 4)
    desk.engine.qos(desk.channel, 2)
    desk.consume()
    assert desk.bodies() == [b"1", b"2"]
    desk.ack(1)
    assert desk.bodies() == [b"3"]


def test_prefetch_counts_only_for_consumers_started_after_it(desk: Desk) -> None:
    desk.queue()
    desk.consume()
    desk.engine.qos(desk.channel, 1)
    desk.publish(a_message(), a_message(), a_message())
    assert len(desk.deliveries()) == 3


def test_prefetch_is_each_consumers_own(desk: Desk) -> None:
    desk.engine.qos(desk.channel, 1)
    desk.queue()
    first, second = desk.consume(), desk.consume()
    desk.publish(a_message(), a_message(), a_message())
    assert [delivery.consumer_tag for delivery in desk.deliveries()] == [first, second]
    assert desk.stats().ready == 1


def test_consumers_take_turns_and_full_ones_are_passed_over(desk: Desk) -> None:
    desk.queue()
    desk.engine.qos(desk.channel, 1)
    narrow = desk.consume()
    desk.engine.qos(desk.channel, 0)
    wide = desk.consume()
    desk.publish(*(a_message() for _ in range(4)))
    assert [d.consumer_tag for d in desk.deliveries()] == [narrow, wide, wide, wide]


def test_the_consumer_of_higher_priority_comes_first_while_it_can(desk: Desk) -> None:
    desk.queue()
    desk.engine.qos(desk.channel, 1)
    low = desk.consume()
    high = desk.consume(arguments={"x-priority": 5})
    desk.publish(a_message(), a_message())
    assert [d.consumer_tag for d in desk.deliveries()] == [high, low]


def test_no_ack_settles_at_once_and_knows_no_prefetch(desk: Desk) -> None:
    filled(desk, 3)
    desk.engine.qos(desk.channel, 1)
    desk.consume(no_ack=True)
    assert len(desk.deliveries()) == 3
    assert (desk.stats().in_flight, desk.stats().ack_count) == (0, 3)
    assert desk.engine.next_deadline() is None
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        desk.ack(1)


def test_an_exclusive_consumer_shuts_others_out_and_the_reverse(desk: Desk) -> None:
    desk.queue()
    tag = desk.consume(exclusive=True)
    with pytest.raises(ReplyError, match=r"^403 .*queue 'q' in vhost '/' in exclusive use"):
        desk.consume()
    desk.engine.cancel(desk.channel, tag, desk.now)
    desk.consume()
    with pytest.raises(ReplyError, match=r"^403 "):
        desk.consume(exclusive=True)


def test_a_consumer_tag_in_use_costs_the_connection(desk: Desk) -> None:
    desk.queue()
    desk.consume(consumer_tag="c")
    with pytest.raises(ReplyError, match=r"^530 .*attempt to reuse consumer tag 'c'") as refusal:
        desk.consume(consumer_tag="c")
    assert refusal.value.scope == "connection"


def test_the_single_active_consumer_is_followed_by_the_next(desk: Desk) -> None:
    desk.queue(single_active_consumer=True)
    first, second = desk.consume(), desk.consume()
    desk.publish(a_message(), a_message())
    assert {d.consumer_tag for d in desk.deliveries()} == {first}
    desk.engine.cancel(desk.channel, first, desk.now)
    desk.publish(a_message())
    assert [d.consumer_tag for d in desk.deliveries()] == [second]


def test_get_takes_the_head_and_tells_how_many_are_left(desk: Desk) -> None:
    filled(desk, 3)
    got = desk.engine.get(desk.channel, "q", desk.now)
    assert got is not None
    delivery, left = got
    assert (delivery.body, delivery.delivery_tag, delivery.consumer_tag, left) == (b"1", 1, "", 2)


def test_get_from_an_empty_queue_is_none(desk: Desk) -> None:
    desk.queue()
    assert desk.get() is None


def test_ack_multiple_settles_all_up_to_the_tag(desk: Desk) -> None:
    filled(desk, 4)
    desk.consume()
    desk.ack(3, multiple=True)
    assert (desk.stats().in_flight, desk.stats().ack_count) == (1, 3)
    desk.ack(0, multiple=True)
    assert desk.stats().in_flight == 0


@pytest.mark.parametrize("tag", [0, 2, 99])
def test_a_tag_never_issued_is_refused_and_settles_nothing(desk: Desk, tag: int) -> None:
    filled(desk, 1)
    desk.consume()
    for multiple in (False, bool(tag)):
        with pytest.raises(
            ReplyError, match=rf"^406 PRECONDITION_FAILED - unknown delivery tag {tag}$"
        ):
            desk.ack(tag, multiple=multiple)
    assert desk.stats().in_flight == 1


def test_settling_twice_is_refused(desk: Desk) -> None:
    filled(desk, 1)
    desk.consume()
    desk.ack(1)
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        desk.nack(1)


def test_a_tag_of_another_channel_is_unknown(desk: Desk) -> None:
    filled(desk, 1)
    desk.consume(channel=desk.another_channel())
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        desk.ack(1)


def test_a_requeued_message_goes_back_to_its_place_marked_redelivered(desk: Desk) -> None:
    filled(desk, 4)
    for _ in range(3):
        desk.get()
    desk.nack(2)
    desk.nack(1)
    desk.nack(3)
    back = [desk.get() for _ in range(4)]
    assert [(d.body, d.redelivered, d.attempts) for d in back if d] == [
        (b"1", True, 2),
        (b"2", True, 2),
        (b"3", True, 2),
        (b"4", False, 1),
    ]


def test_reject_without_requeue_drops_where_there_is_no_dead_letter_exchange(desk: Desk) -> None:
    filled(desk, 1)
    desk.get()
    desk.nack(1, requeue=False)
    assert (desk.stats().drop_count, desk.drain()) == (1, [])


def test_recover_requeues_everything_in_order(desk: Desk) -> None:
    filled(desk, 3)
    for _ in range(3):
        desk.get()
    desk.engine.recover(desk.channel, desk.now)
    assert desk.drain() == numbered(3)


def test_a_closed_channel_gives_everything_back_in_order_at_once(desk: Desk) -> None:
    filled(desk, 5)
    other = desk.another_channel()
    desk.consume(channel=other)
    desk.take()
    desk.engine.close_channel(other, desk.now)
    assert desk.stats().ready == 5
    delivery = desk.get()
    assert delivery is not None
    assert (delivery.body, delivery.redelivered) == (b"1", True)
    assert desk.drain() == numbered(5)[1:]


def test_a_closed_connection_gives_everything_to_the_consumers_that_are_left(desk: Desk) -> None:
    desk.queue()
    other = desk.engine.open_connection("/")
    desk.consume(channel=desk.engine.open_channel(other))
    desk.publish(*(a_message(body=body) for body in numbered(3)))
    desk.take()
    mine = desk.consume()
    desk.engine.close_connection(other, desk.now)
    assert [(d.consumer_tag, d.body) for d in desk.deliveries()] == [
        (mine, body) for body in numbered(3)
    ]


def test_a_cancelled_consumer_gets_nothing_more_and_may_still_settle(desk: Desk) -> None:
    desk.queue()
    tag = desk.consume()
    desk.publish(a_message())
    desk.engine.cancel(desk.channel, tag, desk.now)
    desk.engine.cancel(desk.channel, "unknown", desk.now)
    desk.publish(a_message())
    assert len(desk.deliveries()) == 1
    desk.ack(1)
    assert (desk.stats().ready, desk.stats().in_flight) == (1, 0)


def test_a_delivery_comes_before_the_confirm_of_its_publish(desk: Desk) -> None:
    desk.queue()
    desk.consume()
    desk.publish(a_message())
    assert [type(effect).__name__ for effect in desk.take()] == ["Deliver", "Confirm"]


def test_priorities_come_highest_first_and_in_order_within_one(desk: Desk) -> None:
    desk.queue(max_priority=5)
    for body, priority in ((b"a", None), (b"b", 9), (b"c", 3), (b"d", 5), (b"e", 0)):
        desk.publish(a_message(body=body, priority=priority))
    head = desk.get()
    assert head is not None
    desk.nack(head.delivery_tag)
    assert desk.drain() == [b"b", b"d", b"c", b"a", b"e"]


# --------------------------------------------------------------------- time in flight


def test_a_delivery_not_settled_in_time_goes_to_the_tail_and_its_consumer_hears(
    desk: Desk,
) -> None:
    filled(desk, 2)
    desk.engine.qos(desk.channel, 1)
    tag = desk.consume()
    assert desk.bodies() == [b"1"]
    assert desk.engine.next_deadline() == desk.now + 60.0
    desk.advance(59.9)
    assert desk.take() == []
    desk.advance(0.1)
    notice, deliver = desk.take()
    assert (type(notice).__name__, notice) == (
        "MessageTimedOut",
        type(notice)(desk.channel, tag, 1),  # type: ignore[call-arg, arg-type]
    )
    assert isinstance(deliver, Deliver)
    assert deliver.delivery.body == b"2"
    desk.ack(2)
    (again,) = desk.deliveries()
    assert (again.body, again.redelivered, again.attempts) == (b"1", True, 2)
    assert (desk.stats().timeout_count, desk.stats().requeue_count) == (1, 0)


def test_a_late_settlement_of_a_timed_out_delivery_is_ignored_and_counted(desk: Desk) -> None:
    filled(desk, 1)
    desk.get()
    desk.advance(60.0)
    desk.ack(1)
    assert desk.engine.late_settles == 1
    assert desk.stats().ready == 1
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        desk.ack(1)


def test_a_late_ack_of_many_still_settles_those_in_flight(desk: Desk) -> None:
    filled(desk, 3, message_timeout=1000)
    desk.get()
    desk.advance(0.5)
    desk.get()
    desk.engine.touch(desk.channel, 1, desk.now)
    desk.advance(0.7)  # neither
    desk.engine.touch(desk.channel, 1, desk.now)
    desk.advance(0.3)  # the second is due
    assert desk.stats().timeout_count == 1
    desk.ack(2, multiple=True)
    assert (desk.stats().in_flight, desk.stats().ack_count) == (0, 1)


@pytest.mark.parametrize(("milliseconds", "deadline"), [(250, 0.25), (0, None)])
def test_the_queue_says_how_long_a_delivery_may_take(
    desk: Desk, milliseconds: int, deadline: float | None
) -> None:
    filled(desk, 1, message_timeout=milliseconds)
    desk.get()
    due = desk.engine.next_deadline()
    assert (None if due is None else due - desk.now) == deadline


def test_touch_extends_but_never_past_the_most_from_delivery() -> None:
    desk = Desk(message_timeout=60.0, max_message_timeout=100.0)
    filled(desk, 1)
    desk.get()
    desk.advance(30.0)
    assert desk.engine.touch(desk.channel, 1, desk.now) == 60.0
    desk.advance(50.0)
    assert desk.engine.touch(desk.channel, 1, desk.now) == 20.0
    desk.advance(20.0)
    assert desk.stats().timeout_count == 1


def test_a_consumer_timeout_closes_the_channel_as_rabbitmq_does(desk: Desk) -> None:
    filled(desk, 2, consumer_timeout=1000)
    desk.consume()
    desk.take()
    desk.advance(1.0)
    (closed,) = desk.take()
    assert isinstance(closed, CloseChannel)
    assert (closed.channel, closed.reply_code) == (desk.channel, 406)
    told = f"delivery acknowledgement on channel {desk.channel} timed out. Timeout value used: 1000"
    assert told in closed.reply_text
    assert (desk.stats().ready, desk.stats().in_flight, desk.stats().consumers) == (2, 0, 0)


def test_deadlines_of_settled_deliveries_are_forgotten(desk: Desk) -> None:
    filled(desk, 2)
    desk.get()
    desk.advance(10.0)
    desk.get()
    desk.ack(1)
    assert desk.engine.next_deadline() == desk.now + 60.0
    desk.ack(2)
    assert desk.engine.next_deadline() is None


# --------------------------------------------------------------------- deferred


def test_a_deferred_message_comes_back_at_its_time_to_the_tail(desk: Desk) -> None:
    filled(desk, 2)
    desk.get()
    desk.nack(1, delay=5.0)
    assert (desk.stats().deferred, desk.stats().ready, desk.stats().in_flight) == (1, 1, 0)
    assert desk.engine.next_deadline() == desk.now + 5.0
    desk.advance(4.9)
    assert desk.stats().deferred == 1
    desk.advance(0.1)
    assert desk.drain() == [b"2", b"1"]


def test_a_deferred_message_frees_prefetch_and_is_redelivered(desk: Desk) -> None:
    filled(desk, 2)
    desk.engine.qos(desk.channel, 1)
    desk.consume()
    desk.take()
    desk.nack(1, delay=1.0)
    assert desk.bodies() == [b"2"]
    desk.ack(2)
    desk.advance(1.0)
    (back,) = desk.deliveries()
    assert (back.body, back.redelivered, back.attempts) == (b"1", True, 2)


def test_a_delay_beyond_the_most_is_cut() -> None:
    desk = Desk(max_requeue_timeout=10.0)
    filled(desk, 1)
    desk.get()
    desk.nack(1, delay=1e9)
    assert desk.engine.next_deadline() == desk.now + 10.0


def test_a_deferred_message_survives_its_connection(desk: Desk) -> None:
    filled(desk, 1)
    desk.get()
    desk.nack(1, delay=1.0)
    desk.engine.close_connection(desk.connection, desk.now)
    desk.advance(1.0)
    assert desk.stats().ready == 1


# --------------------------------------------------------------------- long queues


def test_a_consumer_without_limit_at_a_long_queue_is_served_in_steps(desk: Desk) -> None:
    """unlimited is unlimited, but others have their turn in between."""
    desk.queue()
    desk.queue("other")
    desk.publish(*(a_message(body=b"%d" % n) for n in range(2_500)))
    desk.take()
    desk.consume()
    assert len(desk.deliveries()) == 1_000
    assert desk.engine.is_unfinished
    desk.consume("other")
    desk.publish(a_message("other", b"in between"))
    assert desk.bodies() == [b"in between"]
    desk.ack(500, multiple=True)
    assert desk.deliveries() == []  # not by the back door either
    desk.engine.proceed(desk.now)
    assert len(desk.deliveries()) == 1_000
    desk.publish(a_message(body=b"last"))
    desk.engine.tick(desk.now)
    rest = desk.bodies()
    assert (rest[0], rest[-1], len(rest)) == (b"2000", b"last", 501)
    assert not desk.engine.is_unfinished


def test_an_unfinished_queue_may_be_deleted_paused_or_left(desk: Desk) -> None:
    for end in ("delete", "pause", "cancel", "purge"):
        desk.queue()
        desk.publish(*(a_message() for _ in range(1_500)))
        tag = desk.consume()
        desk.take()
        if end == "delete":
            desk.engine.delete_queue(desk.channel, "q")
        elif end == "pause":
            desk.engine.pause_queue("/", "q")
        elif end == "cancel":
            desk.engine.cancel(desk.channel, tag, desk.now)
        else:
            desk.engine.purge_queue(desk.channel, "q")
        desk.take()
        desk.engine.proceed(desk.now)
        assert desk.deliveries() == []
        desk.engine.delete_queue(desk.channel, "q")
        desk.take()


def test_recover_without_requeue_is_not_implemented(desk: Desk) -> None:
    """540, as RabbitMQ."""
    with pytest.raises(ReplyError) as refused:
        desk.engine.recover(desk.channel, desk.now, requeue=False)
    assert (refused.value.reply_code, refused.value.scope) == (540, "connection")


def test_settling_many_at_once_costs_as_many_as_there_are(desk: Desk) -> None:
    """However many were settled before them: a walk over the keys of a dict would not."""
    filled(desk, 6)
    for _ in range(6):
        desk.get()
    desk.ack(2, multiple=True)
    desk.ack(4)
    desk.ack(5, multiple=True)
    assert (desk.stats().ack_count, desk.stats().in_flight) == (5, 1)
    desk.ack(0, multiple=True)
    assert desk.stats().in_flight == 0
