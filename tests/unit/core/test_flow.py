"""channel.flow: a channel that does not flow gets no deliveries, and costs no message."""

from __future__ import annotations

from tests.support.builders import EngineHarness, a_message


def test_a_channel_that_does_not_flow_gets_nothing_until_it_flows_again(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.consume()
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert harness.bodies() == []
    assert harness.stats().ready == 2
    harness.engine.consuming.flow(harness.channel, True, harness.now)
    assert harness.bodies() == [b"1", b"2"]
    harness.engine.check_conservation()


def test_a_consumer_without_acks_is_held_up_too(harness: EngineHarness) -> None:
    harness.queue()
    harness.consume(no_ack=True)
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.publish(a_message())
    assert harness.bodies() == []
    assert harness.stats().ready == 1


def test_a_consumer_that_starts_while_its_channel_does_not_flow_waits(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message())
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.consume()
    assert harness.bodies() == []
    harness.engine.consuming.flow(harness.channel, True, harness.now)
    assert harness.bodies() == [b"hello"]


def test_another_channel_takes_what_the_stopped_one_does_not(harness: EngineHarness) -> None:
    harness.queue()
    stopped, other = harness.another_channel(), harness.another_channel()
    for channel in (stopped, other):
        harness.consume(channel=channel)
    harness.engine.consuming.flow(stopped, False, harness.now)
    harness.publish(*(a_message(body=bytes([65 + i])) for i in range(4)))
    deliveries = harness.take()
    assert {getattr(effect, "channel", other) for effect in deliveries} == {other, harness.channel}
    assert harness.stats().in_flight == 4


def test_what_is_in_flight_may_be_settled_and_prefetch_holds_afterwards(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1)
    harness.consume()
    harness.publish(*(a_message(body=bytes([65 + i])) for i in range(3)))
    assert harness.bodies() == [b"A"]
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.ack(1)
    assert harness.bodies() == []
    harness.engine.consuming.flow(harness.channel, True, harness.now)
    assert harness.bodies() == [b"B"]
    harness.engine.consuming.flow(harness.channel, True, harness.now)
    assert harness.bodies() == []


def test_get_goes_on_where_consumers_are_stopped(harness: EngineHarness) -> None:
    harness.queue()
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.publish(a_message())
    got = harness.get()
    assert got is not None
    assert got.body == b"hello"


def test_a_shared_prefetch_that_opens_delivers_nothing_to_a_stopped_channel(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    harness.consume()
    harness.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert harness.bodies() == [b"1"]
    harness.engine.consuming.flow(harness.channel, False, harness.now)
    harness.ack(1)
    assert harness.bodies() == []
    harness.engine.consuming.flow(harness.channel, True, harness.now)
    assert harness.bodies() == [b"2"]
