"""A server connection accepts any bytes, split in any way: no exception, and the same events."""

from __future__ import annotations

import contextlib
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING

from broker_client.amqp.events import (
    AcksReceived,
    ChannelCloseAsked,
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosed,
    ConnectionFailed,
    Event,
    HeartbeatReceived,
    MethodReceived,
    PublishesReceived,
)
from broker_client.amqp.method_codec import decode_method, encode_method
from broker_client.amqp.properties import encoded_properties
from broker_client.amqp.received_properties import received_properties
from broker_client.amqp.server_connection import ServerConnection
from broker_client.errors import InvalidMessageError, MalformedFrameError, ReplyError
from broker_client.message import Delivery, Properties
from tests.property.test_amqp_encoding import headers, properties, short
from tests.support.violations import FRAMING, VIOLATIONS
from tests.support.wire import (
    BODY,
    HEARTBEAT,
    PROTOCOL_HEADER,
    a_server_connection,
    an_open_connection,
    content_header,
    frame,
    method,
    names_in,
    open_vhost,
    publish,
    raw_method,
    start_ok,
    tune_ok,
)

BY_KEY: dict[int, type[Frame]] = dict(INDEX_MAPPING)
_MAX_MESSAGE_SIZE = 9_000
_FRAME_MAX = 4_096
channels = st.integers(0, 3)


# --------------------------------------------------------------------------- methods

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "bit": st.booleans(),
    "shortstr": short,
    "longstr": st.text(st.characters(codec="utf-8"), max_size=300),
    "table": headers,
}


@st.composite
def methods(draw: st.DrawFn, kinds: tuple[type[Frame], ...] = tuple(BY_KEY.values())) -> Frame:
    """Any method, with any arguments."""
    kind = draw(st.sampled_from(kinds))
    value = kind.__new__(kind)
    for name in kind.attributes():
        setattr(value, name, draw(_VALUES[kind.amqp_type(name)]))
    return value


@given(methods(), channels)
def test_method_comes_back_as_it_was(value: Frame, channel: int) -> None:
    try:
        data = encode_method(channel, value)
    except InvalidMessageError:
        return  # a name of more than 255 bytes
    found = decode_method(data[7:-1])
    assert type(found) is type(value)
    assert dict(found) == dict(value)
    assert struct.unpack_from(">BHI", data) == (1, channel, len(data) - 8)


@given(st.sampled_from(list(BY_KEY)), st.binary(max_size=200))
def test_arguments_of_any_bytes_raise_nothing_but_the_close_they_cost(
    key: int, arguments: bytes
) -> None:
    with contextlib.suppress(ReplyError):
        decode_method(struct.pack(">I", key) + arguments)


@given(properties)
def test_properties_go_out_as_they_came(sent: Properties) -> None:
    try:
        encoded = encoded_properties(sent)
    except InvalidMessageError:
        return
    found = received_properties(encoded)
    assert found == sent
    assert encoded_properties(found) == encoded
    changed = found._replace(app_id="another")
    assert received_properties(encoded_properties(changed)) == changed


@given(st.binary(max_size=200))
def test_properties_of_any_bytes_raise_nothing_but_that_they_are_malformed(data: bytes) -> None:
    try:
        found = received_properties(data)
    except MalformedFrameError:
        return
    assert encoded_properties(found) == data
    if found.headers is not None:
        assert dict(found.headers) is not None


# --------------------------------------------------------------------------- streams of bytes

_HANDSHAKE = PROTOCOL_HEADER + start_ok() + tune_ok(2_047, _FRAME_MAX) + open_vhost()

