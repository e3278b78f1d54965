"""A queue emptied wherever its messages are, and a queue that rests."""

from __future__ import annotations

import pytest

from broker_client.core.settle_results import NotInFlight
from broker_client.core.snapshots import Purged
from tests.support.builders import EngineHarness, a_message


def three_of_each(harness: EngineHarness) -> None:
    """Three ready, three deferred, three in flight with a consumer of prefetch three."""
    harness.queue()
    harness.publish(*(a_message(body=b"%d" % n) for n in range(9)))
    harness.take()
    for tag in (1, 2, 3):
        harness.get()
        harness.nack(tag, delay=600.0)
    harness.engine.consuming.qos(harness.channel, 3)
    harness.consume()
    harness.take()
    stats = harness.stats()
    assert (stats.ready, stats.deferred, stats.in_flight) == (3, 3, 3)


def test_a_purge_takes_all_three_places_and_nothing_comes_back(harness: EngineHarness) -> None:
    """Old settlements find nothing, and the consumer may take its prefetch again."""
    three_of_each(harness)
    purged = harness.engine.admin.purge("/", "q", harness.now, deferred=True, in_flight=True)
    assert (purged, purged.total) == (Purged(3, 3, 3), 9)
    harness.advance(3_600.0)
    assert harness.deliveries() == []
    assert harness.engine.consuming.finish(harness.channel, 4, harness.now) == NotInFlight(4)
    harness.ack(5)  # AMQP's way too: late, not wrong
    assert harness.engine.late_settles == 2
    (consumer,) = harness.stats().consumer_stats
    assert consumer.in_flight == 0
    harness.publish(*(a_message(body=b"new %d" % number) for number in range(4)))
    assert harness.bodies() == [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize(
    ("places", "counts"),
    [
        ({}, Purged(3, 0, 0)),
        ({"ready": False, "deferred": True}, Purged(0, 3, 0)),
        ({"ready": False, "in_flight": True}, Purged(0, 0, 3)),
    ],
)
def test_a_purge_takes_only_the_places_named(
    harness: EngineHarness, places: dict[str, bool], counts: Purged
) -> None:
    """AMQP's purge is of what is ready."""
    three_of_each(harness)
    assert harness.engine.admin.purge("/", "q", harness.now, **places) == counts
    assert harness.stats().purge_count == 3
    assert harness.stats().message_count == 9


def test_what_is_in_flight_elsewhere_is_no_concern_of_a_purge(harness: EngineHarness) -> None:
    three_of_each(harness)
    harness.queue("other")
    harness.publish(a_message("other"))
    harness.get("other")
    harness.engine.admin.purge("/", "q", harness.now, deferred=True, in_flight=True)
    assert harness.stats("other").in_flight == 1


# --------------------------------------------------------------------- pause


def test_a_paused_queue_delivers_nothing_and_takes_everything(harness: EngineHarness) -> None:
    """what is in flight may be settled, given back, or time out."""
    harness.queue()
    harness.consume()
    harness.publish(a_message(body=b"1"), a_message(body=b"2"), a_message(body=b"3"))
    harness.take()
    harness.engine.admin.pause_queue("/", "q")
    harness.publish(a_message(body=b"4"))
    harness.ack(1)
    harness.nack(2)
    harness.advance(60.0)
    assert harness.deliveries() == []
    assert harness.get() is None
    stats = harness.stats()
    assert (stats.paused, stats.ready, stats.ack_count, stats.timeout_count) == (True, 3, 1, 1)
    harness.engine.admin.resume_queue("/", "q", harness.now)
    assert harness.bodies() == [b"2", b"4", b"3"]
    assert not harness.stats().paused


def test_a_consumer_that_comes_while_the_queue_is_paused_waits_too(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message())
    harness.take()
    harness.engine.admin.pause_queue("/", "q")
    harness.consume()
    assert harness.deliveries() == []
    harness.engine.admin.resume_queue("/", "q", harness.now)
    assert len(harness.deliveries()) == 1


def test_messages_of_a_paused_queue_expire_nevertheless(harness: EngineHarness) -> None:
    harness.queue(message_ttl=100)
    harness.consume()
    harness.engine.admin.pause_queue("/", "q")
    harness.publish(a_message())
    harness.advance(0.1)
    assert harness.stats().drop_count == 1
