"""Routing: the queues that a message reaches."""

from __future__ import annotations

from typing import Any

import pytest

from broker_client.transport.base import Channel
from tests.contract.observers import Watch, a_message, bodies, reply_code_of


async def reached(watch: Watch, queues: list[str]) -> set[str]:
    """The queues that have messages; fails if one has a message twice. Empties them."""
    found = set()
    for queue in queues:
        taken = bodies(await watch.drain(queue))
        assert len(taken) == len(set(taken)), f"{queue!r} got a message twice"
        if taken:
            found.add(queue)
    return found


async def make_queues(channel: Channel, *names: str) -> list[str]:
    for name in names:
        await channel.declare_queue(name)
    return list(names)


async def test_default_exchange_routes_by_queue_name(watch: Watch) -> None:
    queues = await make_queues(watch.channel, "a", "b")
    await watch.publish(a_message(to="b"))
    assert await reached(watch, queues) == {"b"}


async def test_direct_exchange_wants_the_very_key(watch: Watch) -> None:
    queues = await make_queues(watch.channel, "a", "b", "c", "d")
    for queue, key in [("a", "k"), ("b", "k"), ("c", "K"), ("d", "k.k")]:
        await watch.channel.bind_queue(queue, "amq.direct", key)
    await watch.publish(a_message(to="k", exchange="amq.direct"))
    assert await reached(watch, queues) == {"a", "b"}


async def test_fanout_exchange_ignores_the_key(watch: Watch) -> None:
    queues = await make_queues(watch.channel, "a", "b", "c")
    await watch.channel.bind_queue("a", "amq.fanout", "one")
    await watch.channel.bind_queue("b", "amq.fanout", "")
    await watch.publish(a_message(to="two", exchange="amq.fanout"))
    assert await reached(watch, queues) == {"a", "b"}


# Routing key: the patterns of this table that it must match.
TOPICS: dict[str, str] = {
    "": "# #.#",
    "a": "# #.# * *.# a a.# #.a",
    "b": "# #.# * *.# #.b.#",
    "a.b": "# #.# *.* *.# a.b a.* a.# *.b a.*.# a.#.b *.b.# #.b.#",
    "b.a": "# #.# *.* *.# #.a #.b.#",
    "a.z": "# #.# *.* *.# a.* a.# a.*.# a.#.z",
    "a.b.z": "# #.# *.# a.# a.*.z a.*.# a.#.z *.b.# #.b.#",
    "a.b.c.z": "# #.# *.# a.# a.*.# a.#.z *.b.# #.b.#",
    "a.b.c": "# #.# *.# a.# a.*.# *.b.# #.b.# #.b.c",
    "b.c": "# #.# *.* *.# #.b.# #.b.c",
    "a..b": "# #.# *.# a.# a..b a.*.b a.*.# a.#.b #.b.#",
    ".": "# #.# *.* *.#",
    "x.b.y.b.c": "# #.# *.# *.b.# #.b.# #.b.c",
    "A": "# #.# * *.# A.#",
    "*": "# #.# * *.#",
    "#": "# #.# * *.#",
    "é.ü": "# #.# *.* *.# é.*",
}
PATTERNS = sorted(
    {p for patterns in TOPICS.values() for p in patterns.split()} | {"", "c", "a.b.d"}
)


@pytest.mark.parametrize("key", TOPICS)
async def test_topic_exchange_matches_words(key: str, watch: Watch) -> None:
    queues = {f"q{number}": pattern for number, pattern in enumerate(PATTERNS)}
    for queue, pattern in queues.items():
        await watch.channel.declare_queue(queue)
        await watch.channel.bind_queue(queue, "amq.topic", pattern)
    await watch.publish(a_message(to=key, exchange="amq.topic"))
    found = {queues[queue] for queue in await reached(watch, list(queues))}
    assert found == set(TOPICS[key].split()) | ({""} if key == "" else set())


