"""Publishes that wait for their time, and what one can do about those that wait ."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Confirm
from broker_client.errors import ReplyError
from broker_client.message import Outgoing
from broker_client.publishing.delay import MAX_DELAY
from tests.support.builders import Desk, a_message


def delayed(milliseconds: Any, body: bytes = b"hello", **options: Any) -> Outgoing:
    headers = {"x-delay": milliseconds, **options.pop("headers", {})}
    return a_message(body=body, headers=headers, **options)


def test_a_delayed_publish_comes_at_its_time_as_a_first_delivery(desk: Desk) -> None:
    """G5: attempts 1, no requeue; the header is negated as the plugin's."""
    desk.queue()
    desk.consume()
    desk.publish(delayed(200, headers={"mine": 1}))
    assert desk.engine.next_deadline() == desk.now + 0.2
    desk.advance(0.19)
    assert desk.deliveries() == []
    desk.advance(0.01)
    (delivery,) = desk.deliveries()
    assert (delivery.attempts, delivery.redelivered) == (1, False)
    assert delivery.properties.headers == {"x-delay": -200, "mine": 1}
    assert desk.stats().requeue_count == 0


def test_a_delayed_publish_is_confirmed_at_once(desk: Desk) -> None:
    desk.queue()
    desk.publish(delayed(200))
    assert desk.take() == [Confirm(desk.channel, 1, 1, True)]


def test_each_queue_that_it_is_routed_to_holds_it_and_counts_it(desk: Desk) -> None:
    """it waits behind the exchange, where it is counted and can be seen."""
    for name in ("a", "b"):
        desk.queue(name)
        desk.engine.bind_queue(desk.channel, name, "amq.fanout", "", {})
    desk.publish(delayed(200, exchange="amq.fanout"))
    for name in ("a", "b"):
        stats = desk.stats(name)
        assert (stats.message_count, stats.deferred, stats.ready) == (1, 1, 0)


def test_an_unroutable_delayed_publish_comes_back_at_once(desk: Desk) -> None:
    """Which a message that waits before its exchange could not."""
    desk.publish(delayed(200, routing_key="nobody", mandatory=True))
    assert len(desk.returns()) == 1


def test_delays_of_any_length_do_not_wait_for_each_other(desk: Desk) -> None:
    """D10: a short one behind a long one."""
    desk.queue()
    desk.publish(delayed(5_000, b"long"), delayed(200, b"short"))
    desk.advance(0.2)
    assert desk.drain() == [b"short"]
    desk.advance(4.8)
    assert desk.drain() == [b"long"]


@pytest.mark.parametrize("value", [2_160_000_001, 2**32, 2**70, "200", 1.5, True, None, [200]])
def test_a_delay_out_of_range_is_refused_and_never_taken_for_none(desk: Desk, value: Any) -> None:
    """D10: an error for a publish, where a requeue is cut."""
    desk.queue()
    with pytest.raises(ReplyError, match="x-delay") as refused:
        desk.publish(delayed(value))
    assert refused.value.reply_code == 406
    assert desk.stats().message_count == 0


@pytest.mark.parametrize("value", [0, -200])
def test_a_delay_that_is_over_delays_no_more(desk: Desk, value: int) -> None:
    """A handler that publishes what it got with its headers does not delay it again."""
    desk.queue()
    desk.publish(delayed(value))
    assert desk.stats().ready == 1


def test_every_delay_that_the_client_asks_for_is_taken(desk: Desk) -> None:
    desk.queue()
    desk.publish(delayed(int(MAX_DELAY * 1000)))
    assert desk.stats().deferred == 1


def test_the_longest_delay_is_a_setting() -> None:
    desk = Desk(max_publish_delay=60.0)
    desk.queue()
    desk.publish(delayed(60_000))
    with pytest.raises(ReplyError):
        desk.publish(delayed(60_001))


def test_the_ttl_of_a_delayed_message_begins_when_it_is_ready(desk: Desk) -> None:
    """counted from arrival, and it arrives when its time has come."""
    desk.queue(message_ttl=100)
    desk.publish(delayed(1_000))
    desk.advance(1.0)
    assert desk.stats().ready == 1
    desk.advance(0.1)
    assert (desk.stats().ready, desk.stats().drop_count) == (0, 1)


def test_a_delayed_message_keeps_its_priority(desk: Desk) -> None:
    desk.queue(max_priority=5)
    desk.publish(delayed(10, b"low", priority=1), delayed(10, b"high", priority=4))
    desk.advance(0.01)
    assert desk.drain() == [b"high", b"low"]


