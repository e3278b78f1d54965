"""Delivery, settlement, and the order in which things come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_client.core.effects import CancelConsumer, CloseChannel, Deliver
from broker_client.core.settle_results import Done
from broker_client.errors import ReplyError
from broker_client.message import Delivery
from tests.support.builders import EngineHarness, a_message


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(1, count + 1)]


def filled(harness: EngineHarness, count: int, **arguments: Any) -> None:
    harness.queue(**arguments)
    harness.publish(*(a_message(body=body) for body in numbered(count)))
    harness.take()


def test_a_message_is_delivered_with_what_it_was_published_with(harness: EngineHarness) -> None:
    harness.queue()
    tag = harness.consume()
    message = a_message(body=b"x", message_id="m1")
    harness.publish(message)
    assert harness.deliveries() == [Delivery(tag, 1, False, "", "q", b"x", message.properties, 1)]


def test_prefetch_limits_what_is_unsettled_and_settling_brings_the_next(
    harness: EngineHarness,
) -> None:
    filled(harness, 4)
    harness.engine.consuming.qos(harness.channel, 2)
    harness.consume()
    assert harness.bodies() == [b"1", b"2"]
    harness.ack(1)
    assert harness.bodies() == [b"3"]


def test_prefetch_counts_only_for_consumers_started_after_it(harness: EngineHarness) -> None:
    harness.queue()
    harness.consume()
    harness.engine.consuming.qos(harness.channel, 1)
    harness.publish(a_message(), a_message(), a_message())
    assert len(harness.deliveries()) == 3


def test_prefetch_is_each_consumers_own(harness: EngineHarness) -> None:
    harness.engine.consuming.qos(harness.channel, 1)
    harness.queue()
    first, second = harness.consume(), harness.consume()
    harness.publish(a_message(), a_message(), a_message())
    assert [delivery.consumer_tag for delivery in harness.deliveries()] == [first, second]
    assert harness.stats().ready == 1


def test_consumers_take_turns_and_full_ones_are_passed_over(harness: EngineHarness) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1)
    narrow = harness.consume()
    harness.engine.consuming.qos(harness.channel, 0)
    wide = harness.consume()
    harness.publish(*(a_message() for _ in range(4)))
    assert [d.consumer_tag for d in harness.deliveries()] == [narrow, wide, wide, wide]


def test_the_consumer_of_higher_priority_comes_first_while_it_can(harness: EngineHarness) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1)
    low = harness.consume()
    high = harness.consume(arguments={"x-priority": 5})
    harness.publish(a_message(), a_message())
    assert [d.consumer_tag for d in harness.deliveries()] == [high, low]


def test_no_ack_settles_at_once_and_knows_no_prefetch(harness: EngineHarness) -> None:
    filled(harness, 3)
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume(no_ack=True)
    assert len(harness.deliveries()) == 3
    assert (harness.stats().in_flight, harness.stats().ack_count) == (0, 3)
    assert harness.engine.next_deadline() is None
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        harness.ack(1)


def test_an_exclusive_consumer_shuts_others_out_and_the_reverse(harness: EngineHarness) -> None:
    harness.queue()
    tag = harness.consume(exclusive=True)
    with pytest.raises(ReplyError, match=r"^403 .*queue 'q' in vhost '/' in exclusive use"):
        harness.consume()
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    harness.consume()
    with pytest.raises(ReplyError, match=r"^403 "):
        harness.consume(exclusive=True)


def test_a_consumer_tag_in_use_costs_the_connection(harness: EngineHarness) -> None:
    harness.queue()
    harness.consume(consumer_tag="c")
    with pytest.raises(ReplyError, match=r"^530 .*attempt to reuse consumer tag 'c'") as refusal:
        harness.consume(consumer_tag="c")
    assert refusal.value.scope == "connection"


def test_the_single_active_consumer_is_followed_by_the_next(harness: EngineHarness) -> None:
    harness.queue(single_active_consumer=True)
    first, second = harness.consume(), harness.consume()
    harness.publish(a_message(), a_message())
    assert {d.consumer_tag for d in harness.deliveries()} == {first}
    harness.engine.consuming.cancel(harness.channel, first, harness.now)
    harness.publish(a_message())
    assert [d.consumer_tag for d in harness.deliveries()] == [second]


def test_single_active_consumer_that_leaves_is_followed_by_the_highest_priority(
    harness: EngineHarness,
) -> None:
    harness.queue(single_active_consumer=True)
    first = harness.consume(arguments={"x-priority": 9})
    low, high = (harness.consume(arguments={"x-priority": priority}) for priority in (1, 5))
    harness.engine.consuming.cancel(harness.channel, low, harness.now)
    harness.publish(a_message())
    assert [d.consumer_tag for d in harness.deliveries()] == [first]
    harness.consume(arguments={"x-priority": 2})
    harness.engine.consuming.cancel(harness.channel, first, harness.now)
    harness.publish(a_message())
    assert [d.consumer_tag for d in harness.deliveries()] == [high]


def test_get_takes_the_head_and_tells_how_many_are_left(harness: EngineHarness) -> None:
    filled(harness, 3)
    got = harness.engine.consuming.get(harness.channel, "q", harness.now)
    assert got is not None
    delivery, left = got
    assert (delivery.body, delivery.delivery_tag, delivery.consumer_tag, left) == (b"1", 1, "", 2)


def test_get_from_an_empty_queue_is_none(harness: EngineHarness) -> None:
    harness.queue()
    assert harness.get() is None


def test_ack_multiple_settles_all_up_to_the_tag(harness: EngineHarness) -> None:
    filled(harness, 4)
    harness.consume()
    harness.ack(3, multiple=True)
    assert (harness.stats().in_flight, harness.stats().ack_count) == (1, 3)
    harness.ack(0, multiple=True)
    assert harness.stats().in_flight == 0


@pytest.mark.parametrize("tag", [0, 2, 99])
def test_a_tag_never_issued_is_refused_and_settles_nothing(
    harness: EngineHarness, tag: int
) -> None:
    filled(harness, 1)
    harness.consume()
    for multiple in (False, bool(tag)):
        with pytest.raises(
            ReplyError, match=rf"^406 PRECONDITION_FAILED - unknown delivery tag {tag}$"
        ):
            harness.ack(tag, multiple=multiple)
    assert harness.stats().in_flight == 1


def test_settling_twice_is_refused(harness: EngineHarness) -> None:
    filled(harness, 1)
    harness.consume()
    harness.ack(1)
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        harness.nack(1)


def test_a_tag_of_another_channel_is_unknown(harness: EngineHarness) -> None:
    filled(harness, 1)
    harness.consume(channel=harness.another_channel())
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        harness.ack(1)


def test_a_requeued_message_goes_back_to_its_place_marked_redelivered(
    harness: EngineHarness,
) -> None:
    filled(harness, 4)
    for _ in range(3):
        harness.get()
    harness.nack(2)
    harness.nack(1)
    harness.nack(3)
    back = [harness.get() for _ in range(4)]
    assert [(d.body, d.redelivered, d.attempts) for d in back if d] == [
        (b"1", True, 2),
        (b"2", True, 2),
        (b"3", True, 2),
        (b"4", False, 1),
    ]


def test_reject_without_requeue_drops_where_there_is_no_dead_letter_exchange(
    harness: EngineHarness,
) -> None:
    filled(harness, 1)
    harness.get()
    harness.nack(1, requeue=False)
    assert (harness.stats().drop_count, harness.drain()) == (1, [])


def test_recover_requeues_everything_in_order(harness: EngineHarness) -> None:
    filled(harness, 3)
    for _ in range(3):
        harness.get()
    harness.engine.consuming.recover(harness.channel, harness.now)
    assert harness.drain() == numbered(3)


def test_a_closed_channel_gives_everything_back_in_order_at_once(harness: EngineHarness) -> None:
    filled(harness, 5)
    other = harness.another_channel()
    harness.consume(channel=other)
    harness.take()
    harness.engine.close_channel(other, harness.now)
    assert harness.stats().ready == 5
    delivery = harness.get()
    assert delivery is not None
    assert (delivery.body, delivery.redelivered) == (b"1", True)
    assert harness.drain() == numbered(5)[1:]


def test_a_closed_connection_gives_everything_to_the_consumers_that_are_left(
    harness: EngineHarness,
) -> None:
    harness.queue()
    other = harness.engine.open_connection("/")
    harness.consume(channel=harness.engine.open_channel(other))
    harness.publish(*(a_message(body=body) for body in numbered(3)))
    harness.take()
    mine = harness.consume()
    harness.engine.close_connection(other, harness.now)
    assert [(d.consumer_tag, d.body) for d in harness.deliveries()] == [
        (mine, body) for body in numbered(3)
    ]


def test_a_cancelled_consumer_gets_nothing_more_and_may_still_settle(
    harness: EngineHarness,
) -> None:
    harness.queue()
    tag = harness.consume()
    harness.publish(a_message())
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    harness.engine.consuming.cancel(harness.channel, "unknown", harness.now)
    harness.publish(a_message())
    assert len(harness.deliveries()) == 1
    harness.ack(1)
    assert (harness.stats().ready, harness.stats().in_flight) == (1, 0)


def test_a_delivery_comes_before_the_confirm_of_its_publish(harness: EngineHarness) -> None:
    harness.queue()
    harness.consume()
    harness.publish(a_message())
    assert [type(effect).__name__ for effect in harness.take()] == ["Deliver", "Confirm"]


def test_priorities_come_highest_first_and_in_order_within_one(harness: EngineHarness) -> None:
    harness.queue(max_priority=5)
    for body, priority in ((b"a", None), (b"b", 9), (b"c", 3), (b"d", 5), (b"e", 0)):
        harness.publish(a_message(body=body, priority=priority))
    head = harness.get()
    assert head is not None
    harness.nack(head.delivery_tag)
    assert harness.drain() == [b"b", b"d", b"c", b"a", b"e"]


def test_every_queue_counts_attempts_for_itself(harness: EngineHarness) -> None:
    """copies of one message, one id."""
    for name in ("a", "b"):
        harness.queue(name)
        harness.bind(name, "amq.fanout", "", {})
    harness.publish(a_message(exchange="amq.fanout", message_id="m"))
    harness.get("a")
    harness.nack(1)
    again, first = harness.get("a"), harness.get("b")
    assert again is not None
    assert first is not None
    assert (again.attempts, first.attempts) == (2, 1)
    assert again.properties.message_id == first.properties.message_id == "m"


def test_a_delivery_is_in_flight_before_it_is_sent(harness: EngineHarness) -> None:
    """so that a connection that breaks while sending loses nothing."""
    harness.queue()
    other = harness.another_channel()
    harness.consume(channel=other)
    harness.publish(a_message())
    assert harness.stats().in_flight == 1  # and its Deliver has not been taken yet
    harness.engine.close_channel(other, harness.now)
    assert harness.stats().ready == 1


def test_a_slow_consumer_does_not_hold_up_the_others(harness: EngineHarness) -> None:
    """prefetch is nsq's RDY, a window and no credit."""
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1)
    slow, quick = harness.consume(), harness.consume()
    served: dict[str, list[bytes]] = {slow: [], quick: []}
    for n in range(6):
        harness.publish(a_message(body=b"%d" % n))
        for delivery in harness.deliveries():
            served[delivery.consumer_tag].append(delivery.body)
            if delivery.consumer_tag == quick:
                harness.ack(delivery.delivery_tag)
    assert served == {slow: [b"0"], quick: [b"1", b"2", b"3", b"4", b"5"]}


