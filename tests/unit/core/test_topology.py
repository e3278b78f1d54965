"""Declarations, bindings, deletions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import CancelConsumer
from broker_client.core.engine import Engine
from broker_client.core.exchange import Destination
from broker_client.errors import ReplyError
from tests.support.builders import EngineHarness, a_message


def refused(code: int, text: str) -> Any:
    return pytest.raises(ReplyError, match=f"^{code} .*{text}")


def test_declaring_twice_alike_answers_with_the_counts(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message())
    assert harness.engine.topology.declare_queue(harness.channel, "q", harness.now) == ("q", 1, 0)


def test_declaring_with_another_durability_is_refused_in_rabbitmqs_words(
    harness: EngineHarness,
) -> None:
    harness.queue()
    with pytest.raises(ReplyError) as refusal:
        harness.queue(durable=False)
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
    harness: EngineHarness, first: int | None, second: int | None, difference: str
) -> None:
    harness.queue(message_ttl=first)
    with refused(406, f"inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': {difference}"):
        harness.queue(message_ttl=second)


def test_arguments_the_broker_does_not_know_make_no_difference(harness: EngineHarness) -> None:
    harness.queue(mine=1, queue_mode="lazy")
    assert harness.queue(mine=2, queue_mode="lazy") == "q"
    harness.publish(a_message())
    assert harness.drain() == [b"hello"]


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
        ("x-dead-letter-routing-key", "without-exchange"),
        ("x-queue-type", "heap"),
    ],
)
def test_a_bad_queue_argument_is_refused_and_no_queue_made(
    harness: EngineHarness, argument: str, value: object
) -> None:
    with refused(406, f"invalid arg '{argument}' for queue 'q' in vhost '/'"):
        harness.queue(arguments={argument: value})
    assert harness.engine.stats() == ()


def test_a_stream_queue_is_not_implemented(harness: EngineHarness) -> None:
    with refused(540, "x-queue-type 'stream'"):
        harness.queue(queue_type="stream")
    assert harness.engine.stats() == ()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_classic_and_quorum_queues_are_accepted(harness: EngineHarness, kind: str) -> None:
    assert harness.queue(queue_type=kind) == "q"


def test_checking_a_missing_queue_is_refused(harness: EngineHarness) -> None:
    with refused(404, "no queue 'q' in vhost '/'"):
        harness.engine.topology.check_queue(harness.channel, "q", harness.now)


def test_checking_a_missing_exchange_is_refused(harness: EngineHarness) -> None:
    with refused(404, "no exchange 'x' in vhost '/'"):
        harness.engine.topology.check_exchange(harness.channel, "x")


def test_server_named_queues_have_names_of_their_own(harness: EngineHarness) -> None:
    first, second = harness.queue(""), harness.queue("")
    assert first != second
    assert first.startswith("amq.gen-")


def test_a_server_named_queue_is_named_by_the_token_maker_and_never_as_one_that_is_there() -> None:
    tokens = iter(["a", "a", "a", "b"])
    engine = Engine(new_token=lambda: next(tokens))
    channel = engine.open_channel(engine.open_connection("/"))
    named = [engine.topology.declare_queue(channel, "", 0.0).name for _ in range(2)]
    assert named == ["amq.gen-a", "amq.gen-b"]


def test_names_with_the_reserved_prefix_are_refused(harness: EngineHarness) -> None:
    with refused(403, "queue name 'amq.mine' contains reserved prefix"):
        harness.queue("amq.mine")
    with refused(403, "exchange name 'amq.mine' contains reserved prefix"):
        harness.engine.topology.declare_exchange(harness.channel, "amq.mine", "topic")


def test_predeclared_exchanges_may_be_redeclared_but_not_deleted(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "amq.topic", "topic")
    with refused(403, "amq.topic"):
        harness.engine.topology.delete_exchange(harness.channel, "amq.topic")


def test_the_default_exchange_cannot_be_bound_or_deleted(harness: EngineHarness) -> None:
    harness.queue()
    with refused(403, "default exchange"):
        harness.bind("q", "", "k", {})
    with refused(403, "default exchange"):
        harness.engine.topology.delete_exchange(harness.channel, "")


def test_an_exchange_of_another_type_is_refused(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "topic")
    with refused(406, "inequivalent arg 'type' for exchange 'x'.*'direct' but current is 'topic'"):
        harness.engine.topology.declare_exchange(harness.channel, "x", "direct")
    with refused(406, "unknown exchange type 'carrier-pigeon'"):
        harness.engine.topology.declare_exchange(harness.channel, "y", "carrier-pigeon")


def test_delete_answers_with_the_ready_messages_and_zero_for_no_queue(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message(), a_message())
    assert harness.engine.topology.delete_queue(harness.channel, "q") == 2
    assert harness.engine.topology.delete_queue(harness.channel, "q") == 0


def test_delete_if_unused_and_if_empty_are_refused_when_they_do_not_hold(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message())
    with refused(406, "queue 'q' in vhost '/' not empty"):
        harness.engine.topology.delete_queue(harness.channel, "q", if_empty=True)
    harness.consume()
    with refused(406, "queue 'q' in vhost '/' in use"):
        harness.engine.topology.delete_queue(harness.channel, "q", if_unused=True)
    assert harness.stats().consumers == 1


def test_purge_counts_ready_and_leaves_what_is_in_flight(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(), a_message(), a_message())
    harness.get()
    assert harness.engine.topology.purge_queue(harness.channel, "q") == 2
    assert (harness.stats().ready, harness.stats().in_flight) == (0, 1)


def test_binding_a_missing_end_is_refused(harness: EngineHarness) -> None:
    harness.queue()
    with refused(404, "no exchange 'x'"):
        harness.bind("q", "x", "k", {})
    with refused(404, "no queue 'r'"):
        harness.bind("r", "amq.topic", "k", {})
    with refused(404, "no exchange 'x'"):
        harness.engine.topology.bind(
            harness.channel, Destination("exchange", "x"), "amq.topic", "k", {}
        )


def test_unbinding_what_is_not_bound_has_no_effect(harness: EngineHarness) -> None:
    harness.engine.topology.unbind(harness.channel, Destination("queue", "r"), "x", "k", {})
    harness.engine.topology.unbind(
        harness.channel, Destination("exchange", "y"), "amq.topic", "k", {}
    )
    assert harness.take() == []


def test_an_exclusive_queue_is_locked_for_other_connections_and_goes_with_its_own(
    harness: EngineHarness,
) -> None:
    other = harness.engine.open_channel(harness.engine.open_connection("/"))
    harness.queue(exclusive=True)
    here = Destination("queue", "q")
    for command in (
        lambda: harness.queue(channel=other, exclusive=True),
        lambda: harness.engine.topology.bind(other, here, "amq.topic", "k", {}),
        lambda: harness.engine.topology.unbind(other, here, "amq.topic", "k", {}),
        lambda: harness.engine.topology.check_queue(other, "q", harness.now),
        lambda: harness.consume(channel=other),
        lambda: harness.engine.topology.purge_queue(other, "q"),
        lambda: harness.engine.topology.delete_queue(other, "q"),
    ):
        with refused(405, "cannot obtain exclusive access to locked queue 'q' in vhost '/'"):
            command()
    harness.engine.close_connection(harness.connection, harness.now)
    assert harness.queue(channel=other) == "q"


@pytest.mark.parametrize("how", ["cancel", "close channel", "close connection"])
def test_an_auto_delete_queue_goes_with_its_last_consumer(harness: EngineHarness, how: str) -> None:
    harness.queue(auto_delete=True)
    harness.queue("stays")
    connection = harness.engine.open_connection("/")
    channel = harness.engine.open_channel(connection)
    first, second = harness.consume(), harness.consume(channel=channel)
    harness.engine.consuming.cancel(harness.channel, first, harness.now)
    assert harness.stats().consumers == 1
    if how == "cancel":
        harness.engine.consuming.cancel(channel, second, harness.now)
    elif how == "close channel":
        harness.engine.close_channel(channel, harness.now)
    else:
        harness.engine.close_connection(connection, harness.now)
    assert [queue.name for queue in harness.engine.stats()] == ["stays"]


def test_an_auto_delete_queue_without_consumers_stays(harness: EngineHarness) -> None:
    harness.queue(auto_delete=True)
    harness.engine.close_channel(harness.another_channel(), harness.now)
    assert harness.stats().name == "q"


def test_an_auto_delete_exchange_goes_with_its_last_binding(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "fanout", auto_delete=True)
    harness.queue()
    harness.bind("q", "x", "", {})
    harness.engine.topology.delete_queue(harness.channel, "q")
    with refused(404, "no exchange 'x'"):
        harness.engine.topology.check_exchange(harness.channel, "x")


def test_an_exchange_in_use_is_not_deleted_if_unused(harness: EngineHarness) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "fanout")
    harness.queue()
    harness.bind("q", "x", "", {})
    with refused(406, "exchange 'x' in vhost '/' in use"):
        harness.engine.topology.delete_exchange(harness.channel, "x", if_unused=True)


def test_deleting_a_queue_cancels_its_consumers(harness: EngineHarness) -> None:
    harness.queue()
    tag = harness.consume(consumer_tag="c")
    harness.engine.topology.delete_queue(harness.channel, "q")
    assert harness.take() == [CancelConsumer(harness.channel, tag)]


def test_settling_a_delivery_of_a_deleted_queue_has_no_effect(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(), a_message(), a_message())
    for _ in range(3):
        harness.get()
    harness.engine.topology.delete_queue(harness.channel, "q")
    harness.ack(1)
    harness.nack(2, requeue=True)
    harness.nack(3, delay=1.0)
    harness.advance(100)
    assert harness.engine.next_deadline() is None


def test_an_unused_queue_expires_and_use_puts_it_off(harness: EngineHarness) -> None:
    harness.queue(expires=1000)
    harness.advance(0.9)
    harness.engine.topology.check_queue(harness.channel, "q", harness.now)
    harness.advance(0.9)
    tag = harness.consume()
    harness.advance(5.0)
    assert harness.stats().name == "q"
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    assert harness.engine.next_deadline() == harness.now + 1.0
    harness.advance(1.0)
    assert harness.engine.stats() == ()


def test_vhosts_know_nothing_of_each_other(harness: EngineHarness) -> None:
    harness.queue()
    other = harness.engine.open_channel(harness.engine.open_connection("other"))
    with refused(404, "no queue 'q' in vhost 'other'"):
        harness.engine.topology.check_queue(other, "q", harness.now)


def test_a_transient_queue_of_ones_own_goes_with_its_last_consumer(harness: EngineHarness) -> None:
    """nsq's #ephemeral."""
    harness.queue(durable=False, auto_delete=True)
    tag = harness.consume()
    harness.engine.consuming.cancel(harness.channel, tag, harness.now)
    with pytest.raises(ReplyError, match="NOT_FOUND"):
        harness.engine.topology.check_queue(harness.channel, "q", harness.now)


