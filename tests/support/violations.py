"""Breaches of the protocol on an open connection, and the close that each of them costs."""

from __future__ import annotations

import struct
from typing import NamedTuple

from pamqp import commands

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
    """False where a RabbitMQ ends the socket without a word, waits for more, or fails itself."""


_PUBLISH = method(commands.Basic.Publish(exchange="", routing_key="nowhere"), 1)
_PUBLISHING = (60, 40)
_NOT_IN_RUNNING = "CHANNEL_ERROR - unexpected method in connection state running"
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
    Violation(
        "unknown method",
        raw_method(1, 60, 999),
        540,
        "NOT_IMPLEMENTED - unknown method 999 of class 60",
        (60, 999),
        like_rabbitmq=False,
    ),
    Violation(
        "unknown class",
        raw_method(1, 99, 10),
        540,
        "NOT_IMPLEMENTED - unknown method 10 of class 99",
        (99, 10),
        like_rabbitmq=False,
    ),
    Violation(
        "unknown method on channel 0",
        raw_method(0, 10, 999),
        540,
        "NOT_IMPLEMENTED - unknown method 999 of class 10",
        (10, 999),
        like_rabbitmq=False,
    ),
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
    Violation(
        "table that runs past the frame",
        raw_method(1, 50, 10, b"\0\0\x01q\0" + _table(b"\x01at\0", 2**32 - 1)),
        502,
        "SYNTAX_ERROR - a table runs past its frame",
        (50, 10),
        like_rabbitmq=False,
    ),
    Violation(
        "table with an unknown type",
        raw_method(1, 50, 10, b"\0\0\x01q\0" + _table(b"\x01aZ\0")),
        502,
        "SYNTAX_ERROR - unknown field type 'Z'",
        (50, 10),
        like_rabbitmq=False,
    ),
    Violation(
        "tables nested too deep",
        raw_method(1, 50, 10, b"\0\0\x01q\0" + _nested(10_000)),
        502,
        "SYNTAX_ERROR - tables are nested more than 64 levels deep",
        (50, 10),
        like_rabbitmq=False,
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
    Violation(
        "channel.close-ok on an open channel",
        method(commands.Channel.CloseOk(), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (20, 41),
    ),
    Violation(
        "channel.flow-ok",
        method(commands.Channel.FlowOk(True), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (20, 21),
    ),
    Violation(
        "basic.cancel-ok",
        method(commands.Basic.CancelOk("t"), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (60, 31),
        like_rabbitmq=False,  # so does 3.10; 4.3 says 541
    ),
    Violation(
        "answer that only a server gives",
        method(commands.Queue.DeclareOk("q", 1, 2), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (50, 11),
    ),
    Violation(
        "basic.deliver",
        method(commands.Basic.Deliver("t", 1, False, "", ""), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (60, 60),
        like_rabbitmq=False,  # waits for its content
    ),
    Violation(
        "connection.close on a channel",
        method(commands.Connection.Close(200, "x", 0, 0), 1),
        503,
        "COMMAND_INVALID - unimplemented method",
        (10, 50),
    ),
    Violation(
        "channel.open on channel 0",
        method(commands.Channel.Open(), 0),
        504,
        _NOT_IN_RUNNING,
        (20, 10),
    ),
    Violation(
        "queue.declare on channel 0",
        method(commands.Queue.Declare(queue="q"), 0),
        504,
        _NOT_IN_RUNNING,
        (50, 10),
    ),
    Violation(
        "basic.publish on channel 0",
        method(commands.Basic.Publish(), 0),
        504,
        _NOT_IN_RUNNING,
        (60, 40),
    ),
    Violation("start-ok again", start_ok(), 504, _NOT_IN_RUNNING, (10, 11)),
    Violation("tune-ok again", tune_ok(), 504, _NOT_IN_RUNNING, (10, 31)),
    Violation("connection.open again", open_vhost(), 504, _NOT_IN_RUNNING, (10, 40)),
    Violation(
        "connection.close-ok unasked",
        method(commands.Connection.CloseOk()),
        504,
        _NOT_IN_RUNNING,
        (10, 51),
    ),
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
    Violation(
        "second word of property flags",
        _PUBLISH + content_header(0, flags=1, values=b"\0\0"),
        502,
        "SYNTAX_ERROR - a content header needs one word of property flags",
        _PUBLISHING,
        like_rabbitmq=False,
    ),
    Violation(
        "properties that end too early",
        _PUBLISH + content_header(0, flags=0x8000, values=b"\x09text"),
        502,
        "SYNTAX_ERROR - a short string runs past its frame",
        _PUBLISHING,
        like_rabbitmq=False,
    ),
    Violation(
        "bytes behind the properties",
        _PUBLISH + content_header(0, values=b"abc"),
        502,
        "SYNTAX_ERROR - the properties are longer or shorter than their frame",
        _PUBLISHING,
        like_rabbitmq=False,
    ),
    Violation(
        "headers with an unknown type",
        _PUBLISH + content_header(0, flags=_TABLE, values=_table(b"\x01aZ\0")),
        502,
        "SYNTAX_ERROR - unknown field type 'Z'",
        _PUBLISHING,
        like_rabbitmq=False,
    ),
    Violation(
        "headers nested too deep",
        _PUBLISH + content_header(0, flags=_TABLE, values=_nested(10_000)),
        502,
        "SYNTAX_ERROR - tables are nested more than 64 levels deep",
        _PUBLISHING,
        like_rabbitmq=False,
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
