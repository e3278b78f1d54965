"""Confirms, returns, and the contents of messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from broker_client.errors import ChannelClosedError
from broker_client.message import Properties
from broker_client.transport.base import Link
from tests.contract.conftest import EVERY_VERSION, Place
from tests.contract.observers import Consumer, Watch, a_message, numbered
from tests.support.eventually import eventually

pytestmark = pytest.mark.usefixtures("queue")


async def test_channel_without_confirms_numbers_and_confirms_nothing(
    link: Link, watch: Watch
) -> None:
    plain = await Watch.open(link, confirm=False)
    assert plain.channel.next_publish_seq == 0
    await plain.channel.publish(numbered(1, 3))
    assert plain.channel.next_publish_seq == 0
    await plain.channel.close()  # methods are handled in the order in which they were written
    await watch.has("q", 3)
    assert plain.events == []


async def test_sequence_starts_at_one_and_counts_messages_not_batches(watch: Watch) -> None:
    assert watch.channel.next_publish_seq == 1
    await watch.channel.publish(numbered(1, 3))
    assert watch.channel.next_publish_seq == 4
    await watch.channel.publish(numbered(4, 4))
    assert watch.channel.next_publish_seq == 5


async def test_empty_batch_has_no_effect(watch: Watch) -> None:
    await watch.channel.publish([])
    assert watch.channel.next_publish_seq == 1
    assert await watch.publish(a_message()) == [True]


async def test_every_publish_is_confirmed_exactly_once(watch: Watch) -> None:
    for first in range(1, 1000, 100):
        await watch.channel.publish(numbered(first, first + 99))
    await eventually(lambda: len(watch.outcomes) >= 1000)
    assert watch.outcomes == dict.fromkeys(range(1, 1001), True)
    assert all(first <= last for first, last, _ in watch.confirms)
    assert await watch.depth("q") == 1000


async def test_persistent_publishes_are_confirmed(watch: Watch) -> None:
    messages = [a_message(b"%d" % n, delivery_mode=2) for n in range(200)]
    assert await watch.publish(*messages) == [True] * 200


async def test_sequence_belongs_to_the_channel(link: Link, watch: Watch) -> None:
    other = await Watch.open(link)
    await watch.publish(*numbered(1, 2))
    assert other.channel.next_publish_seq == 1
    await other.publish(a_message())
    assert other.outcomes == {1: True}
    assert watch.outcomes == {1: True, 2: True}


async def test_unrouted_message_is_confirmed_when_not_mandatory(watch: Watch) -> None:
    assert await watch.publish(a_message(to="nowhere")) == [True]
    assert watch.returns == []


async def test_unrouted_mandatory_message_is_returned_before_its_confirm(watch: Watch) -> None:
    for expected in range(1, 4):
        await watch.publish(a_message(to="nowhere", mandatory=True))
        assert watch.events == ["return", "ack"] * expected


async def test_return_carries_the_message_and_the_reason(watch: Watch) -> None:
    await watch.publish(
        a_message(b"body", to="nowhere", mandatory=True, message_id="m1", headers={"a": 1})
    )
    [returned] = watch.returns
    assert (returned.reply_code, returned.reply_text) == (312, "NO_ROUTE")
    assert (returned.exchange, returned.routing_key, returned.body) == ("", "nowhere", b"body")
    assert returned.properties == Properties(message_id="m1", headers={"a": 1})
    assert watch.events == ["return", "ack"]


async def test_routed_mandatory_message_is_not_returned(watch: Watch) -> None:
    await watch.publish(a_message(mandatory=True))
    assert watch.events == ["ack"]


async def test_publish_to_a_missing_exchange_closes_the_channel_with_404(
    link: Link, watch: Watch
) -> None:
    await watch.channel.publish([a_message(exchange="nowhere")])
    assert await watch.closed_with() == 404
    assert "nowhere" in str(watch.closes[0])
    with pytest.raises(ChannelClosedError):
        await watch.channel.publish([a_message()])
    assert link.is_open
    again = await Watch.open(link)
    assert await again.publish(a_message()) == [True]
    assert len(watch.closes) == 1


ALL_PROPERTIES = Properties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"k": "v"},
    delivery_mode=2,
    priority=7,
    correlation_id="c-1",
    reply_to="answers",
    expiration="60000",
    message_id="m-1",
    timestamp=datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC),
    type="order.placed",
    user_id="guest",
    app_id="shop",
    cluster_id="east",
)


async def sent_and_received(watch: Watch, properties: Properties) -> Properties:
    await watch.publish(a_message()._replace(properties=properties))
    consumer = await Consumer.start(watch.channel, no_ack=True)
    [delivery] = await consumer.receives(1)
    await watch.channel.cancel(consumer.tag)
    return delivery.properties


def assert_same_types(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Mapping):
        for key in one:
            assert_same_types(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_same_types(left, right)


async def test_all_fourteen_properties_arrive(watch: Watch) -> None:
    assert await sent_and_received(watch, ALL_PROPERTIES) == ALL_PROPERTIES


@pytest.mark.parametrize("field", Properties._fields)
async def test_property_arrives_alone(field: str, watch: Watch) -> None:
    properties = Properties(**{field: getattr(ALL_PROPERTIES, field)})
    assert await sent_and_received(watch, properties) == properties


async def test_absent_property_differs_from_an_empty_one(watch: Watch) -> None:
    assert await sent_and_received(watch, Properties()) == Properties()
    empty = Properties(content_type="", headers={}, priority=0, message_id="", type="")
    assert await sent_and_received(watch, empty) == empty


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        127,
        -128,
        255,
        65_535,
        2**31 - 1,
        -(2**31),
        2**31,
        2**40,
        2**63 - 1,
        -(2**63),
        0.0,
        -2.5,
        1e300,
        True,
        False,
        None,
        "",
        "text",
        "smörgås 🦊",
        "x" * 300,
        b"",
        b"\x00\xff raw",
        datetime(2026, 1, 1, tzinfo=UTC),
        [],
        [1, "two", None, [3, {"four": 4}]],
        {},
        {"deep": {"deeper": {"deepest": [True, False]}}},
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_header_value_arrives_with_its_type(value: Any, watch: Watch) -> None:
    received = await sent_and_received(watch, Properties(headers={"value": value}))
    assert received.headers is not None
    assert received.headers["value"] == value
    assert_same_types(received.headers["value"], value)


async def test_header_names_arrive(watch: Watch) -> None:
    headers = {"": 1, "with space": 2, "smörgås": 3, "n" * 200: 4}
    assert (await sent_and_received(watch, Properties(headers=headers))).headers == headers


@pytest.mark.parametrize(
    "properties",
    [
        Properties(),
        Properties(content_type="", headers={}),
        ALL_PROPERTIES._replace(headers={"raw": b"bytes", "list": [1, {"t": None}]}),
    ],
    ids=["none", "empty", "all"],
)
async def test_get_answers_the_properties_that_a_consumer_is_given(
    properties: Properties, watch: Watch
) -> None:
    await watch.publish(a_message()._replace(properties=properties))
    got = await watch.channel.get("q", no_ack=True)
    assert got is not None
    assert got.properties == properties
    assert_same_types(got.properties.headers, properties.headers)


FRAME_MAX = 131_072
SIZES = [0, 1, FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7, FRAME_MAX, FRAME_MAX + 8, 2**20]


@pytest.mark.parametrize("place", EVERY_VERSION, indirect=True)
async def test_largest_body_is_that_of_the_version(place: Place, watch: Watch) -> None:
    largest = (16 if place.version >= (4, 0) else 128) * 2**20
    if place.transport != "server":
        assert watch.channel.size_limit.size_bytes == largest
        return
    # A client does not know it beforehand.
    await watch.channel.publish([a_message(bytes(largest + 1))])
    assert await watch.closed_with() == 406
    assert f"max size {largest}" in str(watch.closes[0])


@pytest.mark.parametrize("size", SIZES)
async def test_body_of_any_size_arrives(size: int, watch: Watch) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    await watch.publish(a_message(body[:size]))
    [delivery] = await watch.drain("q")
    assert delivery.body == body[:size]


async def test_messages_of_one_channel_keep_their_order(watch: Watch) -> None:
    for number in range(20):
        await watch.channel.publish([a_message(b"%d" % number)])
    await watch.publish(a_message(b"last"))
    taken = [delivery.body for delivery in await watch.drain("q")]
    assert taken == [*(b"%d" % number for number in range(20)), b"last"]


@pytest.mark.parametrize("expiration", ["-1", "1.5", "soon", "315360000001"])
async def test_invalid_expiration_closes_the_channel(watch: Watch, expiration: str) -> None:
    await watch.channel.publish([a_message(b"x", expiration=expiration)])
    assert await watch.closed_with() == 406


async def test_longest_expiration_is_taken(watch: Watch) -> None:
    await watch.publish(a_message(b"x", expiration="315360000000"))
    [delivery] = await watch.drain("q")
    assert delivery.properties.expiration == "315360000000"
