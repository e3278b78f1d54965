"""TTL, lengths, and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.errors import ReplyError
from tests.support.builders import Desk, a_message


def with_cemetery(desk: Desk, **arguments: Any) -> None:
    """Queue ``q`` whose dead go to ``dead``."""
    desk.queue("dead")
    desk.queue(dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


def last_words(desk: Desk, queue: str = "dead") -> dict[str, Any]:
    delivery = desk.get(queue, no_ack=True)
    assert delivery is not None
    return dict(delivery.properties.headers or {})


# --------------------------------------------------------------------- TTL


def test_a_queue_ttl_drops_what_waits_too_long(desk: Desk) -> None:
    desk.queue(message_ttl=1000)
    desk.publish(a_message())
    assert desk.engine.next_deadline() == desk.now + 1.0
    desk.advance(0.9)
    assert desk.stats().ready == 1
    desk.advance(0.1)
    assert (desk.stats().ready, desk.stats().drop_count) == (0, 1)
    assert desk.engine.next_deadline() is None


def test_the_earlier_of_queue_ttl_and_expiration_counts(desk: Desk) -> None:
    desk.queue(message_ttl=1000)
    desk.publish(a_message(expiration="300"))
    assert desk.engine.next_deadline() == desk.now + 0.3


def test_a_message_expires_only_at_the_head(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(body=b"long", expiration="9000"), a_message(expiration="10"))
    desk.advance(1.0)
    assert desk.stats().ready == 2
    assert desk.drain() == [b"long"]


def test_expiration_zero_reaches_a_waiting_consumer_and_nobody_else(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(expiration="0"))
    assert desk.get() is None
    desk.consume()
    desk.publish(a_message(body=b"now", expiration="0"))
    assert desk.bodies() == [b"now"]


def test_an_expired_message_is_never_delivered_even_before_the_tick(desk: Desk) -> None:
    desk.queue(message_ttl=1000)
    desk.publish(a_message())
    desk.now += 1.0
    desk.consume()
    assert desk.bodies() == []
    assert desk.stats().drop_count == 1


def test_a_message_in_flight_does_not_expire_and_keeps_its_time_when_requeued(desk: Desk) -> None:
    desk.queue(message_ttl=1000)
    desk.publish(a_message())
    desk.get()
    desk.advance(2.0)
    assert desk.stats().in_flight == 1
    desk.nack(1)
    assert (desk.stats().ready, desk.stats().drop_count) == (0, 1)


# --------------------------------------------------------------------- length


def test_drop_head_drops_the_oldest_and_confirms_the_new(desk: Desk) -> None:
    desk.queue(max_length=2)
    desk.publish(*(a_message(body=body) for body in (b"1", b"2", b"3")))
    assert desk.confirms() == [(1, 3, True)]
    assert desk.drain() == [b"2", b"3"]


def test_reject_publish_nacks_the_new(desk: Desk) -> None:
    desk.queue(max_length=2, overflow="reject-publish")
    desk.publish(*(a_message(body=body) for body in (b"1", b"2", b"3")))
    assert desk.confirms() == [(1, 2, True), (3, 3, False)]
    assert desk.drain() == [b"1", b"2"]


def test_reject_publish_dlx_also_dead_letters_the_new(desk: Desk) -> None:
    with_cemetery(desk, max_length=1, overflow="reject-publish-dlx")
    desk.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert desk.confirms() == [(1, 1, True), (2, 2, False)]
    assert (desk.drain("q"), desk.drain("dead")) == ([b"1"], [b"2"])


def test_one_refusing_queue_of_two_nacks_the_publish(desk: Desk) -> None:
    desk.queue("r")
    desk.queue(max_length=0, overflow="reject-publish")
    for queue in ("q", "r"):
        desk.engine.bind_queue(desk.channel, queue, "amq.fanout", "", {})
    desk.publish(a_message(exchange="amq.fanout"))
    assert desk.confirms() == [(1, 1, False)]
    assert desk.drain("r") == [b"hello"]


def test_max_length_bytes_counts_the_bodies_that_are_ready(desk: Desk) -> None:
    desk.queue(max_length_bytes=10)
    desk.publish(a_message(body=b"12345"), a_message(body=b"67890"), a_message(body=b"x"))
    assert desk.drain() == [b"67890", b"x"]


def test_what_is_in_flight_does_not_count_towards_the_length(desk: Desk) -> None:
    desk.queue(max_length=1)
    desk.publish(a_message(body=b"1"))
    desk.get()
    desk.publish(a_message(body=b"2"))
    assert (desk.stats().in_flight, desk.stats().ready, desk.stats().drop_count) == (1, 1, 0)


def test_an_overflow_of_a_priority_queue_drops_the_lowest(desk: Desk) -> None:
    desk.queue(max_length=2, max_priority=9)
    for body, priority in ((b"low", 1), (b"high", 9), (b"mid", 5)):
        desk.publish(a_message(body=body, priority=priority))
    assert desk.drain() == [b"high", b"mid"]


# --------------------------------------------------------------------- dead letters


def test_a_dead_letter_tells_its_death(desk: Desk) -> None:
    with_cemetery(desk)
    desk.publish(a_message(headers={"mine": 1}))
    desk.get()
    desk.nack(1, requeue=False)
    assert last_words(desk) == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-death": [
            {
                "count": 1,
                "exchange": "",
                "queue": "q",
                "reason": "rejected",
                "routing-keys": ["q"],
                "time": datetime.fromtimestamp(int(desk.now), UTC),
            }
        ],
    }


def test_an_expired_dead_letter_keeps_its_expiration_only_in_its_history(desk: Desk) -> None:
    with_cemetery(desk)
    desk.publish(a_message(expiration="500"))
    desk.advance(0.5)
    delivery = desk.get("dead")
    assert delivery is not None
    assert delivery.properties.expiration is None
    death = (delivery.properties.headers or {})["x-death"][0]
    assert (death["reason"], death["original-expiration"]) == ("expired", "500")


def test_without_a_routing_key_of_its_own_a_dead_letter_keeps_its_keys(desk: Desk) -> None:
    desk.queue(dead_letter_exchange="amq.direct")
    for queue, key in (("by-key", "q"), ("by-cc", "c")):
        desk.queue(queue)
        desk.engine.bind_queue(desk.channel, queue, "amq.direct", key, {})
    desk.publish(a_message(headers={"CC": ["c"]}))
    desk.get()
    desk.nack(1, requeue=False)
    for queue in ("by-key", "by-cc"):
        words = last_words(desk, queue)
        assert words["x-death"][0]["routing-keys"] == ["q", "c"]
        assert words["CC"] == ["c"]


def test_deaths_of_one_queue_and_reason_are_counted_and_the_newest_comes_first(desk: Desk) -> None:
    desk.queue("retry", dead_letter_exchange="", dead_letter_routing_key="q", message_ttl=1000)
    desk.queue(dead_letter_exchange="", dead_letter_routing_key="retry")
    desk.publish(a_message())
    for tag in (1, 2):
        desk.get()
        desk.nack(tag, requeue=False)
        desk.advance(1.0)
    words = last_words(desk, "q")
    assert [(d["queue"], d["reason"], d["count"]) for d in words["x-death"]] == [
        ("retry", "expired", 2),
        ("q", "rejected", 2),
    ]
    assert words["x-first-death-queue"] == "q"
    assert words["x-first-death-reason"] == "rejected"


def test_a_message_that_circles_without_a_rejection_is_dropped(desk: Desk) -> None:
    for name, other in (("q", "r"), ("r", "q")):
        desk.queue(name, message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key=other)
    desk.publish(a_message())
    desk.advance(1.0)
    assert (desk.stats("q").ready, desk.stats("r").ready) == (0, 1)
    desk.advance(1.0)
    assert (desk.stats("q").ready, desk.stats("r").ready) == (0, 0)


def test_a_dead_letter_exchange_that_is_missing_takes_the_message_away(desk: Desk) -> None:
    desk.queue(dead_letter_exchange="nowhere")
    desk.publish(a_message())
    desk.get()
    desk.nack(1, requeue=False)
    assert (desk.stats().ready, desk.stats().dead_letter_count) == (0, 1)


def test_a_dropped_head_dies_of_maxlen(desk: Desk) -> None:
    with_cemetery(desk, max_length=1)
    desk.publish(a_message(body=b"1"), a_message(body=b"2"))
    assert last_words(desk)["x-death"][0]["reason"] == "maxlen"


def test_the_delivery_limit_ends_a_message_that_keeps_coming_back(desk: Desk) -> None:
    with_cemetery(desk, delivery_limit=1)
    desk.publish(a_message())
    for tag in (1, 2):
        assert desk.get() is not None
        desk.nack(tag)
    assert desk.get() is None
    assert last_words(desk)["x-death"][0]["reason"] == "delivery_limit"


@pytest.mark.parametrize("command", ["purge_queue", "delete_queue"])
def test_purging_and_deleting_make_no_dead_letters(desk: Desk, command: str) -> None:
    with_cemetery(desk)
    desk.publish(a_message())
    getattr(desk.engine, command)(desk.channel, "q")
    assert desk.drain("dead") == []


def test_a_long_chain_of_dead_letter_queues_needs_no_stack(desk: Desk) -> None:
    length = 1_100  # more than Python's recursion limit
    for n in range(length):
        desk.queue(
            f"q{n}",
            message_ttl=0,
            dead_letter_exchange="",
            dead_letter_routing_key=f"q{n + 1}",
        )
    desk.queue(f"q{length}")
    desk.publish(a_message("q0"))
    assert len(last_words(desk, f"q{length}")["x-death"]) == length


def test_the_published_message_is_left_as_it_was(desk: Desk) -> None:
    with_cemetery(desk)
    headers = {"mine": 1}
    desk.publish(a_message(headers=headers, expiration="0"))
    assert headers == {"mine": 1}
    assert desk.stats("dead").ready == 1


# --------------------------------------------------------------------- BCC, and counted returns


def test_a_dead_letter_goes_to_bcc_too_and_nobody_sees_the_header(desk: Desk) -> None:
    """RabbitMQ keeps the keys of BCC with the message."""
    desk.queue(dead_letter_exchange="amq.direct")
    for name in ("one", "two", "secret"):
        desk.queue(name)
        desk.engine.bind_queue(desk.channel, name, "amq.direct", name, {})
    desk.engine.bind_queue(desk.channel, "q", "amq.direct", "one", {})
    headers = {"CC": ["two"], "BCC": ["secret"]}
    desk.engine.unbind_queue(desk.channel, "one", "amq.direct", "one", {})
    desk.publish(a_message("one", exchange="amq.direct", headers=headers))
    assert (desk.stats("two").ready, desk.stats("secret").ready) == (1, 1)
    delivery = desk.get()
    assert delivery is not None
    assert delivery.properties.headers == {"CC": ["two"]}
    desk.engine.unbind_queue(desk.channel, "q", "amq.direct", "one", {})
    desk.nack(1, requeue=False)
    assert (desk.stats("two").ready, desk.stats("secret").ready) == (2, 2)
    desk.get("secret")
    letter = desk.get("secret")
    assert letter is not None
    assert letter.properties.headers is not None
    assert "BCC" not in letter.properties.headers
    assert letter.properties.headers["x-death"][0]["routing-keys"] == ["one", "two"]


def test_a_dead_letter_with_a_key_of_its_own_forgets_cc_and_bcc(desk: Desk) -> None:
    desk.queue(dead_letter_exchange="amq.direct", dead_letter_routing_key="dead")
    for name in ("dead", "two", "secret"):
        desk.queue(name)
        desk.engine.bind_queue(desk.channel, name, "amq.direct", name, {})
    desk.publish(a_message(headers={"CC": ["none"], "BCC": ["none"]}))
    desk.get()
    desk.nack(1, requeue=False)
    assert desk.stats("dead").ready == 1
    letter = desk.get("dead")
    assert letter is not None
    assert letter.properties.headers is not None
    assert not {"CC", "BCC"} & letter.properties.headers.keys()


def test_a_returned_message_does_not_show_its_bcc(desk: Desk) -> None:
    desk.publish(a_message("nobody", headers={"BCC": ["nobody"], "a": 1}, mandatory=True))
    (effect,) = desk.returns()
    assert effect.returned.properties.headers == {"a": 1}


@pytest.mark.parametrize("arguments", [{"queue_type": "quorum"}, {"delivery_limit": 9}])
def test_returns_are_told_in_a_header_that_first_deliveries_lack(
    desk: Desk, arguments: dict[str, Any]
) -> None:
    """attempts are one more."""
    desk.queue(**arguments)
    desk.publish(a_message(headers={"mine": 1}))
    seen = []
    for tag in (1, 2, 3):
        delivery = desk.get()
        assert delivery is not None
        headers = delivery.properties.headers
        assert headers is not None
        seen.append((headers.get("x-delivery-count"), delivery.attempts, headers["mine"]))
        desk.nack(tag)
    assert seen == [(None, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_a_count_of_returns_that_a_publisher_sends_is_not_believed(desk: Desk) -> None:
    """A handler that publishes what it got with its headers begins a new count."""
    desk.queue(queue_type="quorum")
    desk.publish(a_message(headers={"x-delivery-count": 7, "mine": 1}))
    for tag, expected in ((1, {"mine": 1}), (2, {"mine": 1, "x-delivery-count": 1})):
        delivery = desk.get()
        assert delivery is not None
        assert delivery.properties.headers == expected
        desk.nack(tag)


def test_a_classic_queue_adds_no_header(desk: Desk) -> None:
    """RabbitMQ: only quorum queues count."""
    desk.queue()
    desk.publish(a_message())
    desk.get()
    desk.nack(1)
    delivery = desk.get()
    assert delivery is not None
    assert delivery.properties.headers is None


@pytest.mark.parametrize("delay", [None, 5.0])
def test_the_delivery_limit_ends_a_message_at_the_return_that_exceeds_it(
    desk: Desk, delay: float | None
) -> None:
    """G12: at once, with nobody there to take it; also when the return is deferred."""
    desk.queue(dead_letter_exchange="amq.fanout", delivery_limit=2)
    desk.queue("dead")
    desk.engine.bind_queue(desk.channel, "dead", "amq.fanout", "", {})
    desk.publish(a_message())
    for tag in (1, 2, 3):
        assert desk.stats("dead").ready == 0
        desk.get()
        desk.nack(tag, delay=delay)
        if tag < 3:
            desk.advance(delay or 0.0)
    assert (desk.stats("dead").ready, desk.stats().deferred) == (1, 0)


def test_a_body_above_the_limit_is_refused_as_by_rabbitmq() -> None:
    desk = Desk(max_message_size=8)
    desk.queue()
    desk.publish(a_message(body=b"x" * 8))
    with pytest.raises(
        ReplyError,
        match="406 PRECONDITION_FAILED - message size 9 is larger than configured max size 8",
    ):
        desk.publish(a_message(body=b"x" * 9))
    assert desk.stats().ready == 1


def test_an_expiration_of_more_than_ten_years_is_refused_as_by_rabbitmq(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(expiration="315360000000"))
    with pytest.raises(ReplyError, match="406 PRECONDITION_FAILED - invalid expiration"):
        desk.publish(a_message(expiration="315360000001"))


def test_without_a_limit_a_body_may_be_of_any_size() -> None:
    desk = Desk(max_message_size=0)
    desk.queue()
    desk.publish(a_message(body=b"x" * 100_000))
    assert desk.stats().ready == 1
