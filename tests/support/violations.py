"""Protocol violations on an open connection, and the close that answers each."""

from __future__ import annotations

import struct
from typing import NamedTuple

from pamqp import commands
from pamqp.base import Frame

from tests.support.wire import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    content_header,
    frame,
    method,
    open_vhost,
    raw_method,
    start_ok,
    tune_ok,
)


class Violation(NamedTuple):
    """What a client sends on channel 0, or on channel 1, which is open."""

    name: str
    data: bytes
    code: int
    text: str
    ids: tuple[int, int] = (0, 0)
    """Class and method that the close names."""
    like_rabbitmq: bool = True
    """False where RabbitMQ closes the socket without an answer, waits for more, or fails."""


_PUBLISH = method(commands.Basic.Publish(exchange="", routing_key="nowhere"), 1)
_PUBLISHING = (60, 40)
_EXPECTED_METHOD = "UNEXPECTED_FRAME - expected method frame, got non method frame instead"
_EXPECTED_HEADER = (
    "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead"
)
_EXPECTED_BODY = "UNEXPECTED_FRAME - expected content body, got non content body frame instead"
_DECLARE = method(commands.Queue.Declare(queue="q", passive=True), 1)
_TABLE = 0x2000  # flag of the property `headers`


def _table(data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">I", len(data) if size is None else size) + data


def _nested(depth: int) -> bytes:
    table = b""
    for _ in range(depth):
        table = b"\x01aF" + _table(table)
    return _table(table)


def _unknown_method(name: str, channel: int, class_id: int, method_id: int) -> Violation:
    return Violation(
        name,
        raw_method(channel, class_id, method_id),
        540,
        f"NOT_IMPLEMENTED - unknown method {method_id} of class {class_id}",
        (class_id, method_id),
        like_rabbitmq=False,
    )


def _of_servers(
    name: str, value: Frame, ids: tuple[int, int], *, like_rabbitmq: bool = True
) -> Violation:
    """A method that a client may not send on a channel."""
    text = "COMMAND_INVALID - unimplemented method"
    return Violation(name, method(value, 1), 503, text, ids, like_rabbitmq)


def _not_now(name: str, data: bytes, ids: tuple[int, int]) -> Violation:
    """A method that may not be sent on channel 0 of an open connection."""
    text = "CHANNEL_ERROR - unexpected method in connection state running"
    return Violation(name, data, 504, text, ids)


def _arguments(name: str, arguments: bytes, reason: str) -> Violation:
    """A queue.declare with a table that cannot be read."""
    data = raw_method(1, 50, 10, b"\0\0\x01q\0" + arguments)
    return Violation(name, data, 502, f"SYNTAX_ERROR - {reason}", (50, 10), like_rabbitmq=False)


def _properties(name: str, flags: int, values: bytes, reason: str) -> Violation:
    """A publish whose properties cannot be read."""
    data = _PUBLISH + content_header(0, flags=flags, values=values)
    text = f"SYNTAX_ERROR - {reason}"
    return Violation(name, data, 502, text, _PUBLISHING, like_rabbitmq=False)


FRAMING = (
    Violation(
        "frame end",
        frame(METHOD, 1, b"\x00\x32\x00\x0a", end=0),
        501,
        "FRAME_ERROR - type 1, all octets = <<0,50,0,10>>: {invalid_frame_end_marker,0}",
    ),
    Violation(
        "frame above frame_max",
        struct.pack(">BHI", BODY, 1, 200_000),
        501,
        "FRAME_ERROR - type 3, all octets = <<>>: {frame_too_large,200000,131064}",
    ),
)
"""After these, nothing more can be read."""

