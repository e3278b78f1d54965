"""tx.select, commit and rollback."""

from __future__ import annotations

import pytest

from broker_client.core.effects import Return
from broker_client.core.records import Append, TransactionBegun, TransactionEnded
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT
from tests.support.builders import EngineHarness, a_message


@pytest.fixture
def channel(harness: EngineHarness) -> int:
    """A channel in transaction mode, and a queue."""
    harness.queue()
    channel = harness.another_channel()
    harness.engine.publishing.tx_select(channel)
    return channel


def test_publishes_are_seen_at_the_commit(harness: EngineHarness, channel: int) -> None:
    harness.publish(a_message(body=b"1"), a_message(body=b"2"), channel=channel)
    assert harness.stats().message_count == 0
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.drain() == [b"1", b"2"]


def test_another_transaction_begins_with_the_commit(harness: EngineHarness, channel: int) -> None:
    for count in (1, 2):
        harness.publish(a_message(), channel=channel)
        assert harness.stats().message_count == count - 1
        harness.engine.publishing.tx_commit(channel, harness.now)
        assert harness.stats().message_count == count


def test_a_rollback_drops_the_publishes(harness: EngineHarness, channel: int) -> None:
    harness.publish(a_message(), channel=channel)
    harness.engine.publishing.tx_rollback(channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().message_count == 0


def test_settlements_count_at_the_commit(harness: EngineHarness, channel: int) -> None:
    for body in (b"1", b"2", b"3", b"4"):
        harness.publish(a_message(body=body))
        harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    harness.engine.consuming.nack(channel, 2, harness.now)
    harness.engine.consuming.nack(channel, 3, harness.now, requeue=False)
    assert (harness.stats().in_flight, harness.stats().ack_count) == (4, 0)
    harness.engine.publishing.tx_commit(channel, harness.now)
    stats = harness.stats()
    assert (stats.in_flight, stats.ack_count, stats.ready, stats.drop_count) == (1, 1, 1, 1)
    assert harness.drain() == [b"2"]


def test_acks_of_a_run_count_at_the_commit(harness: EngineHarness, channel: int) -> None:
    for body in (b"1", b"2"):
        harness.publish(a_message(body=body))
        harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack_each(channel, [1, 2], harness.now)
    assert harness.stats().ack_count == 0
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().ack_count == 2


def test_a_requeue_with_a_delay_waits_from_the_commit_on(
    harness: EngineHarness, channel: int
) -> None:
    harness.publish(a_message())
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.nack(channel, 1, harness.now, delay=5.0)
    harness.now += 1.0
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert (harness.stats().ready, harness.stats().deferred) == (0, 1)
    assert harness.engine.next_deadline() == harness.now + 5.0


@pytest.mark.parametrize(("multiple", "ready"), [(False, 1), (True, 2)])
def test_a_release_in_a_transaction_gives_back_at_the_commit(
    harness: EngineHarness, channel: int, multiple: bool, ready: int
) -> None:
    for _ in range(2):
        harness.publish(a_message())
        harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.release(channel, 2, harness.now, multiple=multiple)
    assert harness.stats().ready == 0
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().ready == ready


def test_a_rollback_leaves_deliveries_in_flight_to_be_settled_again(
    harness: EngineHarness, channel: int
) -> None:
    harness.publish(a_message())
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    harness.engine.publishing.tx_rollback(channel)
    assert harness.stats().in_flight == 1
    harness.engine.consuming.ack(channel, 1, harness.now)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().ack_count == 1


def test_settling_twice_in_a_transaction_is_refused(harness: EngineHarness, channel: int) -> None:
    """`Delivery tag already acked` inside tx; RabbitMQ calls it unknown."""
    harness.publish(a_message(), a_message())
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    for settle in (harness.engine.consuming.ack, harness.engine.consuming.nack):
        with pytest.raises(ReplyError, match="unknown delivery tag 1"):
            settle(channel, 1, harness.now)
        with pytest.raises(ReplyError, match="unknown delivery tag 9"):
            settle(channel, 9, harness.now)
    harness.engine.consuming.ack(channel, 0, harness.now, multiple=True)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().ack_count == 2


def test_a_delivery_that_times_out_before_the_commit_comes_again(
    harness: EngineHarness, channel: int
) -> None:
    harness.publish(a_message())
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    harness.advance(60.0)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert (harness.stats().ready, harness.stats().ack_count) == (1, 0)
    assert harness.engine.late_settles == 1


def test_a_channel_closed_without_commit_gives_everything_back(
    harness: EngineHarness, channel: int
) -> None:
    harness.publish(a_message(body=b"old"))
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    harness.publish(a_message(body=b"new"), channel=channel)
    harness.engine.close_channel(channel, harness.now)
    assert harness.drain() == [b"old"]


def test_a_publish_to_a_missing_exchange_is_refused_at_once(
    harness: EngineHarness, channel: int
) -> None:
    with pytest.raises(ReplyError, match="no exchange 'none'"):
        harness.publish(a_message(exchange="none"), channel=channel)


def test_an_exchange_that_goes_before_the_commit_takes_nothing(
    harness: EngineHarness, channel: int
) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "fanout")
    harness.publish(a_message(exchange="x", mandatory=True), a_message(), channel=channel)
    harness.engine.topology.delete_exchange(harness.channel, "x")
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert len(harness.returns()) == 1
    assert harness.stats().ready == 1


def test_commit_and_rollback_need_a_transaction(harness: EngineHarness) -> None:
    with pytest.raises(ReplyError, match="channel is not transactional"):
        harness.engine.publishing.tx_commit(harness.channel, harness.now)
    with pytest.raises(ReplyError, match="channel is not transactional"):
        harness.engine.publishing.tx_rollback(harness.channel)


