"""A peer that breaks the protocol gets the close that RabbitMQ and the specification give."""

from __future__ import annotations

import struct

import pytest
from pamqp import commands

from broker_client.amqp.events import (
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    ConnectionClosed,
    ConnectionFailed,
    Event,
    HeartbeatReceived,
    PublishesReceived,
)
from broker_client.amqp.server_connection import ServerConnection
from broker_client.amqp.states import ConnectionState
from tests.support.violations import FRAMING, VIOLATIONS, Violation
from tests.support.wire import (
    BODY,
    HEARTBEAT,
    PROTOCOL_HEADER,
    a_server_connection,
    an_open_connection,
    content_header,
    frame,
    frames_in,
    method,
    names_in,
    open_vhost,
    publish,
    start_ok,
    tune_ok,
)


def the_close(data: bytes) -> tuple[int, int, str, tuple[int, int]]:
    """(channel, code, text, ids) of the only frame in `data`, which is a close."""
    ((channel, close),) = frames_in(data)
    assert close.name in ("Connection.Close", "Channel.Close")
    return channel, close.reply_code, close.reply_text, (close.class_id, close.method_id)


@pytest.mark.parametrize("case", VIOLATIONS, ids=lambda case: case.name)
def test_violation_then_the_connection_is_closed_and_all_but_close_ok_dropped(
    case: Violation,
) -> None:
    connection = an_open_connection(1)
    assert connection.receive_data(case.data) == [ConnectionFailed(case.code, case.text)]
    assert the_close(connection.data_to_send()) == (0, case.code, case.text, case.ids)
    assert connection.state is ConnectionState.CLOSING
    for again in VIOLATIONS:
        if again.name != "connection.close-ok unasked":  # it is asked for now
            assert connection.receive_data(again.data) == []
    assert connection.data_to_send() == b""


@pytest.mark.parametrize("case", VIOLATIONS, ids=lambda case: case.name)
def test_violation_when_more_follows_then_close_ok_is_still_read(case: Violation) -> None:
    connection = an_open_connection(1)
    close_ok = method(commands.Connection.CloseOk())
    events = connection.receive_data(case.data + publish() + close_ok)
    assert events == [ConnectionFailed(case.code, case.text), ConnectionClosed()]
    assert connection.state is ConnectionState.CLOSED


@pytest.mark.parametrize("case", FRAMING, ids=lambda case: case.name)
def test_framing_error_then_nothing_more_is_read(case: Violation) -> None:
    connection = an_open_connection(1)
    events = connection.receive_data(case.data + method(commands.Connection.CloseOk()))
    assert events == [ConnectionFailed(case.code, case.text), ConnectionClosed()]
    assert the_close(connection.data_to_send()) == (0, case.code, case.text, case.ids)
    assert connection.receive_data(publish()) == []


@pytest.mark.parametrize("case", VIOLATIONS, ids=lambda case: case.name)
def test_violation_when_byte_by_byte_then_the_same(case: Violation) -> None:
    connection = an_open_connection(1)
    events: list[Event] = []
    for byte in case.data:
        events += connection.receive_data(bytes((byte,)))
    assert events == [ConnectionFailed(case.code, case.text)]
    assert the_close(connection.data_to_send()) == (0, case.code, case.text, case.ids)


def test_frame_above_frame_max_is_refused_before_its_payload_comes() -> None:
    connection = an_open_connection(1, frame_max=4_096)
    events = connection.receive_data(struct.pack(">BHI", BODY, 1, 4_089))
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionClosed]
    connection = an_open_connection(1, frame_max=4_096)
    assert connection.receive_data(struct.pack(">BHI", BODY, 1, 4_088)) == []


def test_frame_without_frame_max_may_be_as_large_as_the_largest_body() -> None:
    size = 200_000
    connection = an_open_connection(1, frame_max=0, max_message_size=size)
    assert connection.receive_data(struct.pack(">BHI", BODY, 1, size)) == []
    connection = an_open_connection(1, frame_max=0, max_message_size=size)
    events = connection.receive_data(struct.pack(">BHI", BODY, 1, size + 1))
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionClosed]


def test_frame_before_tune_when_above_8192_bytes_then_the_socket_ends() -> None:
    connection = a_server_connection()
    connection.receive_data(PROTOCOL_HEADER)
    connection.data_to_send()
    events = connection.receive_data(struct.pack(">BHI", 1, 0, 8_185))
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionClosed]
    assert connection.data_to_send() == b""


# --------------------------------------------------------------------------- too large


