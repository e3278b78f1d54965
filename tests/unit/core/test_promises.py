"""Promises of nsq and of AMQP that cut across: each is a row of the parity tables."""

from __future__ import annotations

import pytest

from broker_client.core.effects import Confirm, Deliver, Return
from broker_client.core.engine import Engine
from broker_client.core.records import Append
from broker_client.core.settings import EngineSettings
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT, TRANSIENT
from tests.support.builders import Desk, a_message


def test_every_queue_counts_attempts_for_itself(desk: Desk) -> None:
    """copies of one message, one id."""
    for name in ("a", "b"):
        desk.queue(name)
        desk.engine.bind_queue(desk.channel, name, "amq.fanout", "", {})
    desk.publish(a_message(exchange="amq.fanout", message_id="m"))
    desk.get("a")
    desk.nack(1)
    again, first = desk.get("a"), desk.get("b")
    assert again is not None
    assert first is not None
    assert (again.attempts, first.attempts) == (2, 1)
    assert again.properties.message_id == first.properties.message_id == "m"


def test_a_delivery_is_in_flight_before_it_is_sent(desk: Desk) -> None:
    """so that a connection that breaks while sending loses nothing."""
    desk.queue()
    other = desk.another_channel()
    desk.consume(channel=other)
    desk.publish(a_message())
    assert desk.stats().in_flight == 1  # and its Deliver has not been taken yet
    desk.engine.close_channel(other, desk.now)
    assert desk.stats().ready == 1


def test_a_slow_consumer_does_not_hold_up_the_others(desk: Desk) -> None:
    """prefetch is nsq's RDY, a window and no credit."""
    desk.queue()
    desk.engine.qos(desk.channel, 1)
    slow, quick = desk.consume(), desk.consume()
    served: dict[str, list[bytes]] = {slow: [], quick: []}
    for n in range(6):
        desk.publish(a_message(body=b"%d" % n))
        for delivery in desk.deliveries():
            served[delivery.consumer_tag].append(delivery.body)
            if delivery.consumer_tag == quick:
                desk.ack(delivery.delivery_tag)
    assert served == {slow: [b"0"], quick: [b"1", b"2", b"3", b"4", b"5"]}


def test_a_cancelled_consumer_gets_no_more_but_may_finish_what_it_has(desk: Desk) -> None:
    """nsq's CLS."""
    desk.queue()
    tag = desk.consume()
    desk.publish(a_message(), a_message())
    desk.engine.cancel(desk.channel, tag, desk.now)
    desk.publish(a_message())
    assert len(desk.deliveries()) == 2
    assert desk.engine.extend(desk.channel, 1, desk.now)
    assert desk.engine.finish(desk.channel, 1, desk.now)
    assert desk.engine.requeue(desk.channel, 2, desk.now)


def test_depth_is_what_is_ready_and_never_refuses(desk: Desk) -> None:
    """without a length limit a publisher is never turned away."""
    desk.queue()
    desk.publish(*(a_message() for _ in range(5)))
    desk.get()
    desk.get()
    desk.nack(2, delay=9.0)
    assert (desk.stats().ready, desk.stats().in_flight, desk.stats().deferred) == (3, 1, 1)
    assert desk.confirms() == [(1, 5, True)]


def test_an_empty_body_is_a_message(desk: Desk) -> None:
    """nsq refuses it, AMQP does not."""
    desk.queue()
    desk.publish(a_message(body=b""))
    assert desk.drain() == [b""]


def test_a_transient_queue_of_ones_own_goes_with_its_last_consumer(desk: Desk) -> None:
    """nsq's #ephemeral."""
    desk.queue(durable=False, auto_delete=True)
    tag = desk.consume()
    desk.engine.cancel(desk.channel, tag, desk.now)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        desk.engine.check_queue(desk.channel, "q", desk.now)


