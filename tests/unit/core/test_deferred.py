"""Publishes that wait for their time, and what one can do about those that wait ."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Confirm
from broker_client.core.records import Append, Moved
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT, Outgoing
from broker_client.publishing.delay import MAX_DELAY
from tests.support.builders import EngineHarness, a_message


def delayed(milliseconds: Any, body: bytes = b"hello", **options: Any) -> Outgoing:
    headers = {"x-delay": milliseconds, **options.pop("headers", {})}
    return a_message(body=body, headers=headers, **options)


def test_a_delayed_publish_comes_at_its_time_as_a_first_delivery(harness: EngineHarness) -> None:
    """Attempts 1, no requeue; the header is negated as the plugin's."""
    harness.queue()
    harness.consume()
    harness.publish(delayed(200, headers={"mine": 1}))
    assert harness.engine.next_deadline() == harness.now + 0.2
    harness.advance(0.19)
    assert harness.deliveries() == []
    harness.advance(0.01)
    (delivery,) = harness.deliveries()
    assert (delivery.attempts, delivery.redelivered) == (1, False)
    assert delivery.properties.headers == {"x-delay": -200, "mine": 1}
    assert harness.stats().requeue_count == 0


def test_a_delayed_publish_is_confirmed_at_once(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed(200))
    assert harness.take() == [Confirm(harness.channel, 1, 1, True)]


def test_a_persistent_one_is_kept_with_its_time() -> None:
    harness = EngineHarness(keep_records=True)
    harness.queue(durable=True)
    harness.publish(delayed(500, delivery_mode=PERSISTENT))
    assert [each.due_at for each in harness.take() if isinstance(each, Append)] == [
        harness.now + 0.5
    ]


def test_a_persistent_one_that_is_deferred_again_is_kept_with_its_new_time() -> None:
    harness = EngineHarness(keep_records=True)
    harness.queue(durable=True)
    harness.publish(a_message(delivery_mode=PERSISTENT))
    harness.get()
    harness.take()
    harness.nack(1, delay=0.25)
    assert [each.due_at for each in harness.take() if isinstance(each, Moved)] == [
        harness.now + 0.25
    ]


def test_each_queue_that_it_is_routed_to_holds_it_and_counts_it(harness: EngineHarness) -> None:
    """it waits behind the exchange, where it is counted and can be seen."""
    for name in ("a", "b"):
        harness.queue(name)
        harness.bind(name, "amq.fanout", "", {})
    harness.publish(delayed(200, exchange="amq.fanout"))
    for name in ("a", "b"):
        stats = harness.stats(name)
        assert (stats.message_count, stats.deferred, stats.ready) == (1, 1, 0)


def test_an_unroutable_delayed_publish_comes_back_at_once(harness: EngineHarness) -> None:
    """Which a message that waits before its exchange could not."""
    harness.publish(delayed(200, routing_key="nobody", mandatory=True))
    assert len(harness.returns()) == 1


def test_delays_of_any_length_do_not_wait_for_each_other(harness: EngineHarness) -> None:
    """A short one behind a long one."""
    harness.queue()
    harness.publish(delayed(5_000, b"long"), delayed(200, b"short"))
    harness.advance(0.2)
    assert harness.drain() == [b"short"]
    harness.advance(4.8)
    assert harness.drain() == [b"long"]


@pytest.mark.parametrize("value", [2_160_000_001, 2**32, 2**70, "2160000001"])
def test_delay_out_of_range_is_refused_and_never_taken_for_none(
    harness: EngineHarness, value: Any
) -> None:
    """An error for a publish, where a requeue is cut."""
    harness.queue()
    with pytest.raises(ReplyError, match="x-delay") as refused:
        harness.publish(delayed(value))
    assert refused.value.reply_code == 406
    assert harness.stats().message_count == 0


@pytest.mark.parametrize("value", ["soon", "1.5", "²", 1.5, True, None, [200], b"200"])
def test_delay_that_is_no_number_delays_nothing(harness: EngineHarness, value: Any) -> None:
    """As with RabbitMQ's plugin, and as without it."""
    harness.queue()
    harness.publish(delayed(value))
    assert (harness.stats().ready, harness.stats().deferred) == (1, 0)


def test_delay_in_text_is_the_number_it_says(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed("200"))
    assert (harness.stats().ready, harness.stats().deferred) == (0, 1)


@pytest.mark.parametrize("value", [0, -200])
def test_a_delay_that_is_over_delays_no_more(harness: EngineHarness, value: int) -> None:
    """A handler that publishes what it got with its headers does not delay it again."""
    harness.queue()
    harness.publish(delayed(value))
    assert harness.stats().ready == 1


def test_every_delay_that_the_client_asks_for_is_taken(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed(int(MAX_DELAY * 1000)))
    assert harness.stats().deferred == 1


def test_the_longest_delay_is_a_setting() -> None:
    harness = EngineHarness(max_publish_delay=60.0)
    harness.queue()
    harness.publish(delayed(60_000))
    with pytest.raises(ReplyError):
        harness.publish(delayed(60_001))


def test_the_ttl_of_a_delayed_message_begins_when_it_is_ready(harness: EngineHarness) -> None:
    """counted from arrival, and it arrives when its time has come."""
    harness.queue(message_ttl=100)
    harness.publish(delayed(1_000))
    harness.advance(1.0)
    assert harness.stats().ready == 1
    harness.advance(0.1)
    assert (harness.stats().ready, harness.stats().drop_count) == (0, 1)


