"""A queue emptied wherever its messages are, and a queue that rests."""

from __future__ import annotations

import pytest

from broker_client.core.outcomes import NotInFlight
from broker_client.core.snapshots import Purged
from tests.support.builders import Desk, a_message


def three_of_each(desk: Desk) -> None:
    """Three ready, three deferred, three in flight with a consumer of prefetch three."""
    desk.queue()
    desk.publish(*(a_message(body=b"%d" % n) for n in range(9)))
    desk.take()
    for tag in (1, 2, 3):
        desk.get()
        desk.nack(tag, delay=600.0)
    desk.engine.qos(desk.channel, 3)
    desk.consume()
    desk.take()
    stats = desk.stats()
    assert (stats.ready, stats.deferred, stats.in_flight) == (3, 3, 3)


def test_a_purge_takes_all_three_places_and_nothing_comes_back(desk: Desk) -> None:
    """G10: old settlements find nothing, and the consumer may take its prefetch again."""
    three_of_each(desk)
    purged = desk.engine.purge("/", "q", desk.now, deferred=True, in_flight=True)
    assert (purged, purged.total) == (Purged(3, 3, 3), 9)
    desk.advance(3_600.0)
    assert desk.deliveries() == []
    assert desk.engine.finish(desk.channel, 4, desk.now) == NotInFlight(4)
    desk.ack(5)  # AMQP's way too: late, not wrong
    assert desk.engine.late_settles == 2
    (consumer,) = desk.stats().consumer_stats
    assert consumer.in_flight == 0
    desk.publish(*(a_message(body=b"new %d" % number) for number in range(4)))
    assert desk.bodies() == [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize(
    ("places", "counts"),
    [
        ({}, Purged(3, 0, 0)),
        ({"ready": False, "deferred": True}, Purged(0, 3, 0)),
        ({"ready": False, "in_flight": True}, Purged(0, 0, 3)),
    ],
)
def test_a_purge_takes_only_the_places_named(
    desk: Desk, places: dict[str, bool], counts: Purged
) -> None:
    """AMQP's purge is of what is ready."""
    three_of_each(desk)
    assert desk.engine.purge("/", "q", desk.now, **places) == counts
    assert desk.stats().purge_count == 3
    assert desk.stats().message_count == 9


def test_what_is_in_flight_elsewhere_is_no_concern_of_a_purge(desk: Desk) -> None:
    three_of_each(desk)
    desk.queue("other")
    desk.publish(a_message("other"))
    desk.get("other")
    desk.engine.purge("/", "q", desk.now, deferred=True, in_flight=True)
    assert desk.stats("other").in_flight == 1


# --------------------------------------------------------------------- pause


def test_a_paused_queue_delivers_nothing_and_takes_everything(desk: Desk) -> None:
    """what is in flight may be settled, given back, or time out."""
    desk.queue()
    desk.consume()
    desk.publish(a_message(body=b"1"), a_message(body=b"2"), a_message(body=b"3"))
    desk.take()
    desk.engine.pause_queue("/", "q")
    desk.publish(a_message(body=b"4"))
    desk.ack(1)
    desk.nack(2)
    desk.advance(60.0)
    assert desk.deliveries() == []
    assert desk.get() is None
    stats = desk.stats()
    assert (stats.paused, stats.ready, stats.ack_count, stats.timeout_count) == (True, 3, 1, 1)
    desk.engine.resume_queue("/", "q", desk.now)
    assert desk.bodies() == [b"2", b"4", b"3"]
    assert not desk.stats().paused


def test_a_consumer_that_comes_while_the_queue_is_paused_waits_too(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message())
    desk.take()
    desk.engine.pause_queue("/", "q")
    desk.consume()
    assert desk.deliveries() == []
    desk.engine.resume_queue("/", "q", desk.now)
    assert len(desk.deliveries()) == 1


def test_messages_of_a_paused_queue_expire_all_the_same(desk: Desk) -> None:
    desk.queue(message_ttl=100)
    desk.consume()
    desk.engine.pause_queue("/", "q")
    desk.publish(a_message())
    desk.advance(0.1)
    assert desk.stats().drop_count == 1