def test_a_cancelled_consumer_gets_no_more_but_may_finish_what_it_has(
    harness: EngineHarness,
) -> None:
    """nsq's CLS."""
    harness.queue()
    tag = harness.consume()
    harness.publish(a_message(), a_message())
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    harness.publish(a_message())
    assert len(harness.deliveries()) == 2
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now)
    assert harness.engine.consuming.finish(harness.channel, 1, harness.now)
    assert harness.engine.consuming.requeue(harness.channel, 2, harness.now)


def test_generated_consumer_tags_are_told_apart_and_come_before_the_first_delivery(
    harness: EngineHarness,
) -> None:
    """consume answers first; what it delivers is an effect."""
    harness.queue()
    harness.publish(a_message())
    harness.take()
    first, second = harness.consume(), harness.consume()
    assert first.startswith("amq.ctag-")
    assert first != second
    (effect,) = harness.take()
    assert isinstance(effect, Deliver)
    assert effect.delivery.consumer_tag == first


def test_delivery_tags_rise_by_one_and_are_shared_by_get_and_deliver(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message(), a_message(), a_message())
    first = harness.get()
    harness.consume()
    second, third = harness.deliveries()
    assert first is not None
    assert [first.delivery_tag, second.delivery_tag, third.delivery_tag] == [1, 2, 3]


