"""Bytes to values: the frames a client receives most, and the content header (AMQP 0-9-1 §4.2).

Only what the hot path needs is decoded here: deliveries, returns, confirms, and the notices that
end a channel or a connection. Everything is checked against the length it claims before it is
read; a frame that lies raises `MalformedFrameError`.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from broker_client.errors import MalformedFrameError
from broker_client.message import Properties

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

frame_header = struct.Struct(">BHI").unpack_from
"""(type, channel, payload size) of the frame at an offset."""
method_key = struct.Struct(">I").unpack_from
"""Class and method of a method payload, as one number."""

_YEAR_9999 = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())

_ACK = struct.Struct(">QB").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U16 = struct.Struct(">H").unpack_from
_CONTENT = struct.Struct(">HHQH").unpack_from


class Deliver(NamedTuple):
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


class Return(NamedTuple):
    """basic.return."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str


def deliver(data: bytes, at: int) -> Deliver:
    """The arguments of a basic.deliver that begin at `at`."""
    tag, at = short_string(data, at)
    (delivery_tag,) = _U64(data, at)
    redelivered = data[at + 8] & 1 == 1
    exchange, at = short_string(data, at + 9)
    routing_key, at = short_string(data, at)
    return Deliver(tag, delivery_tag, redelivered, exchange, routing_key)


def get_ok(data: bytes, at: int) -> GetOk:
    """The arguments of a basic.get-ok that begin at `at`."""
    (delivery_tag,) = _U64(data, at)
    redelivered = data[at + 8] & 1 == 1
    exchange, at = short_string(data, at + 9)
    routing_key, at = short_string(data, at)
    return GetOk(delivery_tag, redelivered, exchange, routing_key)


def returned(data: bytes, at: int) -> Return:
    """The arguments of a basic.return that begin at `at`."""
    code, text, at = _reply(data, at)
    exchange, at = short_string(data, at)
    routing_key, at = short_string(data, at)
    return Return(code, text, exchange, routing_key)


def confirm(data: bytes, at: int) -> tuple[int, bool]:
    """(delivery tag, multiple) of a basic.ack or basic.nack."""
    tag, bits = _ACK(data, at)
    return tag, bits & 1 == 1


def close_reason(data: bytes, at: int) -> tuple[int, str]:
    """(reply code, reply text) of a connection.close or channel.close."""
    code, text, _ = _reply(data, at)
    return code, text


def short_string(data: bytes, at: int) -> tuple[str, int]:
    """A short string at `at`, and the offset behind it."""
    end = at + 1 + data[at]
    if end > len(data):
        raise MalformedFrameError("a short string runs past its frame")
    return str(data[at + 1 : end], "utf-8", "replace"), end


def content_header(data: bytes, at: int) -> tuple[int, Properties]:
    """(body size, properties) of a content header payload that begins at `at`."""
    _, _, size, flags = _CONTENT(data, at)
    at += 14
    if flags & 1:
        raise MalformedFrameError("more than one word of property flags")
    values = [None] * len(_DECODERS)
    for index, decode in _present(flags):
        values[index], at = decode(data, at)
    return size, Properties(*values)


@lru_cache(maxsize=1024)
def _present(flags: int) -> tuple[tuple[int, Any], ...]:
    """Index and decoder of each property that is there (AMQP 0-9-1 §4.2.6.1)."""
    return tuple(
        (index, decode) for index, decode in enumerate(_DECODERS) if flags & (0x8000 >> index)
    )


def table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A field table at `at`, its length included, and the offset behind it."""
    (size,) = _U32(data, at)
    at += 4
    end = at + size
    if end > len(data):
        raise MalformedFrameError("a table runs past its frame")
    result: dict[str, Any] = {}
    while at < end:
        key, at = short_string(data, at)
        result[key], at = _field(data, at)
    return result, at


def _reply(data: bytes, at: int) -> tuple[int, str, int]:
    (code,) = _U16(data, at)
    text, at = short_string(data, at + 2)
    return code, text, at


_FIXED: dict[int, struct.Struct] = {
    ord("b"): struct.Struct(">b"),
    ord("B"): struct.Struct(">B"),
    ord("s"): struct.Struct(">h"),
    ord("u"): struct.Struct(">H"),
    ord("I"): struct.Struct(">i"),
    ord("i"): struct.Struct(">I"),
    ord("l"): struct.Struct(">q"),
    ord("L"): struct.Struct(">q"),
    ord("f"): struct.Struct(">f"),
    ord("d"): struct.Struct(">d"),
}
"""Numbers by their letter. RabbitMQ: the letters differ from the specification's table."""


def _field(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at]
    at += 1
    if fixed := _FIXED.get(kind):
        return fixed.unpack_from(data, at)[0], at + fixed.size
    match chr(kind):
        case "S":
            raw, at = _long_bytes(data, at)
            try:
                return raw.decode(), at
            except UnicodeDecodeError:
                return raw, at  # RabbitMQ: a long string is any bytes
        case "x":
            return _long_bytes(data, at)
        case "t":
            return data[at] != 0, at + 1
        case "V":
            return None, at
        case "T":
            time, end = _timestamp(data, at)
            return (_U64(data, at)[0] if time is None else time), end
        case "F":
            return table(data, at)
        case "D":
            number = int.from_bytes(data[at + 1 : at + 5], "big", signed=True)
            return Decimal(number).scaleb(-data[at]), at + 5
        case "A":
            (size,) = _U32(data, at)
            at += 4
            end = at + size
            if end > len(data):
                raise MalformedFrameError("an array runs past its frame")
            items = []
            while at < end:
                item, at = _field(data, at)
                items.append(item)
            return items, at
    raise MalformedFrameError(f"unknown field type {chr(kind)!r}")


def _long_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _U32(data, at)
    end = at + 4 + size
    if end > len(data):
        raise MalformedFrameError("a long string runs past its frame")
    return bytes(data[at + 4 : end]), end


def _timestamp(data: bytes, at: int) -> tuple[datetime | None, int]:
    """A time; None where the number is no time at all.

    AMQP counts seconds, but many publishers write milliseconds: what lies beyond the year 9999
    is taken as such. One odd message must not cost its reader the connection.
    """
    (number,) = _U64(data, at)
    seconds = number if number <= _YEAR_9999 else number / 1000
    if seconds > _YEAR_9999:
        return None, at + 8
    return datetime.fromtimestamp(seconds, UTC), at + 8


def _octet(data: bytes, at: int) -> tuple[int, int]:
    return data[at], at + 1


_DECODERS: tuple[Any, ...] = (
    short_string,  # content_type
    short_string,  # content_encoding
    table,  # headers
    _octet,  # delivery_mode
    _octet,  # priority
    short_string,  # correlation_id
    short_string,  # reply_to
    short_string,  # expiration
    short_string,  # message_id
    _timestamp,  # timestamp
    short_string,  # type
    short_string,  # user_id
    short_string,  # app_id
    short_string,  # cluster_id
)