@pytest.mark.parametrize("size", [1_001, 2**63])
def test_body_above_max_message_size_costs_the_channel_before_it_comes(size: int) -> None:
    connection = an_open_connection(1, 2, max_message_size=1_000)
    text = f"PRECONDITION_FAILED - message size {size} is larger than configured max size 1000"
    data = method(commands.Basic.Publish(), 1) + content_header(size)
    assert connection.receive_data(data) == [ChannelFailed(1, 406, text)]
    assert the_close(connection.data_to_send()) == (1, 406, text, (60, 40))
    assert connection.receive_data(frame(BODY, 1, b"x" * 500) * 3) == []
    body = connection.receive_data(publish(b"x" * 1_000, channel=2))
    assert isinstance(body[0], PublishesReceived)
    assert connection.receive_data(method(commands.Channel.CloseOk(), 1)) == [ChannelClosed(1)]
    assert connection.receive_data(method(commands.Channel.Open(), 1)) == [ChannelOpened(1)]


def test_whole_message_in_one_read_when_above_max_message_size_then_refused_nevertheless() -> None:
    connection = an_open_connection(1, max_message_size=1_000)
    events = connection.receive_data(publish(b"x" * 1_000) + publish(b"x" * 1_001) + publish())
    assert [type(event) for event in events] == [PublishesReceived, ChannelFailed]
    assert isinstance(events[0], PublishesReceived)
    assert [len(message.body) for message in events[0].messages] == [1_000]


# --------------------------------------------------------------------------- channels


def test_channel_beyond_channel_max_then_530() -> None:
    connection = an_open_connection(1, 2, channel_max=2)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    (event,) = connection.receive_data(method(commands.Channel.Open(), 3))
    assert event == ConnectionFailed(530, text)


def test_channel_number_above_channel_max_then_opened_nevertheless() -> None:
    connection = an_open_connection(1, channel_max=2)
    assert connection.receive_data(method(commands.Channel.Open(), 65_535)) == [
        ChannelOpened(65_535)
    ]
    (event,) = connection.receive_data(method(commands.Channel.Open(), 2))
    assert isinstance(event, ConnectionFailed)
    assert event.reply_code == 530


def test_channel_max_when_zero_then_any_number() -> None:
    connection = an_open_connection(1, channel_max=0)
    assert connection.receive_data(method(commands.Channel.Open(), 65_535)) == [
        ChannelOpened(65_535)
    ]


def test_frames_of_a_closing_channel_are_dropped_until_close_ok() -> None:
    connection = an_open_connection(1)
    connection.close_channel(1, 404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10)
    assert names_in(connection.data_to_send()) == ["Channel.Close"]
    dropped = (
        publish(b"x" * 10)
        + method(commands.Queue.Declare(queue="q"), 1)
        + content_header(3)
        + frame(BODY, 1, b"abc")
        + method(commands.Basic.Ack(9), 1)
        + b"".join(case.data for case in VIOLATIONS if case.name == "unknown method")
    )
    assert connection.receive_data(dropped) == []
    connection.send_confirm(1, 1, multiple=False, acked=True)
    connection.send(1, commands.Queue.DeclareOk("q", 0, 0))
    assert connection.data_to_send() == b""
    assert connection.receive_data(method(commands.Channel.CloseOk(), 1)) == [ChannelClosed(1)]
    assert connection.receive_data(method(commands.Channel.Open(), 1)) == [ChannelOpened(1)]


def test_channel_close_when_both_ask_then_both_are_answered() -> None:
    connection = an_open_connection(1)
    connection.close_channel(1, 404, "gone")
    data = method(commands.Channel.Close(200, "bye", 0, 0), 1)
    assert connection.receive_data(data) == []
    assert names_in(connection.data_to_send()) == ["Channel.Close", "Channel.CloseOk"]
    assert connection.receive_data(method(commands.Channel.CloseOk(), 1)) == [ChannelClosed(1)]


def test_channel_refused_when_its_client_has_asked_to_close_then_it_still_hears_why() -> None:
    connection = an_open_connection(1)
    connection.receive_data(publish() + method(commands.Channel.Close(200, "bye", 0, 0), 1))
    connection.close_channel(1, 404, "no exchange")
    connection.send(1, commands.Channel.CloseOk())
    assert names_in(connection.data_to_send()) == ["Channel.Close", "Channel.CloseOk"]
    assert connection.receive_data(method(commands.Channel.CloseOk(), 1)) == [ChannelClosed(1)]


def test_content_of_two_channels_may_be_interleaved() -> None:
    connection = an_open_connection(1, 2)
    start = method(commands.Basic.Publish(routing_key="a"), 1) + content_header(4)
    other = method(commands.Basic.Publish(routing_key="b"), 2) + content_header(2, channel=2)
    data = start + frame(BODY, 1, b"ab") + other + frame(BODY, 2, b"xy") + frame(BODY, 1, b"cd")
    events = connection.receive_data(data)
    assert [
        (event.channel, [(m.routing_key, m.body) for m in event.messages])
        for event in events
        if isinstance(event, PublishesReceived)
    ] == [(2, [("b", b"xy")]), (1, [("a", b"abcd")])]


def test_heartbeat_between_the_frames_of_a_message_is_heard() -> None:
    connection = an_open_connection(1)
    data = method(commands.Basic.Publish(), 1) + frame(HEARTBEAT, 0) + content_header(0)
    events = connection.receive_data(data)
    assert [type(event) for event in events] == [HeartbeatReceived, PublishesReceived]