HEADERS: list[tuple[str, dict[str, Any], dict[str, Any] | None, bool]] = [
    ("all, all there", {"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, True),
    ("all, one missing", {"x-match": "all", "a": 1, "b": "x"}, {"a": 1}, False),
    ("all, one other", {"x-match": "all", "a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
    ("all is the default", {"a": 1, "b": "x"}, {"a": 1}, False),
    ("any, one there", {"x-match": "any", "a": 1, "b": "x"}, {"b": "x"}, True),
    ("any, none there", {"x-match": "any", "a": 1, "b": "x"}, {"a": 2}, False),
    ("all of nothing", {"x-match": "all"}, {"a": 1}, True),
    ("any of nothing", {"x-match": "any"}, {"a": 1}, False),
    ("no headers at all", {"x-match": "all", "a": 1}, None, False),
    ("void wants presence", {"x-match": "all", "a": None}, {"a": "whatever"}, True),
    ("void, absent", {"x-match": "all", "a": None}, {"b": 1}, False),
    ("number is not text", {"x-match": "all", "a": 1}, {"a": "1"}, False),
    ("x- headers do not count", {"x-match": "all", "x-a": 1, "b": 2}, {"b": 2}, True),
]


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [case[1:] for case in HEADERS],
    ids=[case[0] for case in HEADERS],
)
async def test_headers_exchange(
    arguments: dict[str, Any], headers: dict[str, Any] | None, matches: bool, watch: Watch
) -> None:
    queues = await make_queues(watch.channel, "q")
    await watch.channel.bind_queue("q", "amq.headers", "", arguments)
    await watch.publish(a_message(exchange="amq.headers", to="any", headers=headers))
    assert await reached(watch, queues) == ({"q"} if matches else set())


async def test_x_match_of_another_kind_is_refused(watch: Watch) -> None:
    await watch.channel.declare_queue("q")
    binding = watch.channel.bind_queue("q", "amq.headers", "", {"x-match": "most"})
    assert await reply_code_of(binding) == 406


async def test_two_bindings_that_match_give_one_copy(watch: Watch) -> None:
    queues = await make_queues(watch.channel, "q")
    for pattern in ("a.*", "*.b", "#"):
        await watch.channel.bind_queue("q", "amq.topic", pattern)
    await watch.publish(a_message(to="a.b", exchange="amq.topic"))
    assert [await watch.depth(queue) for queue in queues] == [1]


async def test_binding_made_twice_is_one(watch: Watch) -> None:
    await watch.channel.declare_queue("q")
    await watch.channel.bind_queue("q", "amq.direct", "k")
    await watch.channel.bind_queue("q", "amq.direct", "k")
    await watch.channel.unbind_queue("q", "amq.direct", "k")
    await watch.publish(a_message(to="k", exchange="amq.direct"))
    assert await watch.depth("q") == 0


async def test_exchange_bound_to_an_exchange_passes_messages_on(watch: Watch) -> None:
    channel = watch.channel
    queues = await make_queues(channel, "q")
    await channel.declare_exchange("source", "topic")
    await channel.declare_exchange("destination", "direct")
    await channel.bind_exchange("destination", "source", "a.#")
    await channel.bind_queue("q", "destination", "a.b")
    await watch.publish(
        a_message(b"routed by both", exchange="source", to="a.b"),
        a_message(b"stopped by the second", exchange="source", to="a.c"),
        a_message(b"stopped by the first", exchange="source", to="b"),
    )
    delivered = await watch.drain("q")
    assert bodies(delivered) == [b"routed by both"]
    assert (delivered[0].exchange, delivered[0].routing_key) == ("source", "a.b")
    await channel.unbind_exchange("destination", "source", "a.#")
    await watch.publish(a_message(exchange="source", to="a.b"))
    assert await reached(watch, queues) == set()


async def test_exchanges_bound_in_a_ring_give_one_copy(watch: Watch) -> None:
    channel = watch.channel
    await channel.declare_queue("q")
    for name in ("one", "two"):
        await channel.declare_exchange(name, "fanout")
        await channel.bind_queue("q", name, "")
    await channel.bind_exchange("two", "one", "")
    await channel.bind_exchange("one", "two", "")
    await watch.publish(a_message(exchange="one"))
    assert await watch.depth("q") == 1


async def test_unrouted_message_goes_to_the_alternate_exchange(watch: Watch) -> None:
    channel = watch.channel
    queues = await make_queues(channel, "routed", "rest")
    await channel.declare_exchange("spare", "fanout")
    await channel.declare_exchange("main", "direct", arguments={"alternate-exchange": "spare"})
    await channel.bind_queue("routed", "main", "known")
    await channel.bind_queue("rest", "spare", "")
    await watch.publish(a_message(b"1", exchange="main", to="known"))
    assert await reached(watch, queues) == {"routed"}
    await watch.publish(a_message(b"2", exchange="main", to="other", mandatory=True))
    assert await reached(watch, queues) == {"rest"}
    assert watch.returns == []  # RabbitMQ: the alternate exchange counts as routing


async def test_alternate_exchanges_follow_each_other_and_end_in_a_circle_or_at_a_missing_one(
    watch: Watch,
) -> None:
    channel = watch.channel
    for name, alternate in (
        *(("first", "second"), ("second", "third"), ("third", "first")),
        *(("one", "other"), ("other", "one"), ("leads", "nowhere")),
    ):
        await channel.declare_exchange(name, "direct", arguments={"alternate-exchange": alternate})
    queues = await make_queues(channel, "q")
    await channel.bind_queue("q", "third", "k")
    await watch.publish(
        a_message(b"by way of two", exchange="first", to="k", mandatory=True),
        a_message(b"round", exchange="one", to="k", mandatory=True),
        a_message(b"off", exchange="leads", to="k", mandatory=True),
    )
    assert bodies(await watch.drain("q")) == [b"by way of two"]
    assert [returned.body for returned in watch.returns] == [b"round", b"off"]
    assert await reached(watch, queues) == set()


async def test_mandatory_message_is_returned_when_the_alternate_exchange_has_no_queue(
    watch: Watch,
) -> None:
    await watch.channel.declare_exchange("spare", "fanout")
    await watch.channel.declare_exchange(
        "main", "direct", arguments={"alternate-exchange": "spare"}
    )
    await watch.publish(a_message(exchange="main", to="k", mandatory=True))
    assert [returned.exchange for returned in watch.returns] == ["main"]


async def test_cc_and_bcc_headers_name_more_routing_keys(watch: Watch) -> None:
    queues = await make_queues(watch.channel, "a", "b", "c", "d")
    headers = {"CC": ["b"], "BCC": ["c", "a"], "kept": 1}
    await watch.publish(a_message(to="a", headers=headers))
    [copy] = await watch.drain("b")
    # RabbitMQ: BCC is taken away before delivery, CC is not.
    assert copy.properties.headers == {"CC": ["b"], "kept": 1}
    assert copy.routing_key == "a"
    assert await reached(watch, queues) == {"a", "c"}
