"""basic.qos with global: one limit for all consumers of a channel."""

from __future__ import annotations

from tests.support.builders import Desk, a_message


def two_queues(desk: Desk, each: int) -> None:
    for name in ("a", "b"):
        desk.queue(name)
        desk.publish(*(a_message(name, b"%s%d" % (name.encode(), n)) for n in range(each)))
    desk.take()


def test_the_limit_is_shared_by_consumers_of_several_queues(desk: Desk) -> None:
    two_queues(desk, 5)
    desk.engine.qos(desk.channel, 3, desk.now, shared=True)
    desk.consume("a")
    desk.consume("b")
    assert desk.bodies() == [b"a0", b"a1", b"a2"]
    desk.ack(3, multiple=True)
    assert sorted(desk.bodies()) == [b"a3", b"a4", b"b0"]


def test_it_holds_at_once_and_may_be_raised_lowered_and_lifted(desk: Desk) -> None:
    two_queues(desk, 5)
    desk.engine.qos(desk.channel, 1, desk.now, shared=True)
    desk.consume("a")
    assert len(desk.deliveries()) == 1
    desk.engine.qos(desk.channel, 3, desk.now, shared=True)
    assert len(desk.deliveries()) == 2
    desk.engine.qos(desk.channel, 2, desk.now, shared=True)
    desk.ack(1)
    assert desk.deliveries() == []
    desk.ack(2)
    assert len(desk.deliveries()) == 1
    desk.engine.qos(desk.channel, 0, desk.now, shared=True)
    assert len(desk.deliveries()) == 1


def test_each_consumers_own_limit_holds_beside_it(desk: Desk) -> None:
    two_queues(desk, 5)
    desk.engine.qos(desk.channel, 2)
    desk.engine.qos(desk.channel, 3, desk.now, shared=True)
    desk.consume("a")
    desk.consume("b")
    assert desk.bodies() == [b"a0", b"a1", b"b0"]


def test_get_and_no_ack_are_not_counted(desk: Desk) -> None:
    two_queues(desk, 5)
    desk.engine.qos(desk.channel, 1, desk.now, shared=True)
    desk.get("a")
    desk.consume("b", no_ack=True)
    assert len(desk.deliveries()) == 5
    desk.consume("a")
    assert len(desk.deliveries()) == 1


def test_timeouts_and_requeues_open_the_window_again(desk: Desk) -> None:
    two_queues(desk, 1)
    desk.engine.qos(desk.channel, 1, desk.now, shared=True)
    desk.consume("a")
    desk.consume("b")
    assert desk.bodies() == [b"a0"]
    desk.nack(1, delay=600.0)
    assert desk.bodies() == [b"b0"]
    desk.advance(60.0)
    assert desk.bodies() == [b"b0"]
    desk.ack(3)
    desk.advance(540.0)
    assert desk.bodies() == [b"a0"]


def test_deliveries_of_a_cancelled_consumer_still_count(desk: Desk) -> None:
    two_queues(desk, 3)
    desk.engine.qos(desk.channel, 1, desk.now, shared=True)
    tag = desk.consume("a")
    desk.take()
    desk.engine.cancel(desk.channel, tag, desk.now)
    desk.consume("b")
    assert desk.deliveries() == []
    desk.ack(1)
    assert desk.bodies() == [b"b0"]
