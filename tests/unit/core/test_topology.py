"""Declarations, bindings, deletions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import CancelConsumer
from broker_client.errors import ReplyError
from tests.support.builders import Desk, a_message


def refused(code: int, text: str) -> Any:
    return pytest.raises(ReplyError, match=f"^{code} .*{text}")


def test_declaring_twice_alike_answers_with_the_counts(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message())
    assert desk.engine.declare_queue(desk.channel, "q", desk.now) == ("q", 1, 0)


def test_declaring_with_another_durability_is_refused_in_rabbitmqs_words(desk: Desk) -> None:
    desk.queue()
    with pytest.raises(ReplyError) as refusal:
        desk.queue(durable=False)
    assert str(refusal.value) == (
        "406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': "
        "received 'false' but current is 'true'"
    )
    assert refusal.value.scope == "channel"


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (1000, None, "received none but current is the value '1000' of type 'short'"),
        (None, 5, "received the value '5' of type 'byte' but current is none"),
        (1000, 2000, "received '2000' but current is '1000'"),
    ],
)
def test_declaring_with_another_argument_is_refused_in_rabbitmqs_words(
    desk: Desk, first: int | None, second: int | None, difference: str
) -> None:
    desk.queue(message_ttl=first)
    with refused(406, f"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': {difference}"):
        desk.queue(message_ttl=second)


def test_arguments_the_broker_does_not_know_make_no_difference(desk: Desk) -> None:
    desk.queue(mine=1, queue_mode="lazy")
    assert desk.queue(mine=2, queue_mode="lazy") == "q"
    desk.publish(a_message())
    assert desk.drain() == [b"hello"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x-message-ttl", -1),
        ("x-message-ttl", "1000"),
        ("x-message-ttl", True),
        ("x-expires", 0),
        ("x-max-length", -1),
        ("x-max-priority", 256),
        ("x-overflow", "spill"),
        ("x-dead-letter-exchange", 7),
        ("x-dead-letter-routing-key", "without-exchange"),
        ("x-queue-type", "heap"),
    ],
)
def test_a_bad_queue_argument_is_refused_and_no_queue_made(
    desk: Desk, argument: str, value: object
) -> None:
    with refused(406, f"invalid arg '{argument}' for queue 'q' in vhost '/'"):
        desk.queue(arguments={argument: value})
    assert desk.engine.stats() == ()


def test_a_stream_queue_is_not_implemented(desk: Desk) -> None:
    with refused(540, "x-queue-type 'stream'"):
        desk.queue(queue_type="stream")
    assert desk.engine.stats() == ()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_classic_and_quorum_queues_are_accepted(desk: Desk, kind: str) -> None:
    assert desk.queue(queue_type=kind) == "q"


def test_checking_a_missing_queue_is_refused(desk: Desk) -> None:
    with refused(404, "no queue 'q' in vhost '/'"):
        desk.engine.check_queue(desk.channel, "q", desk.now)


def test_checking_a_missing_exchange_is_refused(desk: Desk) -> None:
    with refused(404, "no exchange 'x' in vhost '/'"):
        desk.engine.check_exchange(desk.channel, "x")


def test_server_named_queues_have_names_of_their_own(desk: Desk) -> None:
    first, second = desk.queue(""), desk.queue("")
    assert first != second
    assert first.startswith("amq.gen-")


def test_names_with_the_reserved_prefix_are_refused(desk: Desk) -> None:
    with refused(403, "queue name 'amq.mine' contains reserved prefix"):
        desk.queue("amq.mine")
    with refused(403, "exchange name 'amq.mine' contains reserved prefix"):
        desk.engine.declare_exchange(desk.channel, "amq.mine", "topic")


def test_predeclared_exchanges_may_be_redeclared_but_not_deleted(desk: Desk) -> None:
    desk.engine.declare_exchange(desk.channel, "amq.topic", "topic")
    with refused(403, "amq.topic"):
        desk.engine.delete_exchange(desk.channel, "amq.topic")


def test_the_default_exchange_cannot_be_bound_or_deleted(desk: Desk) -> None:
    desk.queue()
    with refused(403, "default exchange"):
        desk.engine.bind_queue(desk.channel, "q", "", "k", {})
    with refused(403, "default exchange"):
        desk.engine.delete_exchange(desk.channel, "")


def test_an_exchange_of_another_type_is_refused(desk: Desk) -> None:
    desk.engine.declare_exchange(desk.channel, "x", "topic")
    with refused(406, "inequivalent arg 'type' for exchange 'x'.*'direct' but current is 'topic'"):
        desk.engine.declare_exchange(desk.channel, "x", "direct")
    with refused(406, "unknown exchange type 'carrier-pigeon'"):
        desk.engine.declare_exchange(desk.channel, "y", "carrier-pigeon")


def test_delete_answers_with_the_ready_messages_and_zero_for_no_queue(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message())
    assert desk.engine.delete_queue(desk.channel, "q") == 2
    assert desk.engine.delete_queue(desk.channel, "q") == 0


def test_delete_if_unused_and_if_empty_are_refused_when_they_do_not_hold(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message())
    with refused(406, "queue 'q' in vhost '/' not empty"):
        desk.engine.delete_queue(desk.channel, "q", if_empty=True)
    desk.consume()
    with refused(406, "queue 'q' in vhost '/' in use"):
        desk.engine.delete_queue(desk.channel, "q", if_unused=True)
    assert desk.stats().consumers == 1


def test_purge_counts_ready_and_leaves_what_is_in_flight(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message(), a_message())
    desk.get()
    assert desk.engine.purge_queue(desk.channel, "q") == 2
    assert (desk.stats().ready, desk.stats().in_flight) == (0, 1)


def test_binding_a_missing_end_is_refused(desk: Desk) -> None:
    desk.queue()
    with refused(404, "no exchange 'x'"):
        desk.engine.bind_queue(desk.channel, "q", "x", "k", {})
    with refused(404, "no queue 'r'"):
        desk.engine.bind_queue(desk.channel, "r", "amq.topic", "k", {})
    with refused(404, "no exchange 'x'"):
        desk.engine.bind_exchange(desk.channel, "x", "amq.topic", "k", {})


def test_unbinding_what_is_not_bound_is_harmless(desk: Desk) -> None:
    desk.engine.unbind_queue(desk.channel, "r", "x", "k", {})
    desk.engine.unbind_exchange(desk.channel, "y", "amq.topic", "k", {})
    assert desk.take() == []


def test_an_exclusive_queue_is_locked_for_other_connections_and_goes_with_its_own(
    desk: Desk,
) -> None:
    other = desk.engine.open_channel(desk.engine.open_connection("/"))
    desk.queue(exclusive=True)
    for command in (
        lambda: desk.queue(channel=other, exclusive=True),
        lambda: desk.engine.check_queue(other, "q", desk.now),
        lambda: desk.consume(channel=other),
        lambda: desk.engine.purge_queue(other, "q"),
        lambda: desk.engine.delete_queue(other, "q"),
    ):
        with refused(405, "cannot obtain exclusive access to locked queue 'q' in vhost '/'"):
            command()
    desk.engine.close_connection(desk.connection, desk.now)
    assert desk.queue(channel=other) == "q"


@pytest.mark.parametrize("how", ["cancel", "close channel", "close connection"])
def test_an_auto_delete_queue_goes_with_its_last_consumer(desk: Desk, how: str) -> None:
    desk.queue(auto_delete=True)
    desk.queue("stays")
    connection = desk.engine.open_connection("/")
    channel = desk.engine.open_channel(connection)
    first, second = desk.consume(), desk.consume(channel=channel)
    desk.engine.cancel(desk.channel, first, desk.now)
    assert desk.stats().consumers == 1
    if how == "cancel":
        desk.engine.cancel(channel, second, desk.now)
    elif how == "close channel":
        desk.engine.close_channel(channel, desk.now)
    else:
        desk.engine.close_connection(connection, desk.now)
    assert [queue.name for queue in desk.engine.stats()] == ["stays"]


def test_an_auto_delete_queue_without_consumers_stays(desk: Desk) -> None:
    desk.queue(auto_delete=True)
    desk.engine.close_channel(desk.another_channel(), desk.now)
    assert desk.stats().name == "q"


def test_an_auto_delete_exchange_goes_with_its_last_binding(desk: Desk) -> None:
    desk.engine.declare_exchange(desk.channel, "x", "fanout", auto_delete=True)
    desk.queue()
    desk.engine.bind_queue(desk.channel, "q", "x", "", {})
    desk.engine.delete_queue(desk.channel, "q")
    with refused(404, "no exchange 'x'"):
        desk.engine.check_exchange(desk.channel, "x")


def test_an_exchange_in_use_is_not_deleted_if_unused(desk: Desk) -> None:
    desk.engine.declare_exchange(desk.channel, "x", "fanout")
    desk.queue()
    desk.engine.bind_queue(desk.channel, "q", "x", "", {})
    with refused(406, "exchange 'x' in vhost '/' in use"):
        desk.engine.delete_exchange(desk.channel, "x", if_unused=True)


def test_deleting_a_queue_cancels_its_consumers(desk: Desk) -> None:
    desk.queue()
    tag = desk.consume(consumer_tag="c")
    desk.engine.delete_queue(desk.channel, "q")
    assert desk.take() == [CancelConsumer(desk.channel, tag)]


def test_settling_a_delivery_of_a_deleted_queue_is_harmless(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message(), a_message())
    for _ in range(3):
        desk.get()
    desk.engine.delete_queue(desk.channel, "q")
    desk.ack(1)
    desk.nack(2, requeue=True)
    desk.nack(3, delay=1.0)
    desk.advance(100)
    assert desk.engine.next_deadline() is None


def test_an_unused_queue_expires_and_use_puts_it_off(desk: Desk) -> None:
    desk.queue(expires=1000)
    desk.advance(0.9)
    desk.engine.check_queue(desk.channel, "q", desk.now)
    desk.advance(0.9)
    tag = desk.consume()
    desk.advance(5.0)
    assert desk.stats().name == "q"
    desk.engine.cancel(desk.channel, tag, desk.now)
    assert desk.engine.next_deadline() == desk.now + 1.0
    desk.advance(1.0)
    assert desk.engine.stats() == ()


def test_vhosts_know_nothing_of_each_other(desk: Desk) -> None:
    desk.queue()
    other = desk.engine.open_channel(desk.engine.open_connection("other"))
    with refused(404, "no queue 'q' in vhost 'other'"):
        desk.engine.check_queue(other, "q", desk.now)
