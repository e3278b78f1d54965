"""Promises of nsq and of AMQP that cut across: each is a row of the parity tables."""

from __future__ import annotations

import pytest

from broker_client.core.effects import Confirm, Deliver, Return
from broker_client.core.engine import Engine
from broker_client.core.records import Append
from broker_client.core.settings import EngineSettings
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT, TRANSIENT
from tests.support.builders import EngineHarness, a_message


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


def test_depth_is_what_is_ready_and_never_refuses(harness: EngineHarness) -> None:
    """without a length limit a publisher is never turned away."""
    harness.queue()
    harness.publish(*(a_message() for _ in range(5)))
    harness.get()
    harness.get()
    harness.nack(2, delay=9.0)
    assert (harness.stats().ready, harness.stats().in_flight, harness.stats().deferred) == (3, 1, 1)
    assert harness.confirms() == [(1, 5, True)]


def test_an_empty_body_is_a_message(harness: EngineHarness) -> None:
    """nsq refuses it, AMQP does not."""
    harness.queue()
    harness.publish(a_message(body=b""))
    assert harness.drain() == [b""]


def test_a_transient_queue_of_ones_own_goes_with_its_last_consumer(harness: EngineHarness) -> None:
    """nsq's #ephemeral."""
    harness.queue(durable=False, auto_delete=True)
    tag = harness.consume()
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        harness.engine.topology.check_queue(harness.channel, "q", harness.now)


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


def test_an_exclusive_queue_outlives_a_channel_of_its_connection(harness: EngineHarness) -> None:
    """it goes with the connection, not before."""
    other = harness.another_channel()
    harness.queue("mine", channel=other, exclusive=True)
    harness.engine.close_channel(other, harness.now)
    assert harness.engine.topology.check_queue(harness.channel, "mine", harness.now).name == "mine"


def test_a_queue_may_be_its_own_dead_letter_queue(harness: EngineHarness) -> None:
    """a rejection steers, so it goes round; the publisher hears nothing."""
    harness.queue(dead_letter_exchange="")
    harness.publish(a_message())
    assert harness.confirms() == [(1, 1, True)]
    harness.get()
    harness.nack(1, requeue=False)
    again = harness.get()
    assert again is not None
    assert again.redelivered is False
    headers = again.properties.headers
    assert headers is not None
    assert headers["x-death"][0]["count"] == 1
    assert harness.confirms() == []


def test_expired_messages_die_in_the_order_in_which_they_stood(harness: EngineHarness) -> None:
    harness.queue(message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    harness.queue("dead")
    harness.publish(*(a_message(body=b"%d" % n) for n in range(5)))
    harness.advance(0.1)
    assert harness.drain("dead") == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(("version", "count"), [((3, 10), 5), ((4, 3), 1)])
def test_x_death_that_a_publisher_sends_is_counted_on_by_version_3_alone(
    version: tuple[int, int], count: int
) -> None:
    harness = EngineHarness(compatibility=version)
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    harness.queue("dead")
    sent = [{"queue": "q", "reason": "rejected", "count": 4}]
    forged = {"x-deaths-by-broker": 1}
    harness.publish(a_message(headers={"x-death": sent, **forged}))
    harness.get()
    harness.nack(1, requeue=False)
    letter = harness.get("dead")
    assert letter is not None
    assert letter.properties.headers is not None
    (death,) = letter.properties.headers["x-death"]
    assert death["count"] == count
    assert "x-deaths-by-broker" not in letter.properties.headers


def test_confirms_of_a_channel_become_one_behind_its_records_and_returns() -> None:
    engine = Engine(EngineSettings(keep_records=True))
    connection = engine.open_connection("/")
    one, two = (engine.open_channel(connection, confirm=True) for _ in "12")
    engine.topology.declare_queue(one, "q", 0.0)
    engine.take_effects()
    kept, passing = (a_message(delivery_mode=mode) for mode in (PERSISTENT, TRANSIENT))
    for channel, message in ((one, kept), (one, kept), (one, passing), (two, kept), (one, kept)):
        engine.publishing.publish(channel, message, 0.0)
    lost = a_message("nowhere", mandatory=True)
    engine.publishing.publish(one, lost, 0.0)
    told = [
        (effect.channel, effect.first, effect.last) if isinstance(effect, Confirm) else type(effect)
        for effect in engine.take_effects()
    ]
    assert told == [
        *(Append, Append, Append, Append, Return),
        *((one, 1, 5), (two, 1, 1)),
    ]


def test_confirms_end_a_run_where_acks_and_nacks_change() -> None:
    harness = EngineHarness()
    harness.queue(max_length=1, overflow="reject-publish")
    harness.queue("any")
    for routing_key in ("any", "q", "q", "q", "any"):
        harness.publish(a_message(routing_key))
    assert harness.confirms() == [(1, 2, True), (3, 4, False), (5, 5, True)]
    harness.publish(a_message())
    assert harness.confirms() == [(6, 6, False)]
