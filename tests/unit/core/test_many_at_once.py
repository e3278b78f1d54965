"""What happens to many messages at one moment is done in steps, with the outcome of one."""

from __future__ import annotations

import pytest

from broker_client.core.snapshots import Purged
from broker_client.errors import ReplyError
from tests.support.builders import EngineHarness, a_message

MANY = 1_200


def finish(harness: EngineHarness) -> int:
    """Do what is pending; returns in how many steps."""
    count = 0
    engine = harness.engine
    while engine.long_work.is_pending or engine.is_unfinished:
        engine.long_work.proceed(harness.now)
        engine.proceed(harness.now)
        count += 1
    return count


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def published(harness: EngineHarness, count: int = MANY, **options: object) -> None:
    harness.publish(*(a_message(body=body, **options) for body in numbered(count)))  # type: ignore[arg-type]


@pytest.fixture
def taken(harness: EngineHarness) -> int:
    """A channel that has many messages in flight."""
    harness.queue("dead")
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    published(harness)
    channel = harness.another_channel()
    harness.engine.consuming.consume(channel, "q", harness.now, consumer_tag="taken")
    finish(harness)
    assert harness.stats().in_flight == MANY
    harness.take()
    return channel


def leave(harness: EngineHarness, channel: int) -> None:
    harness.engine.close_channel(channel, harness.now)


def requeue(harness: EngineHarness, channel: int) -> None:
    harness.engine.consuming.cancel(channel, "taken", harness.now)
    harness.engine.consuming.nack(channel, MANY, harness.now, multiple=True)


def recover(harness: EngineHarness, channel: int) -> None:
    harness.engine.consuming.cancel(channel, "taken", harness.now)
    harness.engine.consuming.recover(channel, harness.now)


def release(harness: EngineHarness, channel: int) -> None:
    harness.engine.consuming.cancel(channel, "taken", harness.now)
    harness.engine.consuming.release(channel, MANY, harness.now, multiple=True)


@pytest.mark.parametrize("give_back", [leave, requeue, recover, release])
def test_many_that_are_given_back_are_delivered_when_all_are_in_their_places(
    harness: EngineHarness, taken: int, give_back: object
) -> None:
    give_back(harness, taken)  # type: ignore[operator]
    harness.consume()
    harness.publish(a_message(body=b"new"))
    assert harness.deliveries() == []
    assert 0 < harness.stats().in_flight < MANY
    harness.engine.check_conservation()
    assert finish(harness) > 2
    assert harness.bodies() == [*numbered(MANY), b"new"]


def test_a_get_while_many_are_given_back_has_the_first_of_them(
    harness: EngineHarness, taken: int
) -> None:
    requeue(harness, taken)
    delivery = harness.get()
    assert delivery is not None
    assert (delivery.body, delivery.redelivered) == (b"0", True)
    assert harness.stats().ready == MANY - 1


@pytest.mark.parametrize("give_back", [leave, requeue, recover, release])
def test_a_declaration_while_many_are_given_back_counts_them(
    harness: EngineHarness, taken: int, give_back: object
) -> None:
    give_back(harness, taken)  # type: ignore[operator]
    harness.publish(a_message(body=b"new"))
    assert 0 < harness.stats().in_flight < MANY
    topology = harness.engine.topology
    assert topology.check_queue(harness.channel, "q", harness.now).message_count == MANY + 1
    finish(harness)
    assert topology.check_queue(harness.channel, "q", harness.now).message_count == MANY + 1


def test_a_queue_deleted_while_many_are_given_back_tells_of_them_all(
    harness: EngineHarness, taken: int
) -> None:
    requeue(harness, taken)
    assert harness.engine.topology.delete_queue(harness.channel, "q") == MANY


def test_a_purge_while_many_are_given_back_purges_them_too(
    harness: EngineHarness, taken: int
) -> None:
    requeue(harness, taken)
    assert harness.engine.topology.purge_queue(harness.channel, "q") == MANY
    finish(harness)
    assert (harness.stats().ready, harness.stats().in_flight) == (0, 0)


