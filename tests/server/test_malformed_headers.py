"""A publish whose header table cannot be decoded costs its own connection, and nothing else."""

from __future__ import annotations

import re
import struct

import pytest
from pamqp import commands

from broker_client.amqp.table_decoding import MAX_DEPTH
from tests.server.conftest import Listen
from tests.server.peer import Peer
from tests.support.wire import content_header, frame, method, publish

_HEADERS = 0x2000
_PYTHON = re.compile(r"unpack|buffer|codec|index|range\(|int\(|0x[0-9a-f]{8}|Error\b", re.ASCII)


def _sized(data: bytes, size: int | None = None) -> bytes:
    return struct.pack(">I", len(data) if size is None else size) + data


def _nested(kind: bytes, depth: int) -> bytes:
    inner = b""
    for level in range(depth):
        key = b"\x01a" if kind == b"F" or level == depth - 1 else b""
        inner = key + kind + _sized(inner)
    return _sized(inner)


_CUT = "the bytes end in the middle of a value"
_PAST_TABLE = "a value runs past its table"
_PAST_FRAME = "a table runs past its frame"
_PAST_OTHER = "a table or array runs past what surrounds it"
_TOO_DEEP = f"tables are nested more than {MAX_DEPTH} levels deep"
_NOT_FINITE = "a floating-point number is not finite"

MALFORMED = {
    "no table": (b"", _CUT),
    "half a size": (b"\0\0", _CUT),
    "size beyond the frame": (_sized(b"\x01at\1", 2**32 - 1), _PAST_FRAME),
    "size one too many": (_sized(b"\x01at\1", 5), _PAST_FRAME),
    "key alone": (_sized(b"\x01a"), _CUT),
    "key beyond the table": (_sized(b"\xffa"), "a short string runs past its frame"),
    "type alone": (_sized(b"\x01at"), _CUT),
    "octet alone": (_sized(b"\x01ab"), _CUT),
    "half a number": (_sized(b"\x01al\0\0\0"), _CUT),
    "half a float": (_sized(b"\x01ad\0\0\0"), _CUT),
    "half a decimal": (_sized(b"\x01aD\x02\0"), _PAST_TABLE),
    "decimal alone": (_sized(b"\x01aD"), _CUT),
    "half a time": (_sized(b"\x01aT\0\0\0\0"), _CUT),
    "half a size of a string": (_sized(b"\x01aS\0\0"), _CUT),
    "string beyond the frame": (
        _sized(b"\x01aS\0\0\0\x09text"),
        "a long string runs past its frame",
    ),
    "byte array beyond the frame": (
        _sized(b"\x01ax\xff\xff\xff\xff"),
        "a long string runs past its frame",
    ),
    "half a size of a table": (_sized(b"\x01aF\0"), _CUT),
    "inner table beyond its table": (_sized(b"\x01aF\0\0\0\x09"), _PAST_OTHER),
    "array beyond its table": (_sized(b"\x01aA\0\0\0\x09"), _PAST_OTHER),
    "value beyond its inner table": (
        _sized(b"\x01aF" + _sized(b"\x01bI\0", 4) + b"\0\0\0"),
        _PAST_TABLE,
    ),
    "item beyond its array": (_sized(b"\x01aA" + _sized(b"I\0", 2) + b"\0\0\0"), _PAST_TABLE),
    "unknown type": (_sized(b"\x01aZ\0"), "unknown field type 'Z'"),
    "zero as a type": (_sized(b"\x01a\0\0"), "unknown field type 0x00"),
    "type above 127": (_sized(b"\x01a\xe9\0"), "unknown field type 0xe9"),
    "unknown type in an array": (_sized(b"\x01aA" + _sized(b"q")), "unknown field type 'q'"),
    "tables nested too deep": (_nested(b"F", MAX_DEPTH), _TOO_DEEP),
    "arrays nested too deep": (_nested(b"A", MAX_DEPTH), _TOO_DEEP),
    "tables nested far too deep": (_nested(b"F", 10_000), _TOO_DEEP),
    "not a number": (_sized(b"\x01ad" + struct.pack(">d", float("nan"))), _NOT_FINITE),
    "infinity": (_sized(b"\x01af" + struct.pack(">f", float("-inf"))), _NOT_FINITE),
    "beyond 512 bytes": (
        _sized(b"\x01aS" + _sized(bytes(600)) + b"\x01bZ"),
        "unknown field type 'Z'",
    ),
}


def _publish(table: bytes) -> list[bytes]:
    """The frames of a publish."""
    return [
        method(commands.Basic.Publish(routing_key="q"), 1),
        content_header(4, flags=_HEADERS, values=table),
        frame(3, 1, b"half"),
    ]


@pytest.fixture
async def port(listen: Listen) -> int:
    return (await listen()).port


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_headers_close_their_connection_and_no_other(port: int, case: str) -> None:
    table, reason = MALFORMED[case]
    async with Peer.on_channel(port) as consumer, Peer.on_channel(port) as publisher:
        consumer.send(1, commands.Queue.Declare(queue="q"))
        await consumer.expect(commands.Queue.DeclareOk)
        consumer.send(1, commands.Basic.Consume(queue="q", consumer_tag="c"))
        await consumer.expect(commands.Basic.ConsumeOk)
        for pieces in (True, False):  # frame by frame, and all at once between sound ones
            async with Peer.on_channel(port) as bad:
                frames = _publish(table)
                if pieces:
                    for each in frames[:2]:
                        bad.write(each)
                        await bad.writer.drain()
                else:
                    bad.write(publish(b"before") + b"".join(frames) + publish(b"behind"))
                close = await bad.expect(commands.Connection.Close)
                assert (close.reply_code, close.class_id, close.method_id) == (502, 60, 40)
                assert close.reply_text == f"SYNTAX_ERROR - {reason}"
                assert not _PYTHON.search(close.reply_text)
                bad.send(0, commands.Connection.CloseOk())
                assert await bad.ended() == b""
        publisher.write(publish(b"after!"))
        tags = [(await consumer.expect(commands.Basic.Deliver)).delivery_tag for _ in range(2)]
        assert tags == [1, 2]  # before and after!
        consumer.send(1, commands.Queue.Declare(queue="q", passive=True))
        found = await consumer.expect(commands.Queue.DeclareOk)  # and no third delivery
        assert (found.message_count, found.consumer_count) == (0, 1)
