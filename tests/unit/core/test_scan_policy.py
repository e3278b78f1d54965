"""nsq's scan loop as a policy ."""

from __future__ import annotations

import pytest

from broker_client.core.scan import ScanPolicy, ScanSettings, ideal_pool_size
from tests.support.builders import EngineHarness, a_message


def test_the_defaults_are_nsqs() -> None:
    assert ScanSettings() == ScanSettings(
        interval=0.1,
        refresh_interval=5.0,
        selection_count=20,
        dirty_percent=0.25,
        worker_pool_max=4,
    )


@pytest.mark.parametrize(
    ("queues", "workers"), [(0, 1), (1, 1), (4, 1), (7, 1), (8, 2), (12, 3), (16, 4), (100, 4)]
)
def test_a_quarter_of_the_queues_work_at_least_one_at_most_four(queues: int, workers: int) -> None:
    """nsq's resize table."""
    assert ideal_pool_size(queues, 4) == workers


def test_the_pool_follows_the_queues_once_a_refresh_interval() -> None:
    policy = ScanPolicy(ScanSettings())
    policy.refresh(100, 0.0)
    assert policy.workers == 4
    policy.refresh(1, 4.9)
    assert policy.workers == 4
    policy.refresh(1, 5.0)
    assert policy.workers == 1


@pytest.mark.parametrize(
    ("chosen", "dirty", "again"), [(0, 0, False), (20, 5, False), (20, 6, True), (1, 1, True)]
)
def test_more_than_a_quarter_dirty_looks_again_at_once(
    chosen: int, dirty: int, again: bool
) -> None:
    """a strict `>`."""
    assert ScanPolicy(ScanSettings()).again(chosen, dirty) is again


def test_a_dirty_percent_of_one_never_looks_again_at_once() -> None:
    assert not ScanPolicy(ScanSettings(dirty_percent=1.0)).again(20, 20)


def test_the_last_look_of_a_selection_makes_the_interval_a_busy_one() -> None:
    policy = ScanPolicy(ScanSettings(interval=1.0, selection_count=2))
    for start in (0.0, 1.0):  # the next interval begins as one ends
        policy.look(start)
        assert policy.wake_at(start + 0.5) == start + 0.5
        policy.look(start + 0.5)
        assert policy.wake_at(start + 0.75) == start + 1.0


def test_few_deadlines_are_met_when_they_come() -> None:
    """exact timers."""
    policy = ScanPolicy(ScanSettings())
    policy.look(10.0)
    assert policy.wake_at(10.003) == 10.003


def test_many_deadlines_wait_for_the_end_of_the_interval_and_no_longer() -> None:
    """as many wake-ups an interval as a selection has queues."""
    policy = ScanPolicy(ScanSettings())
    for n in range(20):
        policy.look(10.0 + n / 1000)
    assert policy.wake_at(10.020) == 10.1
    assert policy.wake_at(10.5) == 10.5
    policy.look(10.1)
    assert policy.wake_at(10.101) == 10.101


def test_after_a_selection_that_was_clean_it_waits_for_the_next_interval() -> None:
    policy = ScanPolicy(ScanSettings())
    policy.look(10.0)
    policy.rest()
    assert policy.wake_at(10.0) == 10.1


# --------------------------------------------------------------------- what is chosen


def due_queues(harness: EngineHarness, count: int) -> None:
    """`count` queues with a deferred message each, the last due first, and as many idle ones."""
    for n in range(count):
        harness.queue(f"q{n}")
        harness.queue(f"idle{n}")
        delay = (count - n) * 10
        harness.publish(a_message(f"q{n}", headers={"x-delay": delay}))
    harness.now += count * 0.01
    harness.take()


def test_a_scan_chooses_those_that_are_due_longest_overdue_first_each_once(
    harness: EngineHarness,
) -> None:
    """never one that has nothing due."""
    due_queues(harness, 5)
    harness.now -= 0.01  # the first is not due
    assert harness.engine.scan(harness.now, 3) == (3, 3)
    assert [name for name in "01234" if harness.stats(f"q{name}").ready] == ["2", "3", "4"]
    assert harness.engine.scan(harness.now, 3) == (1, 1)
    assert harness.engine.scan(harness.now, 3) == (0, 0)
    assert harness.engine.next_deadline() == pytest.approx(harness.now + 0.01)


def test_what_was_settled_in_time_does_not_use_up_a_selection(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(*(a_message() for _ in range(40)))
    for n in range(40):
        channel = harness.another_channel()
        harness.engine.consuming.get(channel, "q", harness.now)
        if n < 39:
            harness.engine.consuming.ack(channel, 1, harness.now)
    harness.now += 60.0
    assert harness.engine.scan(harness.now, 20) == (1, 1)
    assert harness.stats().timeout_count == 1


def test_one_queue_with_very_much_due_is_handled_in_parts(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(*(a_message() for _ in range(2_500)))
    for _ in range(2_500):
        harness.get()
    harness.now += 60.0
    counts = []
    while harness.engine.scan(harness.now, 20)[1]:
        counts.append(harness.stats().timeout_count)
    assert counts == list(range(250, 2_501, 250))


def test_timeouts_of_many_channels_are_all_found(harness: EngineHarness) -> None:
    """nsq's TestInFlightWorker, 250 messages."""
    harness.queue()
    ids = [b"%d" % number for number in range(250)]
    harness.publish(*(a_message(body=id) for id in ids))
    for _ in range(25):
        channel = harness.another_channel()
        for _ in range(10):
            harness.engine.consuming.get(channel, "q", harness.now)
    harness.now += 60.0
    while harness.engine.scan(harness.now, 20)[0]:
        pass
    stats = harness.stats()
    assert (stats.timeout_count, stats.requeue_count, stats.ready) == (250, 0, 250)
    again = [harness.get() for _ in ids]
    assert sorted((each.body, each.attempts) for each in again if each is not None) == sorted(
        (id, 2) for id in ids
    )


def test_a_deleted_queue_is_not_dirty(harness: EngineHarness) -> None:
    due_queues(harness, 2)
    harness.engine.topology.delete_queue(harness.channel, "q0")
    assert harness.engine.scan(harness.now, 20) == (1, 1)
