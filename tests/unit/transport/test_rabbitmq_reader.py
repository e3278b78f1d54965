"""The frame reader, fed with bytes, without a socket."""

import asyncio
import random
import struct
from typing import Any

import pytest
from pamqp import commands
from pamqp.frame import marshal
from pamqp.heartbeat import Heartbeat

from broker_client.amqp.encode import publish_frames
from broker_client.message import Delivery, Outgoing, Properties, Returned
from broker_client.transport.rabbitmq.reader import FrameReader
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


class Receiver:
    """A channel and a link that record their calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.heard.append((name, *args))


class ReaderHarness:
    def __init__(self) -> None:
        self.link, self.channel = Receiver(), Receiver()
        self.reader = FrameReader(self.link)
        self.reader.attach(1, self.channel)

    async def passed_on(self) -> bytes:
        """The bytes that aiormq gets to read."""
        self.reader.feed_eof()
        return await self.reader.read()


def content(channel: int, body: bytes, properties: Properties, frame_max: int = 4_096) -> bytes:
    """Header and body frames, taken from a publish without its method frame."""
    data = publish_frames(channel, Outgoing("", "", body, properties), frame_max)
    (size,) = struct.unpack_from(">I", data, 3)
    return data[size + 8 :]


def deliver(tag: int, body: bytes = b"hello", *, channel: int = 1, **properties: Any) -> bytes:
    method = commands.Basic.Deliver("ctag", tag, False, "orders", "placed")
    return marshal(method, channel) + content(channel, body, Properties(**properties))


def returned(body: bytes = b"hello") -> bytes:
    method = commands.Basic.Return(312, "NO_ROUTE", "orders", "nowhere")
    return marshal(method, 1) + content(1, body, Properties(message_id="m1"))


OPEN_OK = marshal(commands.Channel.OpenOk(), 1)
QOS_OK = marshal(commands.Basic.QosOk(), 1)
EVERYTHING = b"".join(
    [
        OPEN_OK,
        deliver(1, headers={"x": 1}),
        marshal(commands.Basic.Ack(5, True), 1),
        deliver(2, b""),
        QOS_OK,
        deliver(3, bytes(range(256)) * 40),
        marshal(commands.Basic.Nack(6, False, True), 1),
        returned(),
        marshal(commands.Basic.GetEmpty(), 1),
        marshal(commands.Connection.Blocked("low on memory"), 0),
        marshal(commands.Connection.Unblocked(), 0),
        marshal(Heartbeat(), 0),
        marshal(commands.Basic.Cancel("ctag"), 1),
        marshal(commands.Channel.Close(404, "NOT_FOUND", 60, 40), 1),
        marshal(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), 0),
    ]
)
PASSED_ON = b"".join(
    [
        OPEN_OK,
        QOS_OK,
        marshal(commands.Connection.Blocked("low on memory"), 0),
        marshal(commands.Connection.Unblocked(), 0),
        marshal(Heartbeat(), 0),
        marshal(commands.Basic.Cancel("ctag"), 1),
        marshal(commands.Channel.Close(404, "NOT_FOUND", 60, 40), 1),
        marshal(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), 0),
    ]
)
TO_CHANNEL = [
    (
        "delivered",
        Delivery("ctag", 1, False, "orders", "placed", b"hello", Properties(headers={"x": 1})),
    ),
    ("confirmed", 5, True, True),
    ("delivered", Delivery("ctag", 2, False, "orders", "placed", b"", Properties())),
    (
        "delivered",
        Delivery("ctag", 3, False, "orders", "placed", bytes(range(256)) * 40, Properties()),
    ),
    ("confirmed", 6, False, False),
    (
        "message_returned",
        Returned(312, "NO_ROUTE", "orders", "nowhere", b"hello", Properties(message_id="m1")),
    ),
    ("got", None),
    ("consumer_cancelled", "ctag"),
    ("closed_by_broker", 404, "NOT_FOUND"),
]
TO_LINK = [
    ("blocked", "low on memory"),
    ("unblocked",),
    ("closing_by_broker", 320, "CONNECTION_FORCED"),
]


async def test_frames_go_where_they_belong() -> None:
    harness = ReaderHarness()
    harness.reader.feed_data(EVERYTHING)
    assert harness.channel.heard == TO_CHANNEL
    assert harness.link.heard == TO_LINK
    assert await harness.passed_on() == PASSED_ON


def without_heartbeats(data: bytes) -> bytes:
    return data.replace(marshal(Heartbeat(), 0), b"")


async def test_bytes_that_come_one_by_one_give_the_same() -> None:
    harness = ReaderHarness()
    for index in range(len(EVERYTHING)):
        harness.reader.feed_data(EVERYTHING[index : index + 1])
    assert harness.channel.heard == TO_CHANNEL
    assert harness.link.heard == TO_LINK
    assert without_heartbeats(await harness.passed_on()) == without_heartbeats(PASSED_ON)


SMALL = b"".join([OPEN_OK, deliver(1, b"ab"), QOS_OK, marshal(commands.Basic.Ack(1), 1)])


@pytest.mark.parametrize("at", range(len(SMALL)))
async def test_frames_split_at_any_byte_give_the_same(at: int) -> None:
    harness = ReaderHarness()
    harness.reader.feed_data(SMALL[:at])
    harness.reader.feed_data(SMALL[at:])
    assert [heard[0] for heard in harness.channel.heard] == ["delivered", "confirmed"]
    assert harness.channel.heard[0][1].body == b"ab"
    assert without_heartbeats(await harness.passed_on()) == OPEN_OK + QOS_OK


async def test_frames_split_at_random_give_the_same() -> None:
    chance = random.Random(7)
    for _ in range(50):
        harness, at = ReaderHarness(), 0
        while at < len(EVERYTHING):
            size = chance.randrange(1, 600)
            harness.reader.feed_data(EVERYTHING[at : at + size])
            at += size
        assert harness.channel.heard == TO_CHANNEL
        assert without_heartbeats(await harness.passed_on()) == without_heartbeats(PASSED_ON)


async def test_contents_of_two_channels_may_be_interleaved() -> None:
    harness, other = ReaderHarness(), Receiver()
    harness.reader.attach(2, other)
    first, second = deliver(1, b"one"), deliver(2, b"two", channel=2)

    def frames(data: bytes) -> list[bytes]:
        found, at = [], 0
        while at < len(data):
            (size,) = struct.unpack_from(">I", data, at + 3)
            found.append(data[at : at + size + 8])
            at += size + 8
        return found

    for one, two in zip(frames(first), frames(second), strict=True):
        harness.reader.feed_data(one + two)
    assert [heard[1].body for heard in (*harness.channel.heard, *other.heard)] == [b"one", b"two"]


async def test_traffic_that_aiormq_does_not_see_shows_it_that_the_peer_lives() -> None:
    harness = ReaderHarness()
    harness.reader.feed_data(deliver(1))
    harness.reader.feed_data(deliver(2))
    await asyncio.sleep(2.0)
    harness.reader.feed_data(deliver(3))
    assert await harness.passed_on() == marshal(Heartbeat(), 0) * 2


async def test_frames_of_a_detached_channel_are_dropped() -> None:
    harness = ReaderHarness()
    harness.reader.detach(1, Receiver())
    harness.reader.feed_data(deliver(1))
    assert len(harness.channel.heard) == 1
    harness.reader.detach(1, harness.channel)
    harness.reader.feed_data(deliver(2) + marshal(commands.Basic.Ack(1), 1) + returned() + QOS_OK)
    assert len(harness.channel.heard) == 1
    assert without_heartbeats(await harness.passed_on()) == QOS_OK


async def test_channel_closed_amid_a_delivery_leaves_nothing_for_the_next_of_its_number() -> None:
    harness = ReaderHarness()
    method = marshal(commands.Basic.Deliver("ctag", 1, False, "x", "k"), 1)
    harness.reader.feed_data(method)
    harness.reader.feed_data(marshal(commands.Channel.CloseOk(), 1))
    next_owner = Receiver()
    harness.reader.attach(1, next_owner)
    harness.reader.feed_data(deliver(1, b"new"))
    assert [heard[1].body for heard in next_owner.heard] == [b"new"]


async def test_fault_in_a_callback_is_not_taken_for_a_fault_of_the_peer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty(Receiver):
        def delivered(self, delivery: Delivery) -> None:
            raise KeyError("a bug")

    harness = ReaderHarness()
    faulty = Faulty()
    harness.reader.attach(1, faulty)
    harness.reader.feed_data(deliver(1) + marshal(commands.Basic.Ack(4), 1))
    assert faulty.heard == [("confirmed", 4, False, True)]
    assert "internal error" in caplog.text
    assert harness.link.heard == []


# --------------------------------------------------------------------------- bad bytes


def a_frame(kind: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + end


def tables_within_tables(depth: int) -> bytes:
    table = struct.pack(">I", 0)
    for _ in range(depth):
        table = struct.pack(">I", len(table) + 2) + b"\x00F" + table
    return table


BAD = {
    "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20,
    "no frame end": a_frame(1, b"\x00\x14\x00\x0b", end=b"\x00"),
    "too large": struct.pack(">BHI", 3, 1, 200_000) + b"x",
    "another version": b"AMQP\x00\x00\x09\x02",
    "short method": a_frame(1, b"\x00\x3c\x00\x3c\xff"),
    "string past its frame": a_frame(1, b"\x00\x3c\x00\x3c\xffctag"),
    "body without a header": marshal(commands.Basic.Deliver("c", 1, False, "", ""), 1)
    + a_frame(3, b"x"),
}


@pytest.mark.parametrize("what", BAD)
async def test_unreadable_bytes_end_the_link_and_go_on_to_aiormq_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = ReaderHarness()
    harness.reader.established(131_072)
    harness.reader.feed_data(OPEN_OK + marshal(commands.Basic.Ack(1), 1) + QOS_OK + BAD[what])
    assert harness.channel.heard == [("confirmed", 1, False, True)]
    assert [heard[0] for heard in harness.link.heard] == ["socket_lost"]
    assert "unreadable bytes" in caplog.text
    harness.reader.feed_data(deliver(9))
    assert len(harness.channel.heard) == 1
    passed_on = await harness.passed_on()
    assert passed_on.startswith(OPEN_OK + QOS_OK)
    assert marshal(commands.Basic.Ack(1), 1) not in passed_on, "aiormq got what was taken"
    assert passed_on.endswith(deliver(9))


async def test_delivery_whose_headers_cannot_be_read_says_so_and_the_next_is_read() -> None:
    harness = ReaderHarness()
    headers = struct.pack(">HHQH", 60, 0, 2, 0x2080) + tables_within_tables(5_000) + b"\x02m1"
    method = marshal(commands.Basic.Deliver("c", 1, False, "", ""), 1)
    harness.reader.feed_data(method + a_frame(2, headers) + a_frame(3, b"hi") + deliver(2))
    first, second = (delivery for _, delivery in harness.channel.heard)
    assert (first.body, first.properties.message_id) == (b"hi", "m1")
    assert first.fault == "malformed frame: tables are nested more than 64 levels deep"
    assert (second.delivery_tag, second.fault) == (2, "")


async def test_frame_as_large_as_was_agreed_is_taken() -> None:
    harness = ReaderHarness()
    harness.reader.frame_max = 4_096
    body = b"x" * 4_088
    harness.reader.feed_data(deliver(1, body))
    assert harness.channel.heard[0][1].body == body


async def test_reader_of_an_abandoned_handshake_ends_as_after_a_close_in_order() -> None:
    """Otherwise aiormq logs a traceback, though it was we who gave the connection up."""
    harness = ReaderHarness()
    harness.reader.feed_data(OPEN_OK)
    harness.reader.abandon()
    harness.reader.abandon()
    assert await harness.passed_on() == OPEN_OK + marshal(commands.Connection.CloseOk(), 0)