def test_a_queue_deleted_while_many_are_given_back_is_gone(
    harness: EngineHarness, taken: int
) -> None:
    requeue(harness, taken)
    harness.engine.topology.delete_queue(harness.channel, "q")
    finish(harness)
    assert harness.engine.state.paging.resident_bytes == 0


def test_a_queue_paused_while_many_are_given_back_stays_paused(
    harness: EngineHarness, taken: int
) -> None:
    requeue(harness, taken)
    harness.engine.admin.pause_queue("/", "q")
    finish(harness)
    harness.consume()
    assert harness.deliveries() == []
    harness.engine.admin.resume_queue("/", "q", harness.now)
    finish(harness)
    assert len(harness.deliveries()) == MANY


def purge_in_flight(harness: EngineHarness) -> Purged:
    return harness.engine.admin.purge("/", "q", harness.now, ready=False, in_flight=True)


def test_many_in_flight_are_purged_in_steps_and_only_then_may_more_come(
    harness: EngineHarness, taken: int
) -> None:
    purged = purge_in_flight(harness)
    harness.publish(a_message(body=b"new"))
    assert 0 < purged.in_flight < MANY
    assert harness.deliveries() == []
    harness.engine.check_conservation()
    assert finish(harness) > 2
    assert (purged, harness.stats().purge_count) == (Purged(0, 0, MANY), MANY)
    assert harness.bodies() == [b"new"]
    harness.engine.consuming.ack(taken, MANY, harness.now)  # too late, and forgiven
    assert harness.engine.late_settles == 1


def test_what_is_acked_while_many_are_purged_counts_as_acked(
    harness: EngineHarness, taken: int
) -> None:
    purged = purge_in_flight(harness)
    harness.engine.consuming.ack(taken, MANY, harness.now)
    finish(harness)
    assert (purged.in_flight, harness.stats().ack_count) == (MANY - 1, 1)
    harness.engine.check_conservation()


@pytest.mark.parametrize("give_back", [leave, requeue, recover, release])
def test_what_is_given_back_while_many_are_purged_is_purged(
    harness: EngineHarness, taken: int, give_back: object
) -> None:
    purged = purge_in_flight(harness)
    if give_back is leave:
        leave(harness, taken)
    else:
        harness.engine.consuming.nack(taken, MANY, harness.now)
        harness.engine.consuming.nack(taken, MANY - 1, harness.now, delay=5.0)
    finish(harness)
    stats = harness.stats()
    assert (purged.in_flight, stats.ready, stats.deferred, stats.in_flight) == (MANY, 0, 0, 0)
    harness.engine.check_conservation()


def test_what_times_out_while_many_are_purged_is_purged(harness: EngineHarness, taken: int) -> None:
    purged = purge_in_flight(harness)
    harness.advance(3_600.0)
    finish(harness)
    assert (purged.in_flight, harness.stats().ready) == (MANY, 0)


def test_many_acked_at_once_are_gone_in_steps(harness: EngineHarness, taken: int) -> None:
    harness.engine.consuming.ack(taken, MANY, harness.now, multiple=True)
    assert 0 < harness.stats().ack_count < MANY
    leave(harness, taken)  # they are settled all the same
    finish(harness)
    assert (harness.stats().ack_count, harness.stats().ready) == (MANY, 0)
    harness.engine.check_conservation()


def test_many_acked_of_more_leave_the_rest_in_flight(harness: EngineHarness, taken: int) -> None:
    harness.engine.consuming.ack(taken, MANY - 100, harness.now, multiple=True)
    with pytest.raises(ReplyError, match="unknown delivery tag"):  # though some are still to go
        harness.engine.consuming.ack(taken, MANY - 100, harness.now)
    finish(harness)
    assert (harness.stats().ack_count, harness.stats().in_flight) == (MANY - 100, 100)
    harness.engine.consuming.ack(taken, MANY - 99, harness.now)
    harness.engine.consuming.ack(taken, 0, harness.now, multiple=True)
    assert (harness.stats().ack_count, harness.stats().in_flight) == (MANY, 0)
    harness.engine.check_conservation()


