"""Which queues a message reaches, and what its publisher hears."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.core.effects import Confirm, Return
from broker_client.errors import ReplyError
from broker_client.message import Returned
from tests.support.builders import Desk, a_message


def bound(desk: Desk, exchange: str, *keys: str, queue: str = "q", **arguments: Any) -> None:
    desk.queue(queue)
    for key in keys:
        desk.engine.bind_queue(desk.channel, queue, exchange, key, arguments)


def test_direct_routes_by_the_whole_key(desk: Desk) -> None:
    bound(desk, "amq.direct", "a.b")
    desk.publish(a_message("a.b", b"1", exchange="amq.direct"))
    desk.publish(a_message("a.c", b"2", exchange="amq.direct"))
    assert desk.drain() == [b"1"]


def test_fanout_ignores_the_key(desk: Desk) -> None:
    bound(desk, "amq.fanout", "a", queue="q")
    bound(desk, "amq.fanout", "b", queue="r")
    desk.publish(a_message("whatever", exchange="amq.fanout"))
    assert (desk.drain("q"), desk.drain("r")) == ([b"hello"], [b"hello"])


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("a.*.c", "a.b.b.c", False),
        ("#", "", True),
        ("#", "a.b", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b", False),
        ("#.z", "z", True),
        ("#.z", "a.b.z", True),
        ("#.z", "z.a", False),
        ("#.b.#", "a.b.c", True),
        ("*", "", False),
        ("*", "a", True),
        ("*.*", ".", True),
        ("", "", True),
        ("a.*", "a.", True),
        ("#.#", "a", True),
        ("a.b", "a.*", False),
    ],
)
def test_topic_patterns(desk: Desk, pattern: str, key: str, matches: bool) -> None:
    bound(desk, "amq.topic", pattern)
    desk.publish(a_message(key, exchange="amq.topic"))
    assert bool(desk.drain()) is matches


@pytest.mark.parametrize(
    ("wanted", "headers", "matches"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1}, {"a": 2}, False),
        ({"x-match": "any"}, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({"x-seen": 1}, {}, True),
        ({"x-match": "all-with-x", "x-seen": 1}, {}, False),
        ({"x-match": "any-with-x", "x-seen": 1}, {"x-seen": 1}, True),
        ({"a": None}, {"a": "anything"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": True}, False),
    ],
)
def test_headers_matching(
    desk: Desk, wanted: dict[str, Any], headers: dict[str, Any], matches: bool
) -> None:
    desk.queue()
    desk.engine.bind_queue(desk.channel, "q", "amq.headers", "", wanted)
    desk.publish(a_message("", exchange="amq.headers", headers=headers))
    assert bool(desk.drain()) is matches


def test_a_bad_x_match_is_refused(desk: Desk) -> None:
    desk.queue()
    with pytest.raises(ReplyError, match="x-match"):
        desk.engine.bind_queue(desk.channel, "q", "amq.headers", "", {"x-match": "some"})


def test_two_bindings_to_one_queue_give_one_copy(desk: Desk) -> None:
    bound(desk, "amq.topic", "a.#", "#.b")
    desk.publish(a_message("a.b", exchange="amq.topic"))
    assert desk.drain() == [b"hello"]


def test_one_of_two_bindings_goes_and_the_other_still_routes(desk: Desk) -> None:
    bound(desk, "amq.direct", "k")
    desk.engine.bind_queue(desk.channel, "q", "amq.direct", "k", {"another": 1})
    desk.engine.unbind_queue(desk.channel, "q", "amq.direct", "k", {})
    desk.publish(a_message("k", exchange="amq.direct"))
    desk.engine.unbind_queue(desk.channel, "q", "amq.direct", "k", {"another": 1})
    desk.publish(a_message("k", exchange="amq.direct"))
    assert desk.drain() == [b"hello"]


def test_exchanges_bound_in_a_circle_deliver_once(desk: Desk) -> None:
    for name in ("x", "y"):
        desk.engine.declare_exchange(desk.channel, name, "fanout")
    desk.engine.bind_exchange(desk.channel, "y", "x", "", {})
    desk.engine.bind_exchange(desk.channel, "x", "y", "", {})
    bound(desk, "x", "")
    bound(desk, "y", "")
    desk.publish(a_message("k", exchange="x"))
    assert desk.drain() == [b"hello"]
    for _ in range(2):  # again is harmless
        desk.engine.unbind_exchange(desk.channel, "y", "x", "", {})
    desk.engine.unbind_queue(desk.channel, "q", "x", "", {})
    desk.publish(a_message("k", b"1", exchange="x"), a_message("k", b"2", exchange="y"))
    assert desk.drain() == [b"2"]


def test_the_alternate_exchange_gets_what_no_binding_takes(desk: Desk) -> None:
    desk.engine.declare_exchange(
        desk.channel, "x", "direct", arguments={"alternate-exchange": "amq.fanout"}
    )
    bound(desk, "x", "taken")
    bound(desk, "amq.fanout", "", queue="lost")
    desk.publish(a_message("taken", b"1", exchange="x"))
    desk.publish(a_message("other", b"2", exchange="x", mandatory=True))
    assert (desk.drain("q"), desk.drain("lost")) == ([b"1"], [b"2"])
    assert desk.returns() == []


def test_a_new_binding_counts_at_once(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message("k", b"before", exchange="amq.topic"))
    desk.engine.bind_queue(desk.channel, "q", "amq.topic", "#", {})
    desk.publish(a_message("k", b"after", exchange="amq.topic"))
    assert desk.drain() == [b"after"]


def test_publishing_to_a_missing_exchange_is_refused_and_not_counted(desk: Desk) -> None:
    with pytest.raises(ReplyError, match=r"^404 NOT_FOUND - no exchange 'x' in vhost '/'$"):
        desk.publish(a_message(exchange="x"))
    desk.queue()
    desk.publish(a_message())
    assert desk.confirms() == [(1, 1, True)]


def test_publishing_to_an_internal_exchange_is_refused(desk: Desk) -> None:
    desk.engine.declare_exchange(desk.channel, "x", "fanout", internal=True)
    with pytest.raises(ReplyError, match=r"^403 "):
        desk.publish(a_message(exchange="x"))


def test_an_unroutable_mandatory_message_is_returned_before_its_confirm(desk: Desk) -> None:
    message = a_message("nowhere", mandatory=True)
    desk.publish(message)
    returned = Returned(312, "NO_ROUTE", "", "nowhere", b"hello", message.properties)
    effects = desk.take()
    assert effects == [Return(desk.channel, returned), Confirm(desk.channel, 1, 1, True)]


def test_confirms_count_from_the_first_publish_after_they_were_asked_for(desk: Desk) -> None:
    """and to ask again begins nothing anew."""
    channel = desk.another_channel()
    desk.queue()
    desk.publish(a_message(), a_message(), channel=channel)
    assert desk.confirms() == []
    desk.engine.confirm_select(channel)
    desk.publish(a_message(), channel=channel)
    desk.engine.confirm_select(channel)
    desk.publish(a_message(), channel=channel)
    assert desk.confirms() == [(1, 2, True)]


def test_confirms_of_several_publishes_come_as_one_range(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), a_message("nowhere"), a_message())
    assert desk.confirms() == [(1, 3, True)]


def test_a_channel_without_confirms_hears_nothing(desk: Desk) -> None:
    desk.queue()
    desk.publish(a_message(), channel=desk.another_channel())
    assert desk.take() == []


def test_cc_and_bcc_add_keys_and_only_bcc_is_taken_off(desk: Desk) -> None:
    for name in ("q", "cc", "bcc"):
        desk.queue(name)
    desk.publish(a_message(headers={"CC": ["cc", "q"], "BCC": ["bcc"], "n": 1}))
    for name in ("q", "cc", "bcc"):
        delivery = desk.get(name)
        assert delivery is not None
        assert delivery.properties.headers == {"CC": ["cc", "q"], "n": 1}
        assert desk.get(name) is None


def test_cc_that_is_no_array_of_strings_is_refused(desk: Desk) -> None:
    desk.queue()
    with pytest.raises(ReplyError, match=r"^406 .*CC"):
        desk.publish(a_message(headers={"CC": "q"}))
    assert desk.stats().ready == 0


@pytest.mark.parametrize("expiration", ["-1", "1.5", "soon", ""])
def test_a_bad_expiration_is_refused(desk: Desk, expiration: str) -> None:
    desk.queue()
    with pytest.raises(ReplyError, match=r"^406 .*invalid expiration"):
        desk.publish(a_message(expiration=expiration))


def test_copies_in_several_queues_share_the_message(desk: Desk) -> None:
    bound(desk, "amq.fanout", "", queue="q")
    bound(desk, "amq.fanout", "", queue="r")
    message = a_message("", exchange="amq.fanout", headers={"a": 1})
    desk.publish(message)
    first, second = desk.get("q"), desk.get("r")
    assert first is not None
    assert second is not None
    assert first.body is second.body is message.body
    assert first.properties is second.properties is message.properties
