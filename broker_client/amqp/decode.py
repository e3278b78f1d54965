"""Bytes to values: the methods a client receives most (AMQP 0-9-1 §4.2).

Only what the hot path needs is decoded here: deliveries, returns, confirms, and the notices that
end a channel or a connection. Everything is checked against the length it claims before it is
read; a frame with a wrong length raises `MalformedFrameError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from broker_client.amqp.table_decoding import decode_short

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_HEADER_SIZE = 7
FRAME_END = 0xCE

# Methods, as class << 16 | method (AMQP 0-9-1 §1.4 and RabbitMQ's extensions).
CONNECTION_CLOSE = 10 << 16 | 50
CONNECTION_BLOCKED = 10 << 16 | 60
CONNECTION_UNBLOCKED = 10 << 16 | 61
CHANNEL_CLOSE = 20 << 16 | 40
CHANNEL_CLOSE_OK = 20 << 16 | 41
BASIC_CANCEL = 60 << 16 | 30
BASIC_RETURN = 60 << 16 | 50
BASIC_DELIVER = 60 << 16 | 60
BASIC_GET_OK = 60 << 16 | 71
BASIC_GET_EMPTY = 60 << 16 | 72
BASIC_ACK = 60 << 16 | 80
BASIC_NACK = 60 << 16 | 120

frame_header: Callable[[bytes, int], tuple[Any, ...]] = struct.Struct(">BHI").unpack_from
"""(type, channel, payload size) of the frame at an offset."""
method_key: Callable[[bytes, int], tuple[Any, ...]] = struct.Struct(">I").unpack_from
"""Class and method of a method payload, as one number."""

_ACK = struct.Struct(">QB").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_U16 = struct.Struct(">H").unpack_from


class DeliverMethod(NamedTuple):
    """basic.deliver."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class GetOk(NamedTuple):
    """basic.get-ok, without its count of remaining messages."""

    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str


class ReturnMethod(NamedTuple):
    """basic.return."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


def deliver(data: bytes, at: int) -> tuple[DeliverMethod, int]:
    """The arguments of a basic.deliver that begin at `at`, and the offset behind them."""
    consumer_tag, at = decode_short(data, at)
    (delivery_tag,) = _U64(data, at)
    redelivered = data[at + 8] & 1 == 1
    exchange, at = decode_short(data, at + 9)
    routing_key, at = decode_short(data, at)
    return DeliverMethod(consumer_tag, delivery_tag, redelivered, exchange, routing_key), at


def get_ok(data: bytes, at: int) -> GetOk:
    """The arguments of a basic.get-ok that begin at `at`."""
    (delivery_tag,) = _U64(data, at)
    redelivered = data[at + 8] & 1 == 1
    exchange, at = decode_short(data, at + 9)
    routing_key, at = decode_short(data, at)
    return GetOk(delivery_tag, redelivered, exchange, routing_key)


def returned(data: bytes, at: int) -> ReturnMethod:
    """The arguments of a basic.return that begin at `at`."""
    code, text, at = _reply(data, at)
    exchange, at = decode_short(data, at)
    routing_key, at = decode_short(data, at)
    return ReturnMethod(code, text, exchange, routing_key)


def confirm(data: bytes, at: int) -> tuple[int, bool]:
    """(delivery tag, multiple) of a basic.ack or basic.nack."""
    tag, bits = _ACK(data, at)
    return tag, bits & 1 == 1


def close_reason(data: bytes, at: int) -> tuple[int, str]:
    """(reply code, reply text) of a connection.close or channel.close."""
    code, text, _ = _reply(data, at)
    return code, text


def _reply(data: bytes, at: int) -> tuple[int, str, int]:
    (code,) = _U16(data, at)
    text, at = decode_short(data, at + 2)
    return code, text, at