publishes = st.builds(
    lambda channel, size, key, values: publish(
        bytes(size), values, channel=channel, routing_key=key, frame_max=_FRAME_MAX
    ),
    st.integers(1, 3),
    st.one_of(st.integers(0, 300), st.integers(4_000, 10_000)),
    st.sampled_from(["q", "abcd", "a.b.c"]),
    st.sampled_from(
        [
            Properties(),
            Properties(delivery_mode=2, message_id="1"),
            Properties(headers={"a": [1, {"b": None}]}, content_type="text/plain"),
        ]
    ),
)
settlements = st.builds(
    lambda channel, method_id, tag, bits: raw_method(
        channel, 60, method_id, struct.pack(">QB", tag, bits)
    ),
    channels,
    st.sampled_from([80, 90, 120]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 255),
)
_BREACHES = [case.data for case in (*VIOLATIONS, *FRAMING) if len(case.data) < 1_000]
pieces = st.one_of(
    publishes,
    publishes,
    publishes,
    settlements,
    settlements,
    st.builds(lambda number: method(commands.Channel.Open(), number), st.integers(1, 3)),
    st.builds(lambda number: method(commands.Channel.Close(200, "", 0, 0), number), channels),
    st.builds(lambda number: method(commands.Channel.CloseOk(), number), channels),
    st.builds(lambda number: method(commands.Queue.Declare(queue="q"), number), channels),
    st.builds(frame, st.just(HEARTBEAT), st.sampled_from([0, 0, 0, 1])),
    st.integers(0, len(_BREACHES) - 1).map(lambda index: _BREACHES[index]),
    st.builds(frame, st.integers(0, 9), channels, st.binary(max_size=40)),
    st.binary(max_size=20),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """What a client may send once it is let in: mostly sense, at times with a byte changed."""
    opened = b"".join(method(commands.Channel.Open(), number) for number in (1, 2, 3))
    data = bytearray(opened + b"".join(draw(st.lists(pieces, max_size=12))))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def in_chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def outcome_of(connection: ServerConnection, chunks: list[bytes]) -> tuple[list[Any], bytes]:
    """All events, with runs of publishes and acks of one channel joined, and all that was sent."""
    events: list[Any] = []
    for chunk in chunks:
        for event in connection.receive_data(chunk):
            last = events[-1] if events else None
            if (
                isinstance(event, PublishesReceived)
                and isinstance(last, PublishesReceived)
                and event.channel == last.channel
            ):
                events[-1] = PublishesReceived(last.channel, last.messages + event.messages)
            elif (
                isinstance(event, AcksReceived)
                and isinstance(last, AcksReceived)
                and event.channel == last.channel
            ):
                events[-1] = AcksReceived(last.channel, last.delivery_tags + event.delivery_tags)
            elif isinstance(event, MethodReceived):  # pamqp's frames are equal only to themselves
                events.append((event.channel, event.method.name, dict(event.method)))
            else:
                events.append(event)
    return events, connection.data_to_send()


def a_connection() -> ServerConnection:
    return an_open_connection(frame_max=_FRAME_MAX, max_message_size=_MAX_MESSAGE_SIZE)


@given(streams(), st.lists(st.integers(0, 100_000), max_size=8))
def test_stream_when_cut_anywhere_then_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole = outcome_of(a_connection(), [data])
    assert outcome_of(a_connection(), in_chunks(data, cuts)) == whole
    assert outcome_of(a_connection(), [bytes((byte,)) for byte in data]) == whole


@given(streams())
def test_stream_then_whatever_is_sent_can_be_read_and_the_end_is_the_end(data: bytes) -> None:
    connection = a_connection()
    events, sent = outcome_of(connection, [data])
    closes = names_in(sent).count("Connection.Close")
    assert closes == any(isinstance(e, ConnectionFailed) for e in events)
    ends = [index for index, event in enumerate(events) if isinstance(event, ConnectionClosed)]
    assert ends in ([], [len(events) - 1])
    for event in events:
        if isinstance(event, PublishesReceived):
            assert all(len(message.body) <= _MAX_MESSAGE_SIZE for message in event.messages)
    if ends:
        assert connection.receive_data(data) == []


@given(
    st.one_of(
        st.binary(max_size=300),
        st.builds(
            lambda at, byte: _HANDSHAKE[:at] + bytes((byte,)) + _HANDSHAKE[at + 1 :],
            st.integers(0, len(_HANDSHAKE) - 1),
            st.integers(0, 255),
        ),
    ),
    st.lists(st.integers(0, 1_000), max_size=5),
)
def test_handshake_of_any_bytes_raises_nothing(data: bytes, cuts: list[int]) -> None:
    connection = a_server_connection(frame_max=_FRAME_MAX)
    decide = {"LoginOffered": connection.tune, "VHostRequested": connection.open_ok}
    for chunk in in_chunks(data, cuts):
        events = connection.receive_data(chunk)
        while events:
            for event in events:
                decide.get(type(event).__name__, lambda: None)()
            events = connection.receive_data(b"")
        connection.data_to_send()


# --------------------------------------------------------------------------- against a model


class Model:
    """What a connection with channels makes of single frames, said once more and shorter."""

    def __init__(self) -> None:
        self.is_open = True
        self.channels: dict[int, str] = {}
        """Of each open number: ``idle``, ``header`` or ``body`` awaited, or how it is closing."""
        self.missing: dict[int, int] = {}

    def expect(self, name: str, number: int, size: int) -> list[type[Event]]:
        """The events that a frame is to give."""
        if not self.is_open:
            return []
        found = self._expect(name, number, size)
        if ConnectionFailed in found:
            self.is_open = False
        return found

    def _expect(self, name: str, number: int, size: int) -> list[type[Event]]:
        stage = self.channels.get(number, "closed")
        failed: list[type[Event]] = [ConnectionFailed]
        if name == "heartbeat":
            return failed if number else [HeartbeatReceived]
        if number == 0:
            return failed
        if stage == "closing":  # we have sent channel.close
            if name == "close-ok":
                del self.channels[number]
                return [ChannelClosed]
            return failed if name == "open" else []
        if stage == "asked":  # they have sent it
            return failed if name == "open" else []
        if name == "open":
            self.channels[number] = "idle"
            return [ChannelOpened] if stage == "closed" else failed
        if stage == "closed":
            return failed
        if name in ("header", "body"):
            if stage != name or (name == "body" and size > self.missing[number]):
                return failed
            if name == "header" and size > _MAX_MESSAGE_SIZE:
                self.channels[number] = "closing"
                return [ChannelFailed]
            self.missing[number] = size if name == "header" else self.missing[number] - size
            self.channels[number] = "body" if self.missing[number] else "idle"
            return [] if self.missing[number] else [PublishesReceived]
        if stage != "idle" or name == "close-ok":
            return failed
        if name == "publish":
            self.channels[number] = "header"
            return []
        if name == "close":
            self.channels[number] = "asked"
            return [ChannelCloseAsked]
        return [AcksReceived if name == "ack" else MethodReceived]


def _frame_of(name: str, number: int, size: int) -> bytes:
    if name == "heartbeat":
        return frame(HEARTBEAT, number)
    if name == "header":
        return content_header(size, channel=number)
    if name == "body":
        return frame(BODY, number, bytes(min(size, 4_000)))
    values: dict[str, Frame] = {
        "open": commands.Channel.Open(),
        "close": commands.Channel.Close(200, "", 0, 0),
        "close-ok": commands.Channel.CloseOk(),
        "publish": commands.Basic.Publish(routing_key="q"),
        "declare": commands.Queue.Declare(queue="q"),
        "ack": commands.Basic.Ack(1),
    }
    return method(values[name], number)


_SERVERS = ("answers close", "refuses")
_NAMES = st.sampled_from(
    ["open", "close", "close-ok", "publish", "header", "body", "declare", "ack", "heartbeat"]
)
steps = st.lists(
    st.one_of(
        st.tuples(_NAMES, st.sampled_from([0, 1, 1, 1, 2, 2]), st.sampled_from([0, 3, 5, 9_001])),
        st.tuples(st.sampled_from(_SERVERS), st.integers(1, 2), st.just(0)),
        st.tuples(st.just("whole publish"), st.integers(1, 2), st.sampled_from([0, 3])),
    ),
    max_size=40,
)


@given(steps)
def test_frames_in_any_order_then_as_the_model_says(steps: list[tuple[str, int, int]]) -> None:
    connection, model = a_connection(), Model()
    wanted: list[str]
    for name, number, size in steps:
        if name == "whole publish":
            parts = [("publish", 0), ("header", size)] + ([("body", size)] if size else [])
            data = b"".join(_frame_of(part, number, of) for part, of in parts)
            expected = [kind for part, of in parts for kind in model.expect(part, number, of)]
        elif name == "answers close":
            if model.is_open and model.channels.get(number) == "asked":
                del model.channels[number]
                connection.send(number, commands.Channel.CloseOk())
                assert names_in(connection.data_to_send()) == ["Channel.CloseOk"]
            continue
        elif name == "refuses":
            stage = model.channels.get(number, "closed")
            connection.close_channel(number, 404, "gone")
            if stage not in ("closed", "closing"):
                model.channels[number] = "closing"
            wanted = (
                [] if stage in ("closed", "closing") or not model.is_open else ["Channel.Close"]
            )
            assert names_in(connection.data_to_send()) == wanted
            continue
        else:
            size = min(size, 4_000) if name == "body" else size
            data = _frame_of(name, number, size)
            expected = model.expect(name, number, size)
        assert [type(event) for event in connection.receive_data(data)] == expected, name
        connection.data_to_send()


@pytest.mark.parametrize("frame_max", [0, 4_096, 131_072])
@given(st.binary(max_size=10_000))
def test_content_when_delivered_then_no_frame_is_above_frame_max(
    frame_max: int, body: bytes
) -> None:
    connection = an_open_connection(1, frame_max=frame_max)
    from_client = publish(body, Properties(headers={"a": "b"}), frame_max=frame_max or 131_072)
    (event,) = connection.receive_data(from_client)
    assert isinstance(event, PublishesReceived)
    (message,) = event.messages
    assert message.body == body
    connection.send_deliver(1, Delivery("t", 1, False, "", "q", body, message.properties))
    sent = connection.data_to_send()
    parts = []
    while sent:
        (size,) = struct.unpack_from(">I", sent, 3)
        assert not frame_max or size + 8 <= frame_max
        if sent[0] == BODY:
            parts.append(sent[7 : 7 + size])
        sent = sent[size + 8 :]
    assert b"".join(parts) == body