def test_generated_consumer_tags_are_told_apart_and_come_before_the_first_delivery(
    desk: Desk,
) -> None:
    """consume answers first; what it delivers is an effect."""
    desk.queue()
    desk.publish(a_message())
    desk.take()
    first, second = desk.consume(), desk.consume()
    assert first.startswith("amq.ctag-")
    assert first != second
    (effect,) = desk.take()
    assert isinstance(effect, Deliver)
    assert effect.delivery.consumer_tag == first


def test_delivery_tags_rise_by_one_and_are_shared_by_get_and_deliver(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message(), a_message())
    first = desk.get()
    desk.consume()
    second, third = desk.deliveries()
    assert first is not None
    assert [first.delivery_tag, second.delivery_tag, third.delivery_tag] == [1, 2, 3]


def test_tag_zero_with_multiple_is_everything_outstanding(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message())
    desk.get()
    desk.get()
    desk.ack(0, multiple=True)
    assert desk.stats().ack_count == 2
    with pytest.raises(ReplyError, match="unknown delivery tag 0"):
        desk.ack(0)


def test_an_exclusive_queue_outlives_a_channel_of_its_connection(desk: Desk) -> None:
    """it goes with the connection, not before."""
    other = desk.another_channel()
    desk.queue("mine", channel=other, exclusive=True)
    desk.engine.close_channel(other, desk.now)
    assert desk.engine.check_queue(desk.channel, "mine", desk.now).name == "mine"


def test_a_queue_may_be_its_own_dead_letter_queue(desk: Desk) -> None:
    """a rejection steers, so it goes round; the publisher hears nothing."""
    desk.queue(dead_letter_exchange="")
    desk.publish(a_message())
    assert desk.confirms() == [(1, 1, True)]
    desk.get()
    desk.nack(1, requeue=False)
    again = desk.get()
    assert again is not None
    assert again.redelivered is False
    headers = again.properties.headers
    assert headers is not None
    assert headers["x-death"][0]["count"] == 1
    assert desk.confirms() == []


def test_expired_messages_die_in_the_order_in_which_they_stood(desk: Desk) -> None:
    desk.queue(message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    desk.queue("dead")
    desk.publish(*(a_message(body=b"%d" % n) for n in range(5)))
    desk.advance(0.1)
    assert desk.drain("dead") == [b"%d" % n for n in range(5)]


def test_x_death_that_a_publisher_sends_is_counted_on(desk: Desk) -> None:
    """as RabbitMQ 3.10 does; so a retry loop by republishing keeps its history."""
    desk.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    desk.queue("dead")
    sent = [{"queue": "q", "reason": "rejected", "count": 4}]
    desk.publish(a_message(headers={"x-death": sent}))
    desk.get()
    desk.nack(1, requeue=False)
    letter = desk.get("dead")
    assert letter is not None
    assert letter.properties.headers is not None
    (death,) = letter.properties.headers["x-death"]
    assert death["count"] == 5


def test_confirms_of_kept_messages_become_one_behind_the_last_record_and_overtake_nothing() -> None:
    engine = Engine(EngineSettings(keep_records=True))
    connection = engine.open_connection("/")
    one, two = (engine.open_channel(connection, confirm=True) for _ in "12")
    engine.declare_queue(one, "q", 0.0)
    engine.take_effects()
    kept, passing = (a_message(delivery_mode=mode) for mode in (PERSISTENT, TRANSIENT))
    for channel, message in ((one, kept), (one, kept), (one, passing), (two, kept), (one, kept)):
        engine.publish(channel, message, 0.0)
    lost = a_message("nowhere", mandatory=True)
    engine.publish(one, lost, 0.0)
    told = [
        (effect.channel, effect.first, effect.last) if isinstance(effect, Confirm) else type(effect)
        for effect in engine.take_effects()
    ]
    assert told == [
        *(Append, Append, (one, 1, 3), Append, (two, 1, 1), Append, (one, 4, 4)),
        *(Return, (one, 5, 5)),
    ]