def test_a_delayed_message_keeps_its_priority(harness: EngineHarness) -> None:
    harness.queue(max_priority=5)
    harness.publish(delayed(10, b"low", priority=1), delayed(10, b"high", priority=4))
    harness.advance(0.01)
    assert harness.drain() == [b"high", b"low"]


def test_what_becomes_ready_makes_the_oldest_give_way(harness: EngineHarness) -> None:
    harness.queue(max_length=1, overflow="reject-publish")
    harness.publish(delayed(10, b"late"), a_message(body=b"early"))
    harness.advance(0.01)
    assert harness.stats().ready == 2  # accepted is accepted: reject-publish is for publishes
    harness.queue("drops", max_length=1)
    harness.publish(delayed(10, b"late", routing_key="drops"), a_message("drops", b"early"))
    harness.advance(0.01)
    assert harness.drain("drops") == [b"late"]


def test_deferred_messages_are_no_bodys_and_outlive_connections(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed(200))
    harness.engine.close_connection(harness.connection, harness.now)
    assert harness.engine.admin.deferred("/", "q")[0].due_at == harness.now + 0.2


# --------------------------------------------------------------------- seen and acted on


def test_what_is_deferred_is_listed_next_first(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed(500, b"bb", message_id="later"), a_message(message_id="again"))
    harness.take()
    harness.get()
    harness.nack(1, delay=0.2)
    sooner, later = harness.engine.admin.deferred("/", "q")
    assert (sooner.message_id, sooner.attempts, sooner.due_at) == ("again", 1, harness.now + 0.2)
    assert (later.message_id, later.attempts, later.due_at) == ("later", 0, harness.now + 0.5)
    assert (later.size_bytes, later.exchange, later.routing_key) == (2, "", "q")
    assert harness.engine.admin.deferred("/", "q", most=1) == (sooner,)


def test_one_deferred_message_can_be_cancelled(harness: EngineHarness) -> None:
    """nsq has no way to."""
    harness.queue(dead_letter_exchange="amq.fanout")
    harness.queue("dead")
    harness.bind("dead", "amq.fanout", "", {})
    harness.publish(delayed(100, b"1"), delayed(200, b"2"))
    first = harness.engine.admin.deferred("/", "q")[0]
    assert harness.engine.admin.cancel_deferred("/", "q", [first.id, 999]) == 1
    assert harness.engine.admin.cancel_deferred("/", "q", [first.id]) == 0
    harness.advance(1.0)
    assert harness.drain() == [b"2"]
    assert (harness.stats().purge_count, harness.stats("dead").message_count) == (1, 0)
    assert harness.engine.admin.cancel_deferred("/", "q") == 0


def test_deferred_messages_can_be_run_now(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(delayed(100, b"1"), delayed(200, b"2"), delayed(300, b"3"))
    harness.consume()
    second = harness.engine.admin.deferred("/", "q")[1]
    assert harness.engine.admin.run_deferred("/", "q", harness.now, [second.id]) == 1
    assert harness.bodies() == [b"2"]
    assert harness.engine.admin.run_deferred("/", "q", harness.now) == 2
    assert harness.bodies() == [b"1", b"3"]
    harness.advance(1.0)
    assert harness.bodies() == []
    assert harness.engine.next_deadline() == harness.now + 59.0  # of the deliveries alone


# --------------------------------------------------------------------- the plugin's exchange type


def test_an_exchange_of_the_delaying_type_routes_as_it_is_reported(harness: EngineHarness) -> None:
    """what is written for RabbitMQ's plugin runs here."""
    for kind in ("topic", "headers"):
        arguments = {"x-delayed-type": kind}
        harness.engine.topology.declare_exchange(
            harness.channel, kind, "x-delayed-message", arguments=arguments
        )
    harness.queue()
    harness.bind("q", "topic", "a.*", {})
    harness.bind("q", "headers", "", {"x-match": "all", "k": 1})
    harness.publish(
        delayed(200, b"1", exchange="topic", routing_key="a.b"),
        delayed(300, b"2", exchange="headers", routing_key="", headers={"k": 1}),
        a_message("a.b", b"0", exchange="topic"),
        delayed(100, exchange="topic", routing_key="b"),
    )
    assert (harness.stats().ready, harness.stats().deferred) == (1, 2)
    harness.advance(0.3)
    assert harness.drain() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "x-delayed-message"}])
def test_the_delaying_type_needs_another_type(
    harness: EngineHarness, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ReplyError, match="x-delayed-type"):
        harness.engine.topology.declare_exchange(
            harness.channel, "x", "x-delayed-message", arguments=arguments
        )
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        harness.engine.topology.check_exchange(harness.channel, "x")


def test_the_delayed_type_is_part_of_the_declaration(harness: EngineHarness) -> None:
    def declare(kind: str) -> None:
        arguments = {"x-delayed-type": kind}
        harness.engine.topology.declare_exchange(
            harness.channel, "x", "x-delayed-message", arguments=arguments
        )

    declare("topic")
    declare("topic")
    with pytest.raises(ReplyError, match="inequivalent arg 'x-delayed-type'"):
        declare("direct")