VIOLATIONS = (
    Violation(
        "heartbeat on a channel",
        frame(HEARTBEAT, 1),
        505,
        "UNEXPECTED_FRAME - type 8, all octets = <<>>",
    ),
    Violation(
        "heartbeat with a payload",
        frame(HEARTBEAT, 0, b"abc"),
        501,
        'FRAME_ERROR - type 8, all octets = <<"abc">>: unknown_frame',
    ),
    Violation(
        "unknown type of frame",
        frame(9, 1, b"a" * 20),
        501,
        'FRAME_ERROR - type 9, first 16 octets = <<"aaaaaaaaaaaaaaaa">>: unknown_frame',
    ),
    Violation(
        "unknown type of frame on channel 0",
        frame(4, 0),
        501,
        "FRAME_ERROR - type 4, all octets = <<>>: unknown_frame",
    ),
    Violation(
        "method frame without a method",
        frame(METHOD, 1, b"ab"),
        501,
        'FRAME_ERROR - type 1, all octets = <<"ab">>: unknown_frame',
    ),
    _unknown_method("unknown method", 1, 60, 999),
    _unknown_method("unknown class", 1, 99, 10),
    _unknown_method("unknown method on channel 0", 0, 10, 999),
    Violation(
        "arguments too short",
        raw_method(1, 50, 10, b"\0\0"),
        501,
        "FRAME_ERROR - cannot decode <<0,0>>",
        (50, 10),
    ),
    Violation(
        "short string runs past the frame",
        raw_method(1, 50, 10, b"\0\0\x09abc"),
        501,
        "FRAME_ERROR - cannot decode <<0,0,9,97,98,99>>",
        (50, 10),
    ),
    Violation(
        "arguments too long",
        raw_method(1, 60, 80, bytes(9) + b"x"),
        501,
        "FRAME_ERROR - cannot decode <<0,0,0,0,0,0,0,0,0,120>>",
        (60, 80),
    ),
    Violation(
        "name that is not UTF-8",
        raw_method(1, 50, 10, b"\0\0\x02\xff\xfe\0\0\0\0\0"),
        501,
        "FRAME_ERROR - Malformed UTF-8 in shortstr",
        (50, 10),
        like_rabbitmq=False,  # but for the ids
    ),
    Violation(
        "routing key that is not UTF-8",
        raw_method(1, 60, 40, b"\0\0\0\x02\xff\xfe\0"),
        501,
        "FRAME_ERROR - Malformed UTF-8 in shortstr",
        (60, 40),
        like_rabbitmq=False,  # takes it
    ),
    Violation(
        "truncated table",
        raw_method(1, 50, 10, b"\0\0\x01q\0" + _table(b"\x01aS\0\0")),
        501,
        "FRAME_ERROR - cannot decode <<0,0,1,113,0,0,0,0,5,1,97,83,0,0>>",
        (50, 10),
        like_rabbitmq=False,
    ),
    _arguments(
        "table that runs past the frame",
        _table(b"\x01at\0", 2**32 - 1),
        "a table runs past its frame",
    ),
    _arguments(
        "table with an unknown type",
        _table(b"\x01aZ\0"),
        "unknown field type 'Z'",
    ),
    _arguments(
        "tables nested too deep",
        _nested(10_000),
        "tables are nested more than 64 levels deep",
    ),
    Violation(
        "second channel.open",
        method(commands.Channel.Open(), 1),
        504,
        "CHANNEL_ERROR - second 'channel.open' seen",
        (20, 10),
    ),
    Violation(
        "method on a channel that is not open",
        method(commands.Queue.Declare(queue="q"), 7),
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
        (50, 10),
    ),
    Violation(
        "publish on a channel that is not open",
        method(commands.Basic.Publish(), 7),
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
        (60, 40),
        like_rabbitmq=False,  # waits for its content
    ),
    Violation(
        "close of a channel that is not open",
        method(commands.Channel.Close(200, "x", 0, 0), 7),
        504,
        "CHANNEL_ERROR - expected 'channel.open'",
        (20, 40),
    ),
    Violation(
        "content on a channel that is not open", content_header(0, channel=7), 505, _EXPECTED_METHOD
    ),
    _of_servers("channel.close-ok on an open channel", commands.Channel.CloseOk(), (20, 41)),
    _of_servers("channel.flow-ok", commands.Channel.FlowOk(True), (20, 21)),
    _of_servers(
        "basic.cancel-ok",
        commands.Basic.CancelOk("t"),
        (60, 31),
        like_rabbitmq=False,  # so does 3.10; 4.3 says 541
    ),
    _of_servers("answer that only a server gives", commands.Queue.DeclareOk("q", 1, 2), (50, 11)),
    _of_servers(
        "basic.deliver",
        commands.Basic.Deliver("t", 1, False, "", ""),
        (60, 60),
        like_rabbitmq=False,  # waits for its content
    ),
    _of_servers(
        "connection.close on a channel", commands.Connection.Close(200, "x", 0, 0), (10, 50)
    ),
    _not_now("channel.open on channel 0", method(commands.Channel.Open()), (20, 10)),
    _not_now("queue.declare on channel 0", method(commands.Queue.Declare(queue="q")), (50, 10)),
    _not_now("basic.publish on channel 0", method(commands.Basic.Publish()), (60, 40)),
    _not_now("start-ok again", start_ok(), (10, 11)),
    _not_now("tune-ok again", tune_ok(), (10, 31)),
    _not_now("connection.open again", open_vhost(), (10, 40)),
    _not_now("connection.close-ok unasked", method(commands.Connection.CloseOk()), (10, 51)),
    Violation("content header without a method", content_header(0), 505, _EXPECTED_METHOD),
    Violation("body without a method", frame(BODY, 1, b"abc"), 505, _EXPECTED_METHOD),
    Violation(
        "content header on channel 0",
        content_header(0, channel=0),
        505,
        "UNEXPECTED_FRAME - type 2, all octets = <<0,60,0,0,0,0,0,0,0,0,0,0,0,0>>",
    ),
    Violation(
        "body on channel 0",
        frame(BODY, 0, b"abc"),
        505,
        'UNEXPECTED_FRAME - type 3, all octets = <<"abc">>',
    ),
    Violation(
        "method instead of a content header",
        _PUBLISH + _DECLARE,
        505,
        _EXPECTED_HEADER,
        _PUBLISHING,
    ),
    Violation(
        "publish instead of a content header", _PUBLISH * 2, 505, _EXPECTED_HEADER, _PUBLISHING
    ),
    Violation(
        "body instead of a content header",
        _PUBLISH + frame(BODY, 1, b"abc"),
        505,
        _EXPECTED_HEADER,
        _PUBLISHING,
    ),
    Violation(
        "second content header",
        _PUBLISH + content_header(3) * 2,
        505,
        _EXPECTED_BODY,
        _PUBLISHING,
    ),
    Violation(
        "method instead of a body",
        _PUBLISH + content_header(3) + _DECLARE,
        505,
        _EXPECTED_BODY,
        _PUBLISHING,
    ),
    Violation(
        "more body than its header says",
        _PUBLISH + content_header(3) + frame(BODY, 1, b"abcd"),
        505,
        _EXPECTED_BODY,
        _PUBLISHING,
        like_rabbitmq=False,  # says so of the next frame
    ),
    Violation(
        "content header of another class",
        _PUBLISH + content_header(3, class_id=50),
        505,
        "UNEXPECTED_FRAME - expected content header for class 60, got one for class 50 instead",
        _PUBLISHING,
    ),
    Violation("weight", _PUBLISH + content_header(0, weight=7), 505, _EXPECTED_HEADER, _PUBLISHING),
    Violation(
        "content header too short",
        _PUBLISH + frame(HEADER, 1, b"\0\x3c"),
        501,
        "FRAME_ERROR - type 2, all octets = <<0,60>>: unknown_frame",
        _PUBLISHING,
        like_rabbitmq=False,  # but for the ids
    ),
    _properties(
        "second word of property flags",
        1,
        b"\0\0",
        "a content header needs one word of property flags",
    ),
    _properties(
        "properties that end too early",
        0x8000,
        b"\x09text",
        "a short string runs past its frame",
    ),
    _properties(
        "bytes behind the properties",
        0,
        b"abc",
        "the properties are longer or shorter than their frame",
    ),
    _properties(
        "headers with an unknown type",
        _TABLE,
        _table(b"\x01aZ\0"),
        "unknown field type 'Z'",
    ),
    _properties(
        "headers nested too deep",
        _TABLE,
        _nested(10_000),
        "tables are nested more than 64 levels deep",
    ),
    Violation(
        "immediate",
        method(commands.Basic.Publish(immediate=True), 1) + content_header(0),
        540,
        "NOT_IMPLEMENTED - immediate=true",
        _PUBLISHING,
    ),
)
"""After these, the close is waited for."""
