"""Commands that touch many messages or queues: done at once for others to see, in steps beneath."""

from __future__ import annotations

import pytest

from broker_client.core.policies import Policy
from broker_client.core.records import Settled, VHostRemoved
from broker_client.message import PERSISTENT
from tests.support.builders import EngineHarness, a_message

STEP = 1_000


def filled(harness: EngineHarness, count: int, **options: object) -> None:
    harness.queue(**options)  # type: ignore[arg-type]
    for number in range(count):
        harness.publish(a_message(body=b"%d" % number, delivery_mode=PERSISTENT))
    harness.take()


def test_a_purge_of_many_counts_all_at_once_and_frees_them_in_steps(harness: EngineHarness) -> None:
    filled(harness, 2_500)
    assert harness.engine.topology.purge_queue(harness.channel, "q") == 2_500
    assert (harness.stats().ready, harness.stats().purge_count) == (0, 2_500)
    harness.engine.check_conservation()
    resident = harness.engine.state.paging.resident_bytes
    assert resident > 0
    harness.publish(a_message(body=b"new"))
    assert harness.finish() == 2
    assert harness.engine.state.paging.resident_bytes == len(b"new")
    assert harness.drain() == [b"new"]


def test_a_purge_of_few_is_done_with_the_command(harness: EngineHarness) -> None:
    filled(harness, STEP - 1)
    harness.engine.topology.purge_queue(harness.channel, "q")
    assert not harness.engine.long_work.is_pending
    assert harness.engine.state.paging.resident_bytes == 0


def test_the_records_of_a_purge_come_step_by_step_from_the_head() -> None:
    """After a crash in between, the last of the queue are there, in order."""
    harness = EngineHarness(keep_records=True)
    filled(harness, 1_500)
    harness.engine.topology.purge_queue(harness.channel, "q")
    first = [record.record_id for record in harness.take() if isinstance(record, Settled)]
    harness.finish()
    rest = [record.record_id for record in harness.take() if isinstance(record, Settled)]
    assert (len(first), len(rest)) == (STEP, 500)
    assert first + rest == sorted(first + rest)


def test_a_queue_with_many_is_gone_at_once_and_may_be_declared_anew(harness: EngineHarness) -> None:
    filled(harness, 2_500)
    assert harness.engine.topology.delete_queue(harness.channel, "q") == 2_500
    assert harness.engine.queue_count == 0
    harness.queue()
    harness.publish(a_message(body=b"new"))
    assert harness.finish() == 2
    assert harness.drain() == [b"new"]


def test_deferred_ones_are_dropped_in_steps_too(harness: EngineHarness) -> None:
    harness.queue()
    for _ in range(1_500):
        harness.engine.publishing.publish(
            harness.channel, a_message(headers={"x-delay": 60_000}), harness.now
        )
    assert harness.stats().deferred == 1_500
    purged = harness.engine.admin.purge("/", "q", harness.now, deferred=True)
    assert (purged.deferred, harness.stats().deferred) == (1_500, 0)
    assert harness.finish() == 1
    harness.advance(3_600.0)
    assert harness.drain() == []


def test_deferred_ones_that_are_run_come_to_the_tail_in_steps_by_their_time(
    harness: EngineHarness,
) -> None:
    harness.queue()
    for number in range(1_200):
        message = a_message(body=b"%d" % number, headers={"x-delay": 90_000 - number})
        harness.engine.publishing.publish(harness.channel, message, harness.now)
    assert harness.engine.admin.run_deferred("/", "q", harness.now) == 1_200
    assert (harness.stats().ready, harness.stats().deferred) == (250, 950)
    assert harness.finish() == 4
    harness.advance(0.0)
    assert harness.drain() == [b"%d" % number for number in reversed(range(1_200))]
    harness.engine.check_conservation()


def test_a_vhost_is_gone_at_once_with_all_its_queues() -> None:
    harness = EngineHarness(keep_records=True)
    for number in range(30):
        name = harness.queue(f"q{number}")
        harness.bind(name, "amq.topic", f"{name}.#")
        harness.publish(*(a_message(name, delivery_mode=PERSISTENT) for _ in range(100)))
    harness.engine.close_connection(harness.connection, harness.now)
    harness.take()
    harness.engine.delete_vhost("/")
    kinds = [type(record) for record in harness.take()]
    assert kinds == [VHostRemoved]
    assert (harness.engine.queue_count, harness.engine.long_work.is_pending) == (0, True)
    harness.engine.add_vhost("/")
    assert harness.finish() == 3
    assert harness.engine.state.paging.resident_bytes == 0
    assert not [record for record in harness.take() if isinstance(record, Settled)]


def set_length(harness: EngineHarness, most: int, pattern: str = ".*") -> None:
    policy = Policy("/", "length", pattern, {"max-length": most})
    harness.engine.policies.set_policy(policy, harness.now)


def lengths(harness: EngineHarness) -> list[int | None]:
    queues = harness.engine.state.vhosts["/"].queues.values()
    return [queue.settings.max_length for queue in queues]


def test_a_policy_on_many_queues_reaches_them_step_by_step(harness: EngineHarness) -> None:
    for number in range(250):
        harness.queue(f"q{number}")
    set_length(harness, 5)
    assert 0 < lengths(harness).count(5) < 150
    harness.engine.topology.delete_queue(harness.channel, "q249")
    harness.queue("new")
    assert lengths(harness)[-1] == 5  # what is declared meanwhile does from its start
    assert harness.finish() == 2
    assert lengths(harness) == [5] * 250


def test_of_two_changes_of_a_policy_the_last_holds_everywhere(harness: EngineHarness) -> None:
    for number in range(250):
        harness.queue(f"q{number}")
    set_length(harness, 5)
    set_length(harness, 7)
    harness.finish()
    assert lengths(harness) == [7] * 250
    assert harness.engine.policies.delete_policy("/", "length", harness.now, is_operator=False)
    harness.finish()
    assert lengths(harness) == [None] * 250


def test_what_is_beyond_a_new_length_dies_in_steps_and_is_delivered_to_nobody(
    harness: EngineHarness,
) -> None:
    harness.queue("dead")
    filled(harness, 350, dead_letter_exchange="", dead_letter_routing_key="dead")
    set_length(harness, 10, "^q$")
    assert (harness.stats().ready, harness.stats("dead").ready) == (325, 25)
    harness.consume()
    assert harness.deliveries() == []
    turns = 0
    while harness.engine.is_unfinished:
        harness.engine.proceed(harness.now)
        turns += 1
    assert turns == 13
    assert harness.bodies() == [b"%d" % number for number in range(340, 350)]
    assert harness.stats("dead").ready == 340


@pytest.mark.parametrize("end", ["delete", "purge", "pause"])
def test_a_queue_that_is_too_long_may_be_ended_in_between(harness: EngineHarness, end: str) -> None:
    filled(harness, 350)
    set_length(harness, 10)
    if end == "delete":
        harness.engine.topology.delete_queue(harness.channel, "q")
    elif end == "purge":
        harness.engine.topology.purge_queue(harness.channel, "q")
    else:
        harness.engine.admin.pause_queue("/", "q")
    while harness.engine.is_unfinished:
        harness.engine.proceed(harness.now)
    left = [stats.ready for stats in harness.engine.stats()]
    assert left == {"delete": [], "purge": [0], "pause": [10]}[end]
    harness.engine.check_conservation()
