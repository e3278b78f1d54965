"""What the engine tells of its queues and consumers ."""

from __future__ import annotations

import random

import pytest

from broker_client.core.latency import NO_LATENCY, LatencyWindow
from tests.support.builders import Desk, a_message


def test_a_queue_counts_first_puts_only_and_knows_its_bytes(desk: Desk) -> None:
    """requeues and time-outs are no new messages."""
    desk.queue()
    desk.publish(a_message(body=b"12345"), a_message(body=b"678"))
    desk.get()
    desk.nack(1)
    desk.get()
    desk.advance(60.0)
    desk.get()
    stats = desk.stats()
    assert (stats.message_count, stats.message_bytes) == (2, 8)
    assert (stats.requeue_count, stats.timeout_count, stats.deliver_count) == (1, 1, 3)
    assert (stats.ready, stats.in_flight, stats.deferred) == (1, 1, 0)


def test_a_consumer_counts_what_it_did(desk: Desk) -> None:
    desk.queue()
    desk.engine.qos(desk.channel, 10)
    began = desk.now
    tag = desk.consume(arguments={"x-priority": 3})
    desk.publish(*(a_message() for _ in range(6)))
    desk.ack(1)
    desk.nack(2, delay=100.0)
    desk.nack(3, requeue=False)
    desk.engine.finish(desk.channel, 4, desk.now)
    desk.advance(60.0)
    (consumer,) = desk.stats().consumer_stats
    assert (consumer.consumer_tag, consumer.channel, consumer.since) == (tag, desk.channel, began)
    assert (consumer.prefetch, consumer.priority, consumer.active) == (10, 3, True)
    assert (consumer.ack_count, consumer.requeue_count, consumer.reject_count) == (2, 1, 1)
    assert (consumer.timeout_count, consumer.in_flight) == (2, 2)
    assert consumer.message_count == 8


def test_a_consumer_without_acks_counts_what_it_was_sent(desk: Desk) -> None:
    desk.queue()
    desk.consume(no_ack=True)
    desk.publish(a_message(), a_message())
    (consumer,) = desk.stats().consumer_stats
    assert (consumer.message_count, consumer.ack_count, consumer.in_flight) == (2, 2, 0)


def test_snapshots_do_not_change(desk: Desk) -> None:
    desk.queue()
    before = desk.stats()
    desk.publish(a_message())
    assert before.ready == 0
    with pytest.raises(AttributeError):
        before.ready = 1  # type: ignore[misc]


# --------------------------------------------------------------------- latency


def test_latency_is_from_acceptance_to_ack_whatever_lies_between(desk: Desk) -> None:
    """at FIN, from when it was published; from its due time if it was delayed."""
    desk.queue()
    desk.publish(a_message())
    desk.get()
    desk.advance(2.0)
    desk.nack(1)
    desk.get()
    desk.advance(2.0)
    desk.ack(2)
    desk.publish(a_message(headers={"x-delay": 10_000}))
    desk.advance(10.0)
    desk.get()
    desk.advance(1.0)
    desk.ack(3)
    latency = desk.stats().latency
    assert latency.count == 2
    assert latency.at(0.5) == pytest.approx(1.0, rel=0.01)
    assert latency.at(0.99) == pytest.approx(4.0, rel=0.01)
    assert latency.at(0.1) is None


def test_a_window_of_zero_keeps_no_latency() -> None:
    desk = Desk(latency_window=0.0)
    desk.queue()
    desk.publish(a_message())
    desk.get()
    desk.ack(1)
    assert desk.stats().latency == NO_LATENCY


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