def test_tag_zero_with_multiple_is_everything_outstanding(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(), a_message())
    harness.get()
    harness.get()
    harness.ack(0, multiple=True)
    assert harness.stats().ack_count == 2
    with pytest.raises(ReplyError, match="unknown delivery tag 0"):
        harness.ack(0)


# --------------------------------------------------------------------- time in flight


def test_a_delivery_not_settled_in_time_goes_to_the_tail_and_its_consumer_hears(
    harness: EngineHarness,
) -> None:
    filled(harness, 2)
    harness.engine.consuming.qos(harness.channel, 1)
    tag = harness.consume()
    assert harness.bodies() == [b"1"]
    assert harness.engine.next_deadline() == harness.now + 60.0
    harness.advance(59.9)
    assert harness.take() == []
    harness.advance(0.1)
    notice, deliver = harness.take()
    assert (type(notice).__name__, notice) == (
        "MessageTimedOut",
        type(notice)(harness.channel, tag, 1),  # type: ignore[call-arg, arg-type]
    )
    assert isinstance(deliver, Deliver)
    assert deliver.delivery.body == b"2"
    harness.ack(2)
    (again,) = harness.deliveries()
    assert (again.body, again.redelivered, again.attempts) == (b"1", True, 2)
    assert (harness.stats().timeout_count, harness.stats().requeue_count) == (1, 0)


