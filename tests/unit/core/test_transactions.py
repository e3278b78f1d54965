"""tx.select, commit and rollback."""

from __future__ import annotations

import pytest

from broker_client.errors import ReplyError
from tests.support.builders import Desk, a_message


@pytest.fixture
def channel(desk: Desk) -> int:
    """A channel in transaction mode, and a queue."""
    desk.queue()
    channel = desk.another_channel()
    desk.engine.tx_select(channel)
    return channel


def test_publishes_are_seen_at_the_commit(desk: Desk, channel: int) -> None:
    desk.publish(a_message(body=b"1"), a_message(body=b"2"), channel=channel)
    assert desk.stats().message_count == 0
    desk.engine.tx_commit(channel, desk.now)
    assert desk.drain() == [b"1", b"2"]


def test_a_rollback_drops_the_publishes(desk: Desk, channel: int) -> None:
    desk.publish(a_message(), channel=channel)
    desk.engine.tx_rollback(channel)
    desk.engine.tx_commit(channel, desk.now)
    assert desk.stats().message_count == 0


def test_settlements_count_at_the_commit(desk: Desk, channel: int) -> None:
    for body in (b"1", b"2", b"3", b"4"):
        desk.publish(a_message(body=body))
        desk.engine.get(channel, "q", desk.now)
    desk.engine.ack(channel, 1, desk.now)
    desk.engine.nack(channel, 2, desk.now)
    desk.engine.nack(channel, 3, desk.now, requeue=False)
    assert (desk.stats().in_flight, desk.stats().ack_count) == (4, 0)
    desk.engine.tx_commit(channel, desk.now)
    stats = desk.stats()
    assert (stats.in_flight, stats.ack_count, stats.ready, stats.drop_count) == (1, 1, 1, 1)
    assert desk.drain() == [b"2"]


def test_a_rollback_leaves_deliveries_in_flight_to_be_settled_again(
    desk: Desk, channel: int
) -> None:
    desk.publish(a_message())
    desk.engine.get(channel, "q", desk.now)
    desk.engine.ack(channel, 1, desk.now)
    desk.engine.tx_rollback(channel)
    assert desk.stats().in_flight == 1
    desk.engine.ack(channel, 1, desk.now)
    desk.engine.tx_commit(channel, desk.now)
    assert desk.stats().ack_count == 1


def test_settling_twice_in_a_transaction_is_refused(desk: Desk, channel: int) -> None:
    """`Delivery tag already acked` inside tx; RabbitMQ calls it unknown."""
    desk.publish(a_message(), a_message())
    desk.engine.get(channel, "q", desk.now)
    desk.engine.get(channel, "q", desk.now)
    desk.engine.ack(channel, 1, desk.now)
    for settle in (desk.engine.ack, desk.engine.nack):
        with pytest.raises(ReplyError, match="unknown delivery tag 1"):
            settle(channel, 1, desk.now)
        with pytest.raises(ReplyError, match="unknown delivery tag 9"):
            settle(channel, 9, desk.now)
    desk.engine.ack(channel, 0, desk.now, multiple=True)
    desk.engine.tx_commit(channel, desk.now)
    assert desk.stats().ack_count == 2


def test_a_delivery_that_times_out_before_the_commit_comes_again(desk: Desk, channel: int) -> None:
    desk.publish(a_message())
    desk.engine.get(channel, "q", desk.now)
    desk.engine.ack(channel, 1, desk.now)
    desk.advance(60.0)
    desk.engine.tx_commit(channel, desk.now)
    assert (desk.stats().ready, desk.stats().ack_count) == (1, 0)
    assert desk.engine.late_settles == 1


def test_a_channel_closed_without_commit_gives_everything_back(desk: Desk, channel: int) -> None:
    desk.publish(a_message(body=b"old"))
    desk.engine.get(channel, "q", desk.now)
    desk.engine.ack(channel, 1, desk.now)
    desk.publish(a_message(body=b"new"), channel=channel)
    desk.engine.close_channel(channel, desk.now)
    assert desk.drain() == [b"old"]


def test_a_publish_to_a_missing_exchange_is_refused_at_once(desk: Desk, channel: int) -> None:
    with pytest.raises(ReplyError, match="no exchange 'none'"):
        desk.publish(a_message(exchange="none"), channel=channel)


def test_an_exchange_that_goes_before_the_commit_takes_nothing(desk: Desk, channel: int) -> None:
    desk.engine.declare_exchange(desk.channel, "x", "fanout")
    desk.publish(a_message(exchange="x", mandatory=True), a_message(), channel=channel)
    desk.engine.delete_exchange(desk.channel, "x")
    desk.engine.tx_commit(channel, desk.now)
    assert len(desk.returns()) == 1
    assert desk.stats().ready == 1


def test_commit_and_rollback_need_a_transaction(desk: Desk) -> None:
    with pytest.raises(ReplyError, match="channel is not transactional"):
        desk.engine.tx_commit(desk.channel, desk.now)
    with pytest.raises(ReplyError, match="channel is not transactional"):
        desk.engine.tx_rollback(desk.channel)


def test_transactions_and_confirms_shut_each_other_out(desk: Desk, channel: int) -> None:
    with pytest.raises(ReplyError, match="cannot switch from confirm to tx mode"):
        desk.engine.tx_select(desk.channel)
    with pytest.raises(ReplyError, match="cannot switch from tx to confirm mode"):
        desk.engine.confirm_select(channel)


def test_selecting_again_is_harmless(desk: Desk, channel: int) -> None:
    desk.publish(a_message(), channel=channel)
    desk.engine.tx_select(channel)
    desk.engine.tx_commit(channel, desk.now)
    assert desk.stats().ready == 1