def test_many_rejected_at_once_become_dead_letters_in_their_order(
    harness: EngineHarness, taken: int
) -> None:
    harness.engine.consuming.nack(taken, MANY, harness.now, multiple=True, requeue=False)
    assert 0 < harness.stats("dead").ready < MANY
    finish(harness)
    assert harness.drain("dead") == numbered(MANY)
    harness.engine.check_conservation()


def test_many_that_expire_at_once_die_in_steps_and_none_is_delivered(
    harness: EngineHarness,
) -> None:
    harness.queue("dead")
    harness.queue(message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    published(harness)
    harness.advance(1.0)
    harness.consume()
    assert 0 < harness.stats("dead").ready < MANY
    assert harness.deliveries() == []
    harness.publish(a_message(body=b"new"))
    assert finish(harness) > 2
    assert harness.bodies() == [b"new"]
    assert harness.drain("dead") == numbered(MANY)


def test_a_get_where_many_have_expired_has_the_first_that_has_not(harness: EngineHarness) -> None:
    harness.queue("dead")
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    published(harness, expiration="1000")
    harness.publish(a_message(body=b"lasting"))
    harness.now += 1.0
    delivery = harness.get()
    assert delivery is not None
    assert delivery.body == b"lasting"
    finish(harness)
    assert harness.stats("dead").ready == MANY


def test_many_deferred_that_are_run_by_their_ids_come_in_steps_by_their_time(
    harness: EngineHarness,
) -> None:
    harness.queue()
    for number in range(MANY):
        later = {"x-delay": 90_000 - number}
        message = a_message(body=b"%d" % number, headers=later)
        harness.engine.publishing.publish(harness.channel, message, harness.now)
    ids = [message.id for message in harness.engine.admin.deferred("/", "q", most=MANY)]
    assert harness.engine.admin.run_deferred("/", "q", harness.now, ids[:-1]) == MANY - 1
    assert harness.stats().deferred > 1
    finish(harness)
    assert (harness.stats().ready, harness.stats().deferred) == (MANY - 1, 1)
    assert harness.drain() == numbered(MANY)[:0:-1]
    harness.engine.check_conservation()


def test_the_longest_in_flight_are_listed_first_over_all_channels(harness: EngineHarness) -> None:
    harness.queue("other")
    harness.queue()
    published(harness, 6)
    harness.publish(a_message("other"))
    channels = [harness.channel, harness.another_channel()]
    harness.get("other")
    for number in range(6):
        harness.now += 1.0
        harness.engine.consuming.get(channels[number % 2], "q", harness.now)
    listed = harness.engine.admin.in_flight("/", "q", most=4)
    assert [message.delivered_at for message in listed] == [harness.now - 5 + n for n in range(4)]


def test_many_of_several_queues_go_back_and_each_declaration_counts_its_own(
    harness: EngineHarness,
) -> None:
    """From a consumer, one that was cancelled, and basic.get."""
    channel = harness.another_channel()
    for name in ("one", "two", "three"):
        harness.queue(name)
        harness.publish(*(a_message(name, body=body) for body in numbered(400)))
    for name in ("one", "two"):
        harness.engine.consuming.consume(channel, name, harness.now, consumer_tag=name)
        finish(harness)
    for _ in range(400):
        harness.engine.consuming.get(channel, "three", harness.now)
    harness.engine.consuming.cancel(channel, "one", harness.now)
    harness.take()
    leave(harness, channel)
    topology = harness.engine.topology
    for name in ("one", "two", "three"):
        assert topology.check_queue(harness.channel, name, harness.now).message_count == 400
    harness.consume("three")
    assert harness.deliveries() == []
    assert finish(harness) >= 3
    assert harness.bodies() == numbered(400)
    for name in ("one", "two"):
        assert harness.drain(name) == numbered(400)
