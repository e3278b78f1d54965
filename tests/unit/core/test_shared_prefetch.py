"""basic.qos with global: one limit for all consumers of a channel."""

from __future__ import annotations

from tests.support.builders import EngineHarness, a_message


def two_queues(harness: EngineHarness, each: int) -> None:
    for name in ("a", "b"):
        harness.queue(name)
        harness.publish(*(a_message(name, b"%s%d" % (name.encode(), n)) for n in range(each)))
    harness.take()


def test_the_limit_is_shared_by_consumers_of_several_queues(harness: EngineHarness) -> None:
    two_queues(harness, 5)
    harness.engine.consuming.qos(harness.channel, 3, harness.now, shared=True)
    harness.consume("a")
    harness.consume("b")
    assert harness.bodies() == [b"a0", b"a1", b"a2"]
    harness.ack(3, multiple=True)
    assert sorted(harness.bodies()) == [b"a3", b"a4", b"b0"]


def test_it_holds_at_once_and_may_be_raised_lowered_and_lifted(harness: EngineHarness) -> None:
    two_queues(harness, 5)
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    harness.consume("a")
    assert len(harness.deliveries()) == 1
    harness.engine.consuming.qos(harness.channel, 3, harness.now, shared=True)
    assert len(harness.deliveries()) == 2
    harness.engine.consuming.qos(harness.channel, 2, harness.now, shared=True)
    harness.ack(1)
    assert harness.deliveries() == []
    harness.ack(2)
    assert len(harness.deliveries()) == 1
    harness.engine.consuming.qos(harness.channel, 0, harness.now, shared=True)
    assert len(harness.deliveries()) == 1


def test_a_limit_below_what_is_in_flight_stops_what_comes_next(harness: EngineHarness) -> None:
    two_queues(harness, 2)
    harness.consume("a")
    assert harness.bodies() == [b"a0", b"a1"]
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    harness.publish(a_message("a", b"a2"))
    assert harness.deliveries() == []
    harness.ack(2, multiple=True)
    assert harness.bodies() == [b"a2"]


def test_each_consumers_own_limit_holds_beside_it(harness: EngineHarness) -> None:
    two_queues(harness, 5)
    harness.engine.consuming.qos(harness.channel, 2)
    harness.engine.consuming.qos(harness.channel, 3, harness.now, shared=True)
    harness.consume("a")
    harness.consume("b")
    assert harness.bodies() == [b"a0", b"a1", b"b0"]


def test_get_and_no_ack_are_not_counted(harness: EngineHarness) -> None:
    two_queues(harness, 5)
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    harness.get("a")
    harness.consume("b", no_ack=True)
    assert len(harness.deliveries()) == 5
    harness.consume("a")
    assert len(harness.deliveries()) == 1


def test_timeouts_and_requeues_open_the_window_again(harness: EngineHarness) -> None:
    two_queues(harness, 1)
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    harness.consume("a")
    harness.consume("b")
    assert harness.bodies() == [b"a0"]
    harness.nack(1, delay=600.0)
    assert harness.bodies() == [b"b0"]
    harness.advance(60.0)
    assert harness.bodies() == [b"b0"]
    harness.ack(3)
    harness.advance(540.0)
    assert harness.bodies() == [b"a0"]


def test_deliveries_of_a_cancelled_consumer_still_count(harness: EngineHarness) -> None:
    two_queues(harness, 3)
    harness.engine.consuming.qos(harness.channel, 1, harness.now, shared=True)
    tag = harness.consume("a")
    harness.take()
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    harness.consume("b")
    assert harness.deliveries() == []
    harness.ack(1)
    assert harness.bodies() == [b"b0"]