def test_a_late_settlement_of_a_timed_out_delivery_is_ignored_and_counted(
    harness: EngineHarness,
) -> None:
    filled(harness, 1)
    harness.get()
    harness.advance(60.0)
    harness.ack(1)
    assert harness.engine.late_settles == 1
    assert harness.stats().ready == 1
    with pytest.raises(ReplyError, match="unknown delivery tag 1"):
        harness.ack(1)


def test_a_late_ack_of_many_still_settles_those_in_flight(harness: EngineHarness) -> None:
    filled(harness, 3, message_timeout=1000)
    harness.get()
    harness.advance(0.5)
    harness.get()
    harness.engine.consuming.touch(harness.channel, 1, harness.now)
    harness.advance(0.7)  # neither
    harness.engine.consuming.touch(harness.channel, 1, harness.now)
    harness.advance(0.3)  # the second is due
    assert harness.stats().timeout_count == 1
    harness.ack(2, multiple=True)
    assert (harness.stats().in_flight, harness.stats().ack_count) == (0, 1)


@pytest.mark.parametrize(("milliseconds", "deadline"), [(250, 0.25), (0, None)])
def test_the_queue_says_how_long_a_delivery_may_take(
    harness: EngineHarness, milliseconds: int, deadline: float | None
) -> None:
    filled(harness, 1, message_timeout=milliseconds)
    harness.get()
    due = harness.engine.next_deadline()
    assert (None if due is None else due - harness.now) == deadline


def test_touch_extends_but_never_past_the_most_from_delivery() -> None:
    harness = EngineHarness(message_timeout=60.0, max_message_timeout=100.0)
    filled(harness, 1)
    harness.get()
    harness.advance(30.0)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(60.0)
    harness.advance(50.0)
    assert harness.engine.consuming.touch(harness.channel, 1, harness.now) == Done(20.0)
    harness.advance(20.0)
    assert harness.stats().timeout_count == 1


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_consumer_timeout_closes_the_channel_as_rabbitmq_3_does(kind: str) -> None:
    harness = EngineHarness(compatibility=(3, 10))
    filled(harness, 2, consumer_timeout=1000, queue_type=kind)
    harness.consume()
    harness.take()
    harness.advance(1.0)
    (closed,) = harness.take()
    assert isinstance(closed, CloseChannel)
    assert (closed.channel, closed.reply_code) == (harness.channel, 406)
    assert closed.reply_text == (
        f"PRECONDITION_FAILED - delivery acknowledgement on channel {harness.channel} timed out. "
        "Timeout value used: 1000 ms. This timeout value can be configured, see consumers doc "
        "guide to learn more"
    )
    assert (harness.stats().ready, harness.stats().in_flight, harness.stats().consumers) == (
        2,
        0,
        0,
    )