def test_body_when_some_of_its_frames_are_empty_then_whole() -> None:
    connection = an_open_connection(1)
    data = method(commands.Basic.Publish(), 1) + content_header(3)
    (event,) = connection.receive_data(data + frame(BODY, 1) + frame(BODY, 1, b"abc"))
    assert isinstance(event, PublishesReceived)
    assert event.messages[0].body == b"abc"


# --------------------------------------------------------------------------- the handshake


def at_tuning() -> ServerConnection:
    connection = a_server_connection()
    connection.receive_data(PROTOCOL_HEADER + start_ok())
    connection.tune()
    connection.data_to_send()
    return connection


@pytest.mark.parametrize(
    "header", [b"GET / HTTP/1.1\r\n", b"AMQP\x00\x01\x00\x00", b"AMQP\x01\x01\x08\x00", b"X"]
)
def test_protocol_header_when_wrong_then_ours_and_the_end(header: bytes) -> None:
    connection = a_server_connection()
    assert connection.receive_data(header) == [ConnectionClosed()]
    assert connection.data_to_send() == PROTOCOL_HEADER


@pytest.mark.parametrize(
    ("channel_max", "frame_max", "text"),
    [
        (0, 131_072, "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)"),
        (2_048, 131_072, "channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (1, 0, "frame_max = 0 (no limit) is higher than the maximum allowed value (131072)"),
        (1, 131_073, "frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (1, 4_095, "frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_tune_ok_when_out_of_bounds_then_530(channel_max: int, frame_max: int, text: str) -> None:
    connection = at_tuning()
    text = f"NOT_ALLOWED - negotiated {text}"
    events = connection.receive_data(tune_ok(channel_max, frame_max))
    assert events == [ConnectionFailed(530, text)]
    assert the_close(connection.data_to_send()) == (0, 530, text, (10, 31))


def test_tune_ok_when_lower_then_taken() -> None:
    connection = at_tuning()
    connection.receive_data(tune_ok(7, 4_096, 11))
    assert (connection.channel_max, connection.frame_max, connection.heartbeat) == (7, 4_096, 11)


@pytest.mark.parametrize(
    "data",
    [
        tune_ok(),
        open_vhost(),
        method(commands.Channel.Open(), 1),
        method(commands.Connection.Close(200, "x", 0, 0)),
        b"\x00" * 8,
        publish(),
    ],
)
def test_handshake_when_out_of_order_then_the_socket_ends_without_a_word(data: bytes) -> None:
    connection = a_server_connection()
    connection.receive_data(PROTOCOL_HEADER)
    connection.data_to_send()
    events = connection.receive_data(data)
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionClosed]
    assert connection.data_to_send() == b""


def test_channel_method_before_connection_open_then_505() -> None:
    connection = at_tuning()
    connection.receive_data(tune_ok())
    (event,) = connection.receive_data(method(commands.Channel.Open(), 1))
    text = "UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,1,48>>"
    assert event == ConnectionFailed(505, text)
    assert the_close(connection.data_to_send()) == (0, 505, text, (0, 0))


def test_whole_handshake_in_one_read_then_it_waits_for_each_decision() -> None:
    connection = a_server_connection()
    open_channel = method(commands.Channel.Open(), 1)
    data = PROTOCOL_HEADER + start_ok() + tune_ok() + open_vhost() + open_channel + publish()
    assert [type(e).__name__ for e in connection.receive_data(data)] == ["LoginOffered"]
    assert connection.receive_data(b"") == []
    connection.tune()
    events = connection.receive_data(b"")
    assert [type(event).__name__ for event in events] == ["Tuned", "VHostRequested"]
    connection.open_ok()
    events = connection.receive_data(b"")
    assert [type(event).__name__ for event in events] == ["ChannelOpened", "PublishesReceived"]


def test_unread_bytes_while_a_decision_is_due_are_bounded() -> None:
    connection = a_server_connection()
    connection.receive_data(PROTOCOL_HEADER + start_ok())
    events: list[Event] = []
    for _ in range(100):
        events += connection.receive_data(bytes(65_536))
    assert [type(event) for event in events] == [ConnectionFailed, ConnectionClosed]


@pytest.mark.parametrize("patient", [True, False])
def test_login_refused_then_403_to_a_client_that_reads_it(patient: bool) -> None:
    connection = a_server_connection()
    capabilities = {"capabilities": {"authentication_failure_close": patient}}
    connection.receive_data(PROTOCOL_HEADER + start_ok(properties=capabilities))
    connection.data_to_send()
    connection.refuse_login("PLAIN")
    if patient:
        text = (
            "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
            "For details see the broker logfile."
        )
        assert the_close(connection.data_to_send()) == (0, 403, text, (0, 0))
        assert connection.receive_data(b"") == []
    else:
        assert connection.data_to_send() == b""
        assert connection.receive_data(b"") == [ConnectionClosed()]