def test_an_exclusive_queue_outlives_a_channel_of_its_connection(harness: EngineHarness) -> None:
    """it goes with the connection, not before."""
    other = harness.another_channel()
    harness.queue("mine", channel=other, exclusive=True)
    harness.engine.close_channel(other, harness.now)
    assert harness.engine.topology.check_queue(harness.channel, "mine", harness.now).name == "mine"


@pytest.mark.parametrize(
    ("version", "code", "scope"), [((3, 10), 503, "connection"), ((4, 3), 406, "channel")]
)
def test_an_unknown_exchange_type_costs_what_it_does_in_that_rabbitmq(
    version: tuple[int, int], code: int, scope: str
) -> None:
    harness = EngineHarness(compatibility=version)
    with pytest.raises(ReplyError, match="unknown exchange type 'heap'") as refused:
        harness.engine.topology.declare_exchange(harness.channel, "x", "heap")
    assert (refused.value.reply_code, refused.value.scope) == (code, scope)


def test_a_dead_letter_exchange_that_is_no_text_is_refused(harness: EngineHarness) -> None:
    with refused(406, "invalid type 'byte' for arg 'x-dead-letter-exchange' in queue 'q'"):
        harness.queue(dead_letter_exchange=7)


def test_a_classic_queue_may_be_declared_again_with_its_type_said(harness: EngineHarness) -> None:
    harness.queue()
    harness.queue(queue_type="classic")
    with refused(406, "received 'quorum' but current is 'classic'"):
        harness.queue(queue_type="quorum")