def test_a_delivery_that_is_only_given_back_does_not_close_the_channel_of_one_that_would() -> None:
    harness = EngineHarness(compatibility=(3, 10))
    harness.queue("closes", consumer_timeout=9000)
    harness.consume("closes")
    filled(harness, 1, message_timeout=1000)
    harness.consume()
    harness.take()
    harness.advance(1.0)
    assert CloseChannel not in map(type, harness.take())
    assert harness.stats().timeout_count == 1


def test_deliveries_that_need_no_ack_have_tags_and_no_prefetch(harness: EngineHarness) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume(no_ack=True)
    harness.publish(a_message(), a_message())
    assert [delivery.delivery_tag for delivery in harness.deliveries()] == [1, 2]
    assert [each.prefetch for each in harness.stats().consumer_stats] == [0]


def test_a_return_is_counted_from_the_first_on_in_a_message_without_headers(
    harness: EngineHarness,
) -> None:
    filled(harness, 1, queue_type="quorum")
    seen = []
    for tag in (1, 2, 3):
        delivery = harness.get()
        assert delivery is not None
        seen.append(delivery.properties.headers)
        harness.nack(tag)
    assert seen == [None, {"x-delivery-count": 1}, {"x-delivery-count": 2}]


def test_an_ack_brings_what_was_given_back_behind_the_one_it_settles(
    harness: EngineHarness,
) -> None:
    filled(harness, 2)
    for _ in range(2):
        harness.get()
    for tag in (1, 2):
        harness.nack(tag)
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume()
    assert harness.bodies() == [b"1"]
    harness.ack(3)
    assert harness.bodies() == [b"2"]


def test_a_late_ack_of_one_leaves_those_before_it_in_flight(harness: EngineHarness) -> None:
    for name, timeout in (("slow", 90_000), ("quick", 60_000)):
        harness.queue(name, message_timeout=timeout)
        harness.publish(a_message(name))
        harness.get(name)
    harness.advance(60.0)
    harness.ack(2)
    assert (harness.stats("slow").in_flight, harness.stats("quick").ready) == (1, 1)


def test_deliveries_of_one_step_end_with_the_one_that_makes_them_too_many_bytes(
    harness: EngineHarness,
) -> None:
    harness.queue()
    body = bytes(3 * 2**20)
    harness.publish(*(a_message(body=body) for _ in range(5)))
    harness.consume()
    assert len(harness.deliveries()) == 3
    assert harness.engine.is_unfinished
    harness.engine.proceed(harness.now)
    assert len(harness.deliveries()) == 2


def test_a_queue_that_is_gone_does_not_stop_others_from_having_theirs_back(
    harness: EngineHarness,
) -> None:
    for name in ("a", "b", "c"):
        harness.queue(name)
        harness.publish(a_message(name))
        harness.get(name)
    harness.engine.topology.delete_queue(harness.channel, "a")
    harness.advance(60.0)
    assert [(harness.stats(name).ready, harness.stats(name).timeout_count) for name in "bc"] == [
        (1, 1),
        (1, 1),
    ]


def test_several_consumers_of_quorum_queues_are_cancelled_at_once(harness: EngineHarness) -> None:
    tags = []
    for name in ("a", "b"):
        harness.queue(name, consumer_timeout=1000, queue_type="quorum")
        harness.publish(a_message(name), a_message(name))
        tags.append(harness.consume(name))
    harness.take()
    harness.advance(1.0)
    assert harness.take() == [CancelConsumer(harness.channel, tag) for tag in tags]
    assert [harness.stats(name).ready for name in "ab"] == [2, 2]
    assert [harness.stats(name).timeout_count for name in "ab"] == [2, 2]


