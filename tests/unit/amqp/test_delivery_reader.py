"""Runs of whole deliveries, beside the same bytes read one frame at a time."""

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.frame import marshal

from broker_client.amqp.delivery_reader import DeliveryReader
from broker_client.amqp.encode import publish_frames
from broker_client.amqp.properties import HeaderReader, encode_properties, readable_header
from broker_client.message import Delivery, Outgoing, Properties
from tests.support.wire import frame, raw_method

FRAME_MAX = 131_072
HEARTBEAT = frame(8, 0)

names = st.sampled_from(["", "a", "b", "ab", "orders", "ü" * 100])
properties = st.builds(
    lambda **given: Properties(**given),  # a class itself would have all its fields filled
    content_type=st.sampled_from([None, "text/plain", "application/json"]),
    headers=st.sampled_from([None, {}, {"x": 1}]),
    delivery_mode=st.sampled_from([None, 2]),
    message_id=st.sampled_from([None, "m1", "m2"]),
    type=st.sampled_from([None, "t"]),
)
deliveries = st.builds(
    lambda *given: Delivery(*given),
    names,
    st.integers(0, 2**64 - 1),
    st.booleans(),
    names,
    names,
    st.sampled_from([b"", b"\xce", b"hello", bytes(300)]),
    properties,
)


def content(channel: int, body: bytes, properties: Properties) -> bytes:
    data = publish_frames(channel, Outgoing("", "", body, properties), FRAME_MAX)
    (size,) = struct.unpack_from(">I", data, 3)
    return data[size + 8 :]


def short(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def encoded(delivery: Delivery, channel: int = 1) -> bytes:
    tag, number, redelivered, exchange, routing_key, body, properties, *_ = delivery
    between = struct.pack(">QB", number, redelivered)
    arguments = short(tag) + between + short(exchange) + short(routing_key)
    return raw_method(channel, 60, 60, arguments) + content(channel, body, properties)


def read(
    data: bytes, at: int = 0, *, reader: DeliveryReader | None = None, frame_max: int = FRAME_MAX
) -> tuple[list[tuple[int, Delivery]], int]:
    return (reader or DeliveryReader())(data, at, frame_max, HeaderReader())


ONE = Delivery("c", 7, True, "orders", "new", b"body", Properties(message_id="m1"))


@given(st.lists(st.tuples(st.integers(1, 3), deliveries), max_size=8), st.binary(max_size=3))
def test_run_is_read_up_to_the_first_that_has_no_single_body(
    sent: Sequence[tuple[int, Delivery]], before: bytes
) -> None:
    run = list(sent)
    for place, (_, delivery) in enumerate(sent):
        if not delivery.body:
            del run[place:]
            break
    data = before + b"".join(encoded(delivery, number) for number, delivery in sent)
    found, end = read(data, len(before))
    assert found == run
    assert end == len(before) + sum(len(encoded(delivery, number)) for number, delivery in run)


@pytest.mark.parametrize("cut", range(1, len(encoded(ONE))))
def test_delivery_that_is_cut_off_is_left_also_behind_a_whole_one(cut: int) -> None:
    whole = encoded(ONE)
    assert read(whole + whole[:cut]) == ([(1, ONE)], len(whole))
    assert read(whole[:cut]) == ([], 0)


@given(st.integers(0, len(encoded(ONE)) - 1), st.integers(1, 255))
def test_damaged_delivery_is_read_without_its_neighbours_or_left(place: int, change: int) -> None:
    whole = encoded(ONE)
    damaged = bytearray(whole)
    damaged[place] ^= change
    found, end = read(whole + bytes(damaged) + whole)
    assert found[0] == (1, ONE)
    assert end in (len(whole), 3 * len(whole))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(HEARTBEAT, id="heartbeat"),
        pytest.param(marshal(commands.Basic.Ack(3), 1), id="another method"),
        pytest.param(marshal(commands.Basic.Deliver("c", 1, False, "", "q"), 1), id="no content"),
        pytest.param(content(1, b"body", Properties()), id="no method"),
        pytest.param(
            marshal(commands.Basic.Deliver("c", 1, False, "", "q"), 1)
            + content(2, b"body", Properties()),
            id="another channel",
        ),
        pytest.param(
            marshal(commands.Basic.Deliver("c", 1, False, "", "q"), 1)
            + frame(2, 1, encode_properties(Properties())[:4] + struct.pack(">QH", 9, 0))
            + frame(3, 1, b"body"),
            id="part of a body",
        ),
    ],
)
def test_anything_else_is_left_and_ends_the_run(other: bytes) -> None:
    whole = encoded(ONE)
    assert read(whole + other + whole) == ([(1, ONE)], len(whole))
    assert read(other + whole) == ([], 0)


def test_frame_that_is_too_large_is_left() -> None:
    large = ONE._replace(body=bytes(5_000))
    assert read(encoded(large), frame_max=4_096) == ([], 0)
    assert read(encoded(large), frame_max=5_008)[0] == [(1, large)]


@given(st.lists(st.tuples(properties, st.integers(0, 9))))
def test_headers_are_read_whatever_came_before_them(sent: list[tuple[Properties, int]]) -> None:
    read_header = HeaderReader()
    for each, cut in sent:
        payload = encode_properties(each)
        payload = payload[: max(14, len(payload) - cut)]
        assert read_header(payload) == readable_header(payload)
