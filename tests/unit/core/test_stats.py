"""What the engine tells of its queues and consumers ."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker_client.core.latency import NO_LATENCY, LatencyWindow
from tests.support.builders import EngineHarness, a_message


def test_a_queue_counts_first_puts_only_and_knows_its_bytes(harness: EngineHarness) -> None:
    """requeues and time-outs are no new messages."""
    harness.queue()
    harness.publish(a_message(body=b"12345"), a_message(body=b"678"))
    harness.get()
    harness.nack(1)
    harness.get()
    harness.advance(60.0)
    harness.get()
    stats = harness.stats()
    assert (stats.message_count, stats.message_bytes) == (2, 8)
    assert (stats.requeue_count, stats.timeout_count, stats.deliver_count) == (1, 1, 3)
    assert (stats.ready, stats.in_flight, stats.deferred) == (1, 1, 0)


@pytest.mark.parametrize("arguments", [{}, {"max_length": 9}, {"max_priority": 9}])
def test_bytes_of_all_messages_add_up_in_a_queue_of_any_kind(
    harness: EngineHarness, arguments: dict[str, Any]
) -> None:
    harness.queue(**arguments)
    harness.publish(a_message(body=b"12345"), a_message(body=b"678"))
    assert harness.stats().message_bytes == 8
    assert harness.engine.state.paging.resident_bytes == 8
    harness.get(no_ack=True)
    assert harness.engine.state.paging.resident_bytes == 3


def test_age_of_the_oldest_is_that_of_the_head_and_none_without_one(harness: EngineHarness) -> None:
    harness.queue()
    harness.now = 100.0

    def oldest() -> float:
        return harness.engine.stats(harness.now)[0].oldest

    assert oldest() == 0.0
    harness.publish(a_message())
    harness.now += 7.0
    harness.publish(a_message())
    assert oldest() == 7.0
    harness.get(no_ack=True)
    assert oldest() == 0.0
    harness.now += 3.0
    assert oldest() == 3.0


def test_a_consumer_counts_what_it_did(harness: EngineHarness) -> None:
    harness.queue()
    harness.engine.consuming.qos(harness.channel, 10)
    began = harness.now
    tag = harness.consume(arguments={"x-priority": 3})
    harness.publish(*(a_message() for _ in range(8)))
    harness.ack(1)
    harness.nack(2, delay=100.0)
    harness.nack(8, delay=100.0)
    harness.nack(3, requeue=False)
    harness.nack(7, requeue=False)
    harness.engine.consuming.finish(harness.channel, 4, harness.now)
    harness.advance(60.0)
    (consumer,) = harness.stats().consumer_stats
    assert (consumer.consumer_tag, consumer.channel, consumer.since) == (
        tag,
        harness.channel,
        began,
    )
    assert (consumer.prefetch, consumer.priority, consumer.active) == (10, 3, True)
    assert (consumer.ack_count, consumer.requeue_count, consumer.reject_count) == (2, 2, 2)
    assert (consumer.timeout_count, consumer.in_flight) == (2, 2)
    assert consumer.message_count == 10


def test_a_consumer_without_acks_counts_what_it_was_sent(harness: EngineHarness) -> None:
    harness.queue()
    harness.consume(no_ack=True)
    harness.publish(a_message(), a_message())
    (consumer,) = harness.stats().consumer_stats
    assert (consumer.message_count, consumer.ack_count, consumer.in_flight) == (2, 2, 0)


def test_snapshots_do_not_change(harness: EngineHarness) -> None:
    harness.queue()
    before = harness.stats()
    harness.publish(a_message())
    assert before.ready == 0
    with pytest.raises(AttributeError):
        before.ready = 1  # type: ignore[misc]


# --------------------------------------------------------------------- latency


def test_latency_is_from_acceptance_to_ack_whatever_lies_between(harness: EngineHarness) -> None:
    """at FIN, from when it was published; from its due time if it was delayed."""
    harness.queue()
    harness.publish(a_message())
    harness.get()
    harness.advance(2.0)
    harness.nack(1)
    harness.get()
    harness.advance(2.0)
    harness.ack(2)
    harness.publish(a_message(headers={"x-delay": 10_000}))
    harness.advance(10.0)
    harness.get()
    harness.advance(1.0)
    harness.ack(3)
    latency = harness.stats().latency
    assert latency.count == 2
    assert latency.at(0.5) == pytest.approx(1.0, rel=0.01)
    assert latency.at(0.99) == pytest.approx(4.0, rel=0.01)
    assert latency.at(0.1) is None


def test_latencies_are_those_of_the_window_before_the_question(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message())
    harness.get()
    harness.ack(1)
    assert harness.engine.stats(harness.now)[0].latency.count == 1
    assert harness.engine.stats(harness.now + 1_500.0)[0].latency.count == 0


def test_a_window_of_zero_keeps_no_latency() -> None:
    harness = EngineHarness(latency_window=0.0)
    harness.queue()
    harness.publish(a_message())
    harness.get()
    harness.ack(1)
    assert harness.stats().latency == NO_LATENCY


def test_percentiles_are_within_one_percent() -> None:
    rng = random.Random(1)
    samples = [rng.lognormvariate(-5, 2) for _ in range(20_000)]
    window = LatencyWindow(60.0)
    for sample in samples:
        window.add(sample, 0.0)
    stats = window.stats(0.0, (0.5, 0.99, 0.999))
    assert stats.count == 20_000
    ordered = sorted(samples)
    for quantile, value in stats.percentiles:
        assert value == pytest.approx(ordered[int(quantile * 20_000)], rel=0.01)


@pytest.mark.parametrize(
    ("now", "count"), [(29.0, 1), (30.0, 1), (59.0, 1), (60.0, 0), (1_000.0, 0)]
)
def test_samples_leave_the_window(now: float, count: int) -> None:
    window = LatencyWindow(60.0)
    window.add(0.5, 0.0)
    assert window.stats(now).count == count


def test_a_window_slides_by_halves() -> None:
    window = LatencyWindow(60.0)
    for second in range(120):
        window.add(1.0 if second < 60 else 2.0, float(second))
    stats = window.stats(119.0)
    assert 30 <= stats.count <= 60
    assert stats.at(0.5) == pytest.approx(2.0, rel=0.01)


def test_no_time_at_all_is_a_time() -> None:
    window = LatencyWindow(60.0)
    window.add(0.0, 0.0)
    stats = window.stats(0.0)
    assert stats.count == 1
    assert stats.at(0.99) == pytest.approx(0.0, abs=1e-6)