@pytest.mark.parametrize("take", [EngineHarness.consume, EngineHarness.get])
def test_a_channel_with_a_limit_of_its_own_is_closed_where_others_get_their_delivery_back(
    harness: EngineHarness, take: Callable[[EngineHarness], object]
) -> None:
    filled(harness, 2)
    harness.channel = harness.engine.open_channel(
        harness.connection, number=7, consumer_timeout=100.0
    )
    take(harness)
    harness.take()
    harness.advance(99.0)
    assert not harness.take()
    harness.advance(1.0)
    (closed,) = harness.take()
    assert isinstance(closed, CloseChannel)
    assert "on channel 7 timed out. Timeout value used: 100000 ms" in closed.reply_text


def test_a_consumer_timeout_of_a_quorum_queue_cancels_the_consumer_as_rabbitmq_4_3_does(
    harness: EngineHarness,
) -> None:
    filled(harness, 2, consumer_timeout=1000, queue_type="quorum")
    harness.engine.consuming.qos(harness.channel, 1)
    tag = harness.consume()
    harness.take()
    harness.advance(1.0)
    assert harness.take() == [CancelConsumer(harness.channel, tag)]
    assert (harness.stats().ready, harness.stats().in_flight, harness.stats().consumers) == (
        2,
        0,
        0,
    )
    harness.ack(1)  # late: no error
    again = harness.get()
    assert again is not None
    assert (again.body, again.redelivered, again.attempts) == (b"1", True, 1)


def test_what_a_cancelled_consumer_still_has_comes_back_at_its_own_time(
    harness: EngineHarness,
) -> None:
    filled(harness, 1, consumer_timeout=1000, queue_type="quorum")
    harness.consume()
    harness.advance(0.6)
    harness.publish(a_message(body=b"2"), a_message(body=b"3"))
    harness.advance(0.4)
    assert (harness.stats().ready, harness.stats().in_flight) == (1, 2)
    harness.ack(2)
    harness.take()
    harness.advance(0.6)
    assert harness.take() == [], "cancelled once"
    assert harness.drain() == [b"1", b"3"]


def test_a_consumer_timeout_closes_the_channel_of_a_get(harness: EngineHarness) -> None:
    filled(harness, 1, consumer_timeout=1000, queue_type="quorum")
    harness.get()
    harness.advance(1.0)
    (closed,) = harness.take()
    assert isinstance(closed, CloseChannel)
    assert harness.stats().ready == 1


def test_auto_delete_queue_goes_with_a_consumer_that_is_cancelled_for_its_time(
    harness: EngineHarness,
) -> None:
    harness.queue(auto_delete=True, consumer_timeout=1000, queue_type="quorum")
    harness.publish(a_message())
    harness.consume()
    harness.advance(1.0)
    assert harness.engine.queue_count == 0


def test_deadlines_of_settled_deliveries_are_forgotten(harness: EngineHarness) -> None:
    filled(harness, 2)
    harness.get()
    harness.advance(10.0)
    harness.get()
    harness.ack(1)
    assert harness.engine.next_deadline() == harness.now + 60.0
    harness.ack(2)
    assert harness.engine.next_deadline() is None


# --------------------------------------------------------------------- deferred


def test_a_deferred_message_comes_back_at_its_time_to_the_tail(harness: EngineHarness) -> None:
    filled(harness, 2)
    harness.get()
    harness.nack(1, delay=5.0)
    assert (harness.stats().deferred, harness.stats().ready, harness.stats().in_flight) == (1, 1, 0)
    assert harness.engine.next_deadline() == harness.now + 5.0
    harness.advance(4.9)
    assert harness.stats().deferred == 1
    harness.advance(0.1)
    assert harness.drain() == [b"2", b"1"]


def test_a_deferred_message_frees_prefetch_and_is_redelivered(harness: EngineHarness) -> None:
    filled(harness, 2)
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume()
    harness.take()
    harness.nack(1, delay=1.0)
    assert harness.bodies() == [b"2"]
    harness.ack(2)
    harness.advance(1.0)
    (back,) = harness.deliveries()
    assert (back.body, back.redelivered, back.attempts) == (b"1", True, 2)


def test_a_delay_beyond_the_most_is_cut() -> None:
    harness = EngineHarness(max_requeue_timeout=10.0)
    filled(harness, 1)
    harness.get()
    harness.nack(1, delay=1e9)
    assert harness.engine.next_deadline() == harness.now + 10.0


