"""TTL, lengths, and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.core.exchange import Destination
from broker_client.core.settings import RabbitMQVersion
from broker_client.errors import ReplyError
from tests.support.builders import EngineHarness, a_message


def with_dead_letter_queue(harness: EngineHarness, **arguments: Any) -> None:
    """Queue ``q`` whose dead go to ``dead``."""
    harness.queue("dead")
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


def dead_letter_headers(harness: EngineHarness, queue: str = "dead") -> dict[str, Any]:
    delivery = harness.get(queue, no_ack=True)
    assert delivery is not None
    return dict(delivery.properties.headers or {})


# --------------------------------------------------------------------- TTL


def test_a_queue_ttl_drops_what_waits_too_long(harness: EngineHarness) -> None:
    harness.queue(message_ttl=1000)
    harness.publish(a_message())
    assert harness.engine.next_deadline() == harness.now + 1.0
    harness.advance(0.9)
    assert harness.stats().ready == 1
    harness.advance(0.1)
    assert (harness.stats().ready, harness.stats().drop_count) == (0, 1)
    assert harness.engine.next_deadline() is None


def test_the_earlier_of_queue_ttl_and_expiration_counts(harness: EngineHarness) -> None:
    harness.queue(message_ttl=1000)
    harness.publish(a_message(expiration="3000"))
    assert harness.engine.next_deadline() == harness.now + 1.0
    harness.drain()
    harness.publish(a_message(expiration="300"))
    assert harness.engine.next_deadline() == harness.now + 0.3


def test_a_message_expires_only_at_the_head(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(body=b"long", expiration="9000"), a_message(expiration="10"))
    harness.advance(1.0)
    assert harness.stats().ready == 2
    assert harness.drain() == [b"long"]


def test_expiration_zero_reaches_a_waiting_consumer_and_nobody_else(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(expiration="0"))
    assert harness.get() is None
    harness.consume()
    harness.publish(a_message(body=b"now", expiration="0"))
    assert harness.bodies() == [b"now"]


def test_an_expired_message_is_never_delivered_even_before_the_tick(harness: EngineHarness) -> None:
    harness.queue(message_ttl=1000)
    harness.publish(a_message())
    harness.now += 1.0
    harness.consume()
    assert harness.bodies() == []
    assert harness.stats().drop_count == 1


def test_a_message_in_flight_does_not_expire_and_keeps_its_time_when_requeued(
    harness: EngineHarness,
) -> None:
    harness.queue(message_ttl=1000)
    harness.publish(a_message())
    harness.get()
    harness.advance(2.0)
    assert harness.stats().in_flight == 1
    harness.nack(1)
    assert (harness.stats().ready, harness.stats().drop_count) == (0, 1)


# --------------------------------------------------------------------- length


def test_drop_head_drops_the_oldest_and_confirms_the_new(harness: EngineHarness) -> None:
    harness.queue(max_length=2)
    harness.publish(*(a_message(body=body) for body in (b"1", b"2", b"3")))
    assert harness.confirms() == [(1, 3, True)]
    assert harness.drain() == [b"2", b"3"]


def test_reject_publish_nacks_the_new(harness: EngineHarness) -> None:
    harness.queue(max_length=2, overflow="reject-publish")
    harness.publish(*(a_message(body=body) for body in (b"1", b"2", b"3")))
    assert harness.confirms() == [(1, 2, True), (3, 3, False)]
    assert harness.drain() == [b"1", b"2"]


def test_reject_publish_dlx_also_dead_letters_the_new(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness, max_length=1, overflow="reject-publish-dlx")
    harness.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert harness.confirms() == [(1, 1, True), (2, 2, False)]
    assert (harness.drain("q"), harness.drain("dead")) == ([b"1"], [b"2"])


def test_one_refusing_queue_of_two_nacks_the_publish(harness: EngineHarness) -> None:
    harness.queue("r")
    harness.queue(max_length=0, overflow="reject-publish")
    for queue in ("q", "r"):
        harness.bind(queue, "amq.fanout", "", {})
    harness.publish(a_message(exchange="amq.fanout"))
    assert harness.confirms() == [(1, 1, False)]
    assert harness.drain("r") == [b"hello"]


def test_max_length_bytes_counts_the_bodies_that_are_ready(harness: EngineHarness) -> None:
    harness.queue(max_length_bytes=10)
    harness.publish(a_message(body=b"12345"), a_message(body=b"67890"), a_message(body=b"x"))
    assert harness.drain() == [b"67890", b"x"]


def test_bytes_that_were_taken_expired_or_purged_make_room(harness: EngineHarness) -> None:
    harness.queue(max_length_bytes=10)
    harness.publish(a_message(body=b"12345"), a_message(body=b"67890", expiration="1000"))
    harness.get()
    harness.publish(a_message(body=b"abcde"))
    assert (harness.stats().ready, harness.stats().drop_count) == (2, 0)
    harness.advance(2.0)  # its time is over, and it is the head
    assert (harness.stats().ready, harness.stats().drop_count) == (1, 1)
    harness.publish(a_message(body=b"fghij"))
    assert (harness.stats().ready, harness.stats().drop_count) == (2, 1)
    assert harness.engine.topology.purge_queue(harness.channel, "q") == 2
    dropped = harness.stats().drop_count
    harness.publish(a_message(body=b"0123456789"))
    assert (harness.stats().ready, harness.stats().drop_count) == (1, dropped)


def test_reject_publish_counts_the_bytes_of_the_new_one_too(harness: EngineHarness) -> None:
    harness.queue(max_length_bytes=10, overflow="reject-publish")
    harness.publish(*(a_message(body=body) for body in (b"123456", b"12345", b"1234")))
    assert harness.confirms() == [(1, 1, True), (2, 2, False), (3, 3, True)]


def test_what_is_in_flight_does_not_count_towards_the_length(harness: EngineHarness) -> None:
    harness.queue(max_length=1)
    harness.publish(a_message(body=b"1"))
    harness.get()
    harness.publish(a_message(body=b"2"))
    assert (harness.stats().in_flight, harness.stats().ready, harness.stats().drop_count) == (
        1,
        1,
        0,
    )


def test_an_overflow_of_a_priority_queue_drops_the_lowest(harness: EngineHarness) -> None:
    harness.queue(max_length=2, max_priority=9)
    for body, priority in ((b"low", 1), (b"high", 9), (b"mid", 5)):
        harness.publish(a_message(body=body, priority=priority))
    assert harness.drain() == [b"high", b"mid"]


def test_depth_is_what_is_ready_and_never_refuses(harness: EngineHarness) -> None:
    """without a length limit a publisher is never turned away."""
    harness.queue()
    harness.publish(*(a_message() for _ in range(5)))
    harness.get()
    harness.get()
    harness.nack(2, delay=9.0)
    assert (harness.stats().ready, harness.stats().in_flight, harness.stats().deferred) == (3, 1, 1)
    assert harness.confirms() == [(1, 5, True)]


# --------------------------------------------------------------------- dead letters


def test_a_dead_letter_tells_its_death(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness)
    harness.publish(a_message(headers={"mine": 1}))
    harness.get()
    harness.nack(1, requeue=False)
    assert dead_letter_headers(harness) == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-last-death-exchange": "",
        "x-last-death-queue": "q",
        "x-last-death-reason": "rejected",
        "x-death": [
            {
                "count": 1,
                "exchange": "",
                "queue": "q",
                "reason": "rejected",
                "routing-keys": ["q"],
                "time": datetime.fromtimestamp(int(harness.now), UTC),
            }
        ],
    }


def test_an_expired_dead_letter_keeps_its_expiration_only_in_its_history(
    harness: EngineHarness,
) -> None:
    with_dead_letter_queue(harness)
    harness.publish(a_message(expiration="500"))
    harness.advance(0.5)
    delivery = harness.get("dead")
    assert delivery is not None
    assert delivery.properties.expiration is None
    death = (delivery.properties.headers or {})["x-death"][0]
    assert (death["reason"], death["original-expiration"]) == ("expired", "500")


def test_without_a_routing_key_of_its_own_a_dead_letter_keeps_its_keys(
    harness: EngineHarness,
) -> None:
    harness.queue(dead_letter_exchange="amq.direct")
    for queue, key in (("by-key", "q"), ("by-cc", "c")):
        harness.queue(queue)
        harness.bind(queue, "amq.direct", key, {})
    harness.publish(a_message(headers={"CC": ["c"]}))
    harness.get()
    harness.nack(1, requeue=False)
    for queue in ("by-key", "by-cc"):
        words = dead_letter_headers(harness, queue)
        assert words["x-death"][0]["routing-keys"] == ["q", "c"]
        assert words["CC"] == ["c"]


def test_deaths_of_one_queue_and_reason_are_counted_and_the_newest_comes_first(
    harness: EngineHarness,
) -> None:
    harness.queue("retry", dead_letter_exchange="", dead_letter_routing_key="q", message_ttl=1000)
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="retry")
    harness.publish(a_message())
    for tag in (1, 2):
        harness.get()
        harness.nack(tag, requeue=False)
        harness.advance(1.0)
    words = dead_letter_headers(harness, "q")
    assert [(d["queue"], d["reason"], d["count"]) for d in words["x-death"]] == [
        ("retry", "expired", 2),
        ("q", "rejected", 2),
    ]
    assert words["x-first-death-queue"] == "q"
    assert words["x-first-death-reason"] == "rejected"


def test_a_message_that_circles_without_a_rejection_is_dropped(harness: EngineHarness) -> None:
    for name, other in (("q", "r"), ("r", "q")):
        harness.queue(
            name, message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key=other
        )
    harness.publish(a_message())
    harness.advance(1.0)
    assert (harness.stats("q").ready, harness.stats("r").ready) == (0, 1)
    harness.advance(1.0)
    assert (harness.stats("q").ready, harness.stats("r").ready) == (0, 0)


def test_a_dead_letter_exchange_that_is_missing_takes_the_message_away(
    harness: EngineHarness,
) -> None:
    harness.queue(dead_letter_exchange="nowhere")
    harness.publish(a_message())
    harness.get()
    harness.nack(1, requeue=False)
    assert (harness.stats().ready, harness.stats().dead_letter_count) == (0, 1)


def test_a_dropped_head_dies_of_maxlen(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness, max_length=1)
    harness.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert dead_letter_headers(harness)["x-death"][0]["reason"] == "maxlen"


def test_the_delivery_limit_ends_a_message_that_keeps_coming_back(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness, delivery_limit=1)
    harness.publish(a_message())
    for tag in (1, 2):
        assert harness.get() is not None
        harness.nack(tag)
    assert harness.get() is None
    assert dead_letter_headers(harness)["x-death"][0]["reason"] == "delivery_limit"


@pytest.mark.parametrize("command", ["purge_queue", "delete_queue"])
def test_purging_and_deleting_make_no_dead_letters(harness: EngineHarness, command: str) -> None:
    with_dead_letter_queue(harness)
    harness.publish(a_message())
    getattr(harness.engine.topology, command)(harness.channel, "q")
    assert harness.drain("dead") == []


def test_a_long_chain_of_dead_letter_queues_needs_no_stack(harness: EngineHarness) -> None:
    length = 1_100  # more than Python's recursion limit
    for n in range(length):
        harness.queue(
            f"q{n}",
            message_ttl=0,
            dead_letter_exchange="",
            dead_letter_routing_key=f"q{n + 1}",
        )
    harness.queue(f"q{length}")
    harness.publish(a_message("q0"))
    assert len(dead_letter_headers(harness, f"q{length}")["x-death"]) == length


def test_the_published_message_is_left_as_it_was(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness)
    headers = {"mine": 1}
    harness.publish(a_message(headers=headers, expiration="0"))
    assert headers == {"mine": 1}
    assert harness.stats("dead").ready == 1


def test_a_queue_may_be_its_own_dead_letter_queue(harness: EngineHarness) -> None:
    """a rejection steers, so it goes round; the publisher hears nothing."""
    harness.queue(dead_letter_exchange="")
    harness.publish(a_message())
    assert harness.confirms() == [(1, 1, True)]
    harness.get()
    harness.nack(1, requeue=False)
    again = harness.get()
    assert again is not None
    assert again.redelivered is False
    headers = again.properties.headers
    assert headers is not None
    assert headers["x-death"][0]["count"] == 1
    assert harness.confirms() == []


def test_expired_messages_die_in_the_order_in_which_they_stood(harness: EngineHarness) -> None:
    harness.queue(message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="dead")
    harness.queue("dead")
    harness.publish(*(a_message(body=b"%d" % n) for n in range(5)))
    harness.advance(0.1)
    assert harness.drain("dead") == [b"%d" % n for n in range(5)]


@pytest.mark.parametrize(("version", "count"), [((3, 10), 5), ((4, 3), 1)])
def test_x_death_that_a_publisher_sends_is_counted_on_by_version_3_alone(
    version: tuple[int, int], count: int
) -> None:
    harness = EngineHarness(compatibility=version)
    harness.queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    harness.queue("dead")
    sent = [{"queue": "q", "reason": "rejected", "count": 4}]
    forged = {"x-deaths-by-broker": 1}
    harness.publish(a_message(headers={"x-death": sent, **forged}))
    harness.get()
    harness.nack(1, requeue=False)
    letter = harness.get("dead")
    assert letter is not None
    assert letter.properties.headers is not None
    (death,) = letter.properties.headers["x-death"]
    assert death["count"] == count
    assert "x-deaths-by-broker" not in letter.properties.headers


# --------------------------------------------------------------------- BCC, and counted returns


def test_a_dead_letter_goes_to_bcc_too_and_nobody_sees_the_header(harness: EngineHarness) -> None:
    """RabbitMQ keeps the keys of BCC with the message."""
    harness.queue(dead_letter_exchange="amq.direct")
    for name in ("one", "two", "secret"):
        harness.queue(name)
        harness.bind(name, "amq.direct", name, {})
    harness.bind("q", "amq.direct", "one", {})
    headers = {"CC": ["two"], "BCC": ["secret"]}
    harness.engine.topology.unbind(
        harness.channel, Destination("queue", "one"), "amq.direct", "one", {}
    )
    harness.publish(a_message("one", exchange="amq.direct", headers=headers))
    assert (harness.stats("two").ready, harness.stats("secret").ready) == (1, 1)
    delivery = harness.get()
    assert delivery is not None
    assert delivery.properties.headers == {"CC": ["two"]}
    harness.engine.topology.unbind(
        harness.channel, Destination("queue", "q"), "amq.direct", "one", {}
    )
    harness.nack(1, requeue=False)
    assert (harness.stats("two").ready, harness.stats("secret").ready) == (2, 2)
    harness.get("secret")
    letter = harness.get("secret")
    assert letter is not None
    assert letter.properties.headers is not None
    assert "BCC" not in letter.properties.headers
    assert letter.properties.headers["x-death"][0]["routing-keys"] == ["one", "two"]


def test_a_dead_letter_with_a_key_of_its_own_forgets_cc_and_bcc(harness: EngineHarness) -> None:
    harness.queue(dead_letter_exchange="amq.direct", dead_letter_routing_key="dead")
    for name in ("dead", "two", "secret"):
        harness.queue(name)
        harness.bind(name, "amq.direct", name, {})
    harness.publish(a_message(headers={"CC": ["none"], "BCC": ["none"]}))
    harness.get()
    harness.nack(1, requeue=False)
    assert harness.stats("dead").ready == 1
    letter = harness.get("dead")
    assert letter is not None
    assert letter.properties.headers is not None
    assert not {"CC", "BCC"} & letter.properties.headers.keys()


def test_a_returned_message_does_not_show_its_bcc(harness: EngineHarness) -> None:
    harness.publish(a_message("nobody", headers={"BCC": ["nobody"], "a": 1}, mandatory=True))
    (effect,) = harness.returns()
    assert effect.returned.properties.headers == {"a": 1}


@pytest.mark.parametrize("arguments", [{"queue_type": "quorum"}, {"delivery_limit": 9}])
def test_returns_are_told_in_a_header_that_first_deliveries_lack(
    harness: EngineHarness, arguments: dict[str, Any]
) -> None:
    """attempts are one more."""
    harness.queue(**arguments)
    harness.publish(a_message(headers={"mine": 1}))
    seen = []
    for tag in (1, 2, 3):
        delivery = harness.get()
        assert delivery is not None
        headers = delivery.properties.headers
        assert headers is not None
        seen.append((headers.get("x-delivery-count"), delivery.attempts, headers["mine"]))
        harness.nack(tag)
    assert seen == [(None, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_a_count_of_returns_that_a_publisher_sends_is_not_believed(harness: EngineHarness) -> None:
    """A handler that publishes what it got with its headers begins a new count."""
    harness.queue(queue_type="quorum")
    harness.publish(a_message(headers={"x-delivery-count": 7, "mine": 1}))
    for tag, expected in ((1, {"mine": 1}), (2, {"mine": 1, "x-delivery-count": 1})):
        delivery = harness.get()
        assert delivery is not None
        assert delivery.properties.headers == expected
        harness.nack(tag)


def test_a_classic_queue_adds_no_header(harness: EngineHarness) -> None:
    """RabbitMQ: only quorum queues count."""
    harness.queue()
    harness.publish(a_message())
    harness.get()
    harness.nack(1)
    delivery = harness.get()
    assert delivery is not None
    assert delivery.properties.headers is None


@pytest.mark.parametrize("delay", [None, 5.0])
def test_the_delivery_limit_ends_a_message_at_the_return_that_exceeds_it(
    harness: EngineHarness, delay: float | None
) -> None:
    """At once, with nobody there to take it; also when the return is deferred."""
    harness.queue(dead_letter_exchange="amq.fanout", delivery_limit=2)
    harness.queue("dead")
    harness.bind("dead", "amq.fanout", "", {})
    harness.publish(a_message())
    for tag in (1, 2, 3):
        assert harness.stats("dead").ready == 0
        harness.get()
        harness.nack(tag, delay=delay)
        if tag < 3:
            harness.advance(delay or 0.0)
    assert (harness.stats("dead").ready, harness.stats().deferred) == (1, 0)


def test_a_body_above_the_limit_is_refused_as_by_rabbitmq() -> None:
    harness = EngineHarness(max_message_size=8)
    harness.queue()
    harness.publish(a_message(body=b"x" * 8))
    with pytest.raises(
        ReplyError,
        match="406 PRECONDITION_FAILED - message size 9 is larger than configured max size 8",
    ):
        harness.publish(a_message(body=b"x" * 9))
    assert harness.stats().ready == 1


@pytest.mark.parametrize(("version", "mebibytes"), [((3, 10), 128), ((4, 3), 16)])
def test_the_usual_limit_of_a_body_is_that_of_the_version(
    version: tuple[int, int], mebibytes: int
) -> None:
    harness = EngineHarness(compatibility=version)
    harness.queue()
    body = bytes(mebibytes * 2**20 + 1)
    harness.publish(a_message(body=body[:-1]))
    with pytest.raises(ReplyError, match="406 PRECONDITION_FAILED - message size"):
        harness.publish(a_message(body=body))


def test_an_expiration_of_more_than_ten_years_is_refused_as_by_rabbitmq(
    harness: EngineHarness,
) -> None:
    harness.queue()
    harness.publish(a_message(expiration="315360000000"))
    with pytest.raises(ReplyError, match="406 PRECONDITION_FAILED - invalid expiration"):
        harness.publish(a_message(expiration="315360000001"))


def test_without_a_limit_a_body_may_be_of_any_size() -> None:
    harness = EngineHarness(max_message_size=0)
    harness.queue()
    harness.publish(a_message(body=b"x" * 100_000))
    assert harness.stats().ready == 1


@pytest.mark.parametrize(
    ("version", "arguments", "returns"),
    [
        ((4, 0), {"queue_type": "quorum"}, 20),
        ((4, 0), {"queue_type": "quorum", "delivery_limit": 2}, 2),
        ((4, 0), {"queue_type": "quorum", "delivery_limit": 0}, 0),
        ((4, 0), {"queue_type": "quorum", "delivery_limit": -1}, None),
        ((3, 13), {"queue_type": "quorum"}, None),
        ((4, 0), {}, None),
    ],
)
def test_message_dies_of_more_returns_than_its_queue_allows(
    version: RabbitMQVersion, arguments: dict[str, Any], returns: int | None
) -> None:
    harness = EngineHarness(compatibility=version)
    harness.queue(**arguments)
    harness.publish(a_message())
    most = 30 if returns is None else returns
    for tag in range(1, most + 1):
        harness.get()
        harness.nack(tag)
        assert harness.stats().ready == 1
    harness.get()
    harness.nack(most + 1)
    assert harness.stats().ready == (1 if returns is None else 0)


def test_dead_letter_with_a_key_of_its_queue_goes_to_no_key_of_bcc(harness: EngineHarness) -> None:
    with_dead_letter_queue(harness)
    harness.queue("copy")
    harness.publish(a_message(headers={"BCC": ["copy"]}))
    assert harness.drain("copy") == [b"hello"]
    delivery = harness.get()
    assert delivery is not None
    harness.nack(delivery.delivery_tag, requeue=False)
    assert (harness.drain("dead"), harness.drain("copy")) == ([b"hello"], [])


def test_what_is_rejected_after_its_queue_is_gone_makes_no_dead_letter(
    harness: EngineHarness,
) -> None:
    with_dead_letter_queue(harness)
    harness.publish(a_message())
    harness.get()
    harness.engine.topology.delete_queue(harness.channel, "q")
    harness.nack(1, requeue=False)
    assert harness.drain("dead") == []


def test_bytes_of_what_is_delivered_make_room(harness: EngineHarness) -> None:
    harness.queue(max_length_bytes=10)
    harness.publish(a_message(body=b"123"), a_message(body=b"45678"))
    harness.get()
    harness.publish(a_message(body=b"90123"))
    assert harness.stats().ready == 2
    harness.publish(a_message(body=b"45"))
    assert harness.drain() == [b"90123", b"45"]


def test_what_expires_now_is_not_delivered(harness: EngineHarness) -> None:
    harness.queue()
    harness.publish(a_message(expiration="1000"))
    harness.now += 1.0
    assert harness.get() is None


def test_bytes_of_what_expired_make_room(harness: EngineHarness) -> None:
    harness.queue(max_length_bytes=10)
    harness.publish(a_message(body=b"123", expiration="1000"), a_message(body=b"45678"))
    harness.advance(1.0)
    harness.publish(a_message(body=b"90123"))
    assert harness.stats().ready == 2
    harness.publish(a_message(body=b"45"))
    assert harness.drain() == [b"90123", b"45"]


@pytest.mark.parametrize(("kind", "left"), [("quorum", b"low"), ("classic", b"high")])
def test_full_quorum_queue_drops_what_it_would_deliver_next_and_a_classic_one_the_least(
    harness: EngineHarness, kind: str, left: bytes
) -> None:
    more: dict[str, Any] = {} if kind == "quorum" else {"max_priority": 9}
    harness.queue(queue_type=kind, max_length=1, **more)
    harness.publish(a_message(body=b"high", priority=9), a_message(body=b"low", priority=0))
    assert harness.drain() == [left]


@pytest.mark.parametrize("priority", [0, None])
def test_priority_of_none_is_below_that_of_one(
    harness: EngineHarness, priority: int | None
) -> None:
    harness.queue(max_priority=9)
    harness.publish(a_message(body=b"low", priority=priority), a_message(body=b"high", priority=1))
    assert harness.drain() == [b"high", b"low"]


def test_what_goes_straight_to_a_consumer_of_a_limited_queue_is_confirmed(
    harness: EngineHarness,
) -> None:
    harness.queue(max_length=1, overflow="reject-publish")
    harness.consume()
    harness.publish(a_message())
    assert harness.confirms() == [(1, 1, True)]


def test_a_release_of_one_leaves_those_before_it_in_flight(harness: EngineHarness) -> None:
    harness.queue()
    for _ in range(2):
        harness.publish(a_message())
        harness.get()
    harness.engine.consuming.release(harness.channel, 2, harness.now)
    assert (harness.stats().ready, harness.stats().in_flight) == (1, 1)


def test_released_deliveries_do_not_count_towards_the_delivery_limit(
    harness: EngineHarness,
) -> None:
    """Giving back at a shutdown is not failing; what failed in between still counts."""
    harness.queue(delivery_limit=1)
    harness.publish(a_message())
    for tag in (1, 2, 3):
        assert harness.get() is not None
        harness.engine.consuming.release(harness.channel, tag, harness.now)
    delivery = harness.get()
    assert delivery is not None
    assert (delivery.redelivered, delivery.attempts) == (True, 1)
    assert "x-delivery-count" not in (delivery.properties.headers or {})
    harness.nack(4)
    assert harness.stats().ready == 1
    harness.get()
    harness.nack(5)
    assert (harness.stats().ready, harness.stats().drop_count) == (0, 1)