def test_what_becomes_ready_makes_the_oldest_give_way(desk: Desk) -> None:
    desk.queue(max_length=1, overflow="reject-publish")
    desk.publish(delayed(10, b"late"), a_message(body=b"early"))
    desk.advance(0.01)
    assert desk.stats().ready == 2  # accepted is accepted: reject-publish is for publishes
    desk.queue("drops", max_length=1)
    desk.publish(delayed(10, b"late", routing_key="drops"), a_message("drops", b"early"))
    desk.advance(0.01)
    assert desk.drain("drops") == [b"late"]


def test_deferred_messages_are_no_bodys_and_outlive_connections(desk: Desk) -> None:
    desk.queue()
    desk.publish(delayed(200))
    desk.engine.close_connection(desk.connection, desk.now)
    assert desk.engine.deferred("/", "q")[0].due_at == desk.now + 0.2


# --------------------------------------------------------------------- seen and acted on


def test_what_is_deferred_is_listed_next_first(desk: Desk) -> None:
    desk.queue()
    desk.publish(delayed(500, b"bb", message_id="later"), a_message(message_id="again"))
    desk.take()
    desk.get()
    desk.nack(1, delay=0.2)
    sooner, later = desk.engine.deferred("/", "q")
    assert (sooner.message_id, sooner.attempts, sooner.due_at) == ("again", 1, desk.now + 0.2)
    assert (later.message_id, later.attempts, later.due_at) == ("later", 0, desk.now + 0.5)
    assert (later.size_bytes, later.exchange, later.routing_key) == (2, "", "q")
    assert desk.engine.deferred("/", "q", most=1) == (sooner,)


def test_one_deferred_message_can_be_cancelled(desk: Desk) -> None:
    """nsq has no way to."""
    desk.queue(dead_letter_exchange="amq.fanout")
    desk.queue("dead")
    desk.engine.bind_queue(desk.channel, "dead", "amq.fanout", "", {})
    desk.publish(delayed(100, b"1"), delayed(200, b"2"))
    first = desk.engine.deferred("/", "q")[0]
    assert desk.engine.cancel_deferred("/", "q", [first.id, 999]) == 1
    assert desk.engine.cancel_deferred("/", "q", [first.id]) == 0
    desk.advance(1.0)
    assert desk.drain() == [b"2"]
    assert (desk.stats().purge_count, desk.stats("dead").message_count) == (1, 0)
    assert desk.engine.cancel_deferred("/", "q") == 0


def test_deferred_messages_can_be_run_now(desk: Desk) -> None:
    desk.queue()
    desk.publish(delayed(100, b"1"), delayed(200, b"2"), delayed(300, b"3"))
    desk.consume()
    second = desk.engine.deferred("/", "q")[1]
    assert desk.engine.run_deferred("/", "q", desk.now, [second.id]) == 1
    assert desk.bodies() == [b"2"]
    assert desk.engine.run_deferred("/", "q", desk.now) == 2
    assert desk.bodies() == [b"1", b"3"]
    desk.advance(1.0)
    assert desk.bodies() == []
    assert desk.engine.next_deadline() == desk.now + 59.0  # of the deliveries alone


# --------------------------------------------------------------------- the plugin's exchange type


def test_an_exchange_of_the_delaying_type_routes_as_it_is_told(desk: Desk) -> None:
    """what is written for RabbitMQ's plugin runs here."""
    for kind in ("topic", "headers"):
        arguments = {"x-delayed-type": kind}
        desk.engine.declare_exchange(desk.channel, kind, "x-delayed-message", arguments=arguments)
    desk.queue()
    desk.engine.bind_queue(desk.channel, "q", "topic", "a.*", {})
    desk.engine.bind_queue(desk.channel, "q", "headers", "", {"x-match": "all", "k": 1})
    desk.publish(
        delayed(200, b"1", exchange="topic", routing_key="a.b"),
        delayed(300, b"2", exchange="headers", routing_key="", headers={"k": 1}),
        a_message("a.b", b"0", exchange="topic"),
        delayed(100, exchange="topic", routing_key="b"),
    )
    assert (desk.stats().ready, desk.stats().deferred) == (1, 2)
    desk.advance(0.3)
    assert desk.drain() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}])
def test_the_delaying_type_needs_another_type(desk: Desk, arguments: dict[str, Any]) -> None:
    with pytest.raises(ReplyError, match="x-delayed-type"):
        desk.engine.declare_exchange(desk.channel, "x", "x-delayed-message", arguments=arguments)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        desk.engine.check_exchange(desk.channel, "x")


def test_the_delayed_type_is_part_of_the_declaration(desk: Desk) -> None:
    def declare(kind: str) -> None:
        arguments = {"x-delayed-type": kind}
        desk.engine.declare_exchange(desk.channel, "x", "x-delayed-message", arguments=arguments)

    declare("topic")
    declare("topic")
    with pytest.raises(ReplyError, match="inequivalent arg 'x-delayed-type'"):
        declare("direct")