def test_a_deferred_message_survives_its_connection(harness: EngineHarness) -> None:
    filled(harness, 1)
    harness.get()
    harness.nack(1, delay=1.0)
    harness.engine.close_connection(harness.connection, harness.now)
    harness.advance(1.0)
    assert harness.stats().ready == 1


# --------------------------------------------------------------------- long queues


def test_a_consumer_without_limit_at_a_long_queue_is_served_in_steps(
    harness: EngineHarness,
) -> None:
    """unlimited is unlimited, but others have their turn in between."""
    harness.queue()
    harness.queue("other")
    harness.publish(*(a_message(body=b"%d" % n) for n in range(250)))
    harness.take()
    harness.consume()
    assert len(harness.deliveries()) == 100
    assert harness.engine.is_unfinished
    harness.consume("other")
    harness.publish(a_message("other", b"in between"))
    assert harness.bodies() == [b"in between"]
    harness.ack(50, multiple=True)
    assert harness.deliveries() == []  # not by the back door either
    harness.engine.proceed(harness.now)
    assert len(harness.deliveries()) == 100
    harness.publish(a_message(body=b"last"))
    harness.engine.tick(harness.now)
    rest = harness.bodies()
    assert (rest[0], rest[-1], len(rest)) == (b"200", b"last", 51)
    assert not harness.engine.is_unfinished


def test_an_unfinished_queue_may_be_deleted_paused_or_left(harness: EngineHarness) -> None:
    for end in ("delete", "pause", "cancel", "purge"):
        harness.queue()
        harness.publish(*(a_message() for _ in range(1_500)))
        tag = harness.consume()
        harness.take()
        if end == "delete":
            harness.engine.topology.delete_queue(harness.channel, "q")
        elif end == "pause":
            harness.engine.admin.pause_queue("/", "q")
        elif end == "cancel":
            harness.engine.consuming.cancel(harness.channel, tag, harness.now)
        else:
            harness.engine.topology.purge_queue(harness.channel, "q")
        harness.take()
        harness.engine.proceed(harness.now)
        assert harness.deliveries() == []
        harness.engine.topology.delete_queue(harness.channel, "q")
        harness.take()


def test_recover_without_requeue_is_not_implemented(harness: EngineHarness) -> None:
    """540, as RabbitMQ."""
    with pytest.raises(ReplyError) as refused:
        harness.engine.consuming.recover(harness.channel, harness.now, requeue=False)
    assert (refused.value.reply_code, refused.value.scope) == (540, "connection")
    assert refused.value.reply_text == "NOT_IMPLEMENTED - requeue=false"


def test_settling_many_at_once_costs_as_many_as_there_are(harness: EngineHarness) -> None:
    """However many were settled before them: a walk over the keys of a dict would not."""
    filled(harness, 6)
    for _ in range(6):
        harness.get()
    harness.ack(2, multiple=True)
    harness.ack(4)
    harness.ack(5, multiple=True)
    assert (harness.stats().ack_count, harness.stats().in_flight) == (5, 1)
    harness.ack(0, multiple=True)
    assert harness.stats().in_flight == 0


def test_acks_of_a_run_settle_each_and_then_deliver_what_they_made_room_for(
    harness: EngineHarness,
) -> None:
    filled(harness, 6)
    harness.engine.consuming.qos(harness.channel, 3)
    harness.consume()
    assert harness.bodies() == [b"1", b"2", b"3"]
    harness.engine.consuming.ack_each(harness.channel, [3, 1], harness.now)
    assert harness.bodies() == [b"4", b"5"]
    assert (harness.stats().in_flight, harness.stats().ack_count) == (3, 2)


@pytest.mark.parametrize("wrong", [1, 0, 99])
def test_acks_of_a_run_when_one_is_refused_then_those_before_it_are_settled(
    harness: EngineHarness, wrong: int
) -> None:
    filled(harness, 3)
    harness.consume()
    with pytest.raises(ReplyError, match=f"unknown delivery tag {wrong}$"):
        harness.engine.consuming.ack_each(harness.channel, [1, 2, wrong, 3], harness.now)
    assert (harness.stats().in_flight, harness.stats().ack_count) == (1, 2)