def test_transactions_and_confirms_shut_each_other_out(
    harness: EngineHarness, channel: int
) -> None:
    with pytest.raises(ReplyError, match="cannot switch from confirm to tx mode"):
        harness.engine.publishing.tx_select(harness.channel)
    with pytest.raises(ReplyError, match=r" - cannot switch from tx to confirm mode$"):
        harness.engine.publishing.confirm_select(channel)


def test_selecting_again_has_no_effect(harness: EngineHarness, channel: int) -> None:
    harness.publish(a_message(), channel=channel)
    harness.engine.publishing.tx_select(channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert harness.stats().ready == 1


# ---------------------------------------------------------------- many at once

MANY = 200


def published(harness: EngineHarness, channel: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(MANY)]
    messages = [a_message(body=body, delivery_mode=PERSISTENT) for body in bodies]
    harness.publish(*messages, channel=channel)
    return bodies


def test_many_publishes_are_carried_out_in_steps_between_which_others_publish(
    harness: EngineHarness, channel: int
) -> None:
    bodies = published(harness, channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert 0 < harness.stats().ready < MANY / 2
    harness.publish(a_message(body=b"other"))
    assert harness.finish() >= 2
    arrived = harness.drain()
    assert [body for body in arrived if body != b"other"] == bodies
    assert len(arrived) == MANY + 1


@pytest.mark.parametrize(
    ("settled", "left"),
    [
        ({"acked": True}, []),
        ({"requeue": False}, []),
        ({"requeue": True}, [b"%d" % number for number in range(MANY)]),
    ],
)
def test_many_settlements_are_carried_out_in_steps(
    harness: EngineHarness, channel: int, settled: dict[str, bool], left: list[bytes]
) -> None:
    published(harness, harness.channel)
    harness.engine.consuming.consume(channel, "q", harness.now, consumer_tag="c")
    while harness.engine.is_unfinished:
        harness.engine.proceed(harness.now)
    harness.engine.consuming.cancel(channel, "c", harness.now)
    consuming = harness.engine.consuming
    if "acked" in settled:
        consuming.ack(channel, MANY, harness.now, multiple=True)
    else:
        consuming.nack(channel, MANY, harness.now, multiple=True, **settled)
    assert harness.stats().in_flight == MANY
    harness.engine.publishing.tx_commit(channel, harness.now)
    harness.finish()
    assert harness.stats().in_flight == 0
    assert harness.drain() == left
    harness.engine.check_conservation()


@pytest.mark.parametrize("end", ["channel", "connection"])
def test_a_long_commit_is_carried_out_though_its_channel_closes(
    harness: EngineHarness, channel: int, end: str
) -> None:
    connection = harness.engine.open_connection("/")
    channel = harness.engine.open_channel(connection)
    harness.engine.publishing.tx_select(channel)
    harness.publish(a_message(body=b"mine"))
    harness.engine.consuming.get(channel, "q", harness.now)
    harness.engine.consuming.ack(channel, 1, harness.now)
    bodies = published(harness, channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    if end == "channel":
        harness.engine.close_channel(channel, harness.now)
    else:
        harness.engine.close_connection(connection, harness.now)
    assert harness.drain() == bodies


def test_what_the_channel_asks_behind_a_long_commit_sees_all_of_it(
    harness: EngineHarness, channel: int
) -> None:
    published(harness, channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    topology = harness.engine.topology
    assert topology.check_queue(channel, "q", harness.now).message_count == MANY


def test_the_records_of_a_long_commit_stand_between_its_boundaries() -> None:
    harness = EngineHarness(keep_records=True)
    harness.queue(durable=True)
    channel = harness.another_channel()
    harness.engine.publishing.tx_select(channel)
    published(harness, channel)
    harness.take()
    harness.engine.publishing.tx_commit(channel, harness.now)
    first = harness.take()
    harness.publish(a_message(body=b"other", delivery_mode=PERSISTENT))
    harness.finish()
    records = [*first, *harness.take()]
    kept = [each for each in records if isinstance(each, Append)]
    assert len(kept) == MANY + 1
    assert (records[0], records[-2]) == (TransactionBegun(), TransactionEnded())  # then a confirm


def test_a_short_commit_needs_no_boundaries() -> None:
    harness = EngineHarness(keep_records=True)
    harness.queue(durable=True)
    channel = harness.another_channel()
    harness.engine.publishing.tx_select(channel)
    harness.publish(a_message(delivery_mode=PERSISTENT), channel=channel)
    harness.take()
    harness.engine.publishing.tx_commit(channel, harness.now)
    assert [type(each) for each in harness.take()] == [Append]


def test_an_exchange_deleted_in_the_midst_of_a_commit_makes_the_rest_unroutable(
    harness: EngineHarness, channel: int
) -> None:
    harness.engine.topology.declare_exchange(harness.channel, "x", "fanout")
    harness.bind("q", "x")
    for _ in range(MANY):
        harness.publish(a_message(exchange="x", mandatory=True), channel=channel)
    harness.engine.publishing.tx_commit(channel, harness.now)
    before = harness.stats().ready
    harness.engine.topology.delete_exchange(harness.channel, "x")
    harness.finish()
    returned = [each for each in harness.take() if isinstance(each, Return)]
    assert 0 < before == harness.stats().ready
    assert len(returned) == MANY - before


def test_a_rollback_of_many_frees_them_in_steps(harness: EngineHarness, channel: int) -> None:
    harness.publish(*(a_message() for _ in range(2_500)), channel=channel)
    harness.engine.publishing.tx_rollback(channel)
    assert harness.finish() == 2
    assert harness.stats().message_count == 0
