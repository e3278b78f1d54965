"""A publish as bytes: basic.publish, content header and body frames (AMQP 0-9-1 §4.2).

Ours and not pamqp's for two reasons: pamqp writes every float of a header table as 32 bits, which
changes its value, and refuses `bytes`; and a publish is encoded once a message on the hot path,
where the method frame is the same thousands of times over and is made once here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing, Properties

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME = struct.Struct(">BHI")
_FRAME_OVERHEAD = _FRAME.size + len(_END)
_CONTENT = struct.Struct(">HHQH")  # class, weight, body size, property flags
_BASIC = 60
_PUBLISH = struct.Struct(">HHH")  # class, method, reserved
_DECIMAL_DIGITS = 10  # as many as 32 bits hold
_INT32, _INT64 = 2**31, 2**63

_NAMES = Properties._fields  # in the order of their flags, highest bit first (AMQP 0-9-1 §1.8)


def publish_frames(channel: int, message: Outgoing, frame_max: int) -> bytes:
    """All frames of one publish.

    Args:
        channel: channel number.
        message: what to publish.
        frame_max: negotiated largest frame in bytes, 0 for no limit.

    Raises:
        InvalidMessageError: a name is too long or a header has a type AMQP cannot carry.
    """
    body = message.body
    size = len(body)
    head = _method_frame(channel, message.exchange, message.routing_key, message.mandatory)
    header = _header_frame(channel, size, message.properties)
    if frame_max and len(header) > frame_max:
        # AMQP 0-9-1 §4.2.3: only a body may be split; RabbitMQ closes the connection over this.
        raise InvalidMessageError(
            "headers", f"make a frame of {len(header)} bytes; this broker takes {frame_max}"
        )
    if not size:
        return head + header
    limit = frame_max - _FRAME_OVERHEAD if frame_max else size
    if size <= limit:
        return b"".join((head, header, _FRAME.pack(_BODY, channel, size), body, _END))
    parts = [head, header]
    for start in range(0, size, limit):
        chunk = body[start : start + limit]
        parts += (_FRAME.pack(_BODY, channel, len(chunk)), chunk, _END)
    return b"".join(parts)


def get_frame(channel: int, queue: str, no_ack: bool) -> bytes:
    """basic.get."""
    payload = b"".join(
        (
            _PUBLISH.pack(_BASIC, 70, 0),
            short_string(queue, "queue"),
            b"\x01" if no_ack else b"\x00",
        )
    )
    return b"".join((_FRAME.pack(_METHOD, channel, len(payload)), payload, _END))


def check_publish(message: Outgoing, properties: Iterable[str] = Properties._fields) -> None:
    """Raise InvalidMessageError if `publish_frames` would, whatever the largest frame.

    Args:
        message: what is to be published.
        properties: names of those to look at; other names are passed over.
    """
    short_string(message.exchange, "exchange")
    short_string(message.routing_key, "routing key")
    for name in properties:
        encode = _ENCODER_OF.get(name)
        if encode is not None and (value := getattr(message.properties, name)) is not None:
            encode(value, name)


@lru_cache(maxsize=8192)
def _method_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    payload = b"".join(
        (
            _PUBLISH.pack(_BASIC, 40, 0),
            short_string(exchange, "exchange"),
            short_string(routing_key, "routing key"),
            b"\x01" if mandatory else b"\x00",
        )
    )
    return b"".join((_FRAME.pack(_METHOD, channel, len(payload)), payload, _END))


def _header_frame(channel: int, body_size: int, properties: Properties) -> bytes:
    flags = 0
    parts = []
    for index, value in enumerate(properties):
        if value is not None:
            flags |= 0x8000 >> index
            parts.append(_ENCODERS[index](value, _NAMES[index]))
    payload = _CONTENT.pack(_BASIC, 0, body_size, flags) + b"".join(parts)
    return b"".join((_FRAME.pack(_HEADER, channel, len(payload)), payload, _END))


def short_string(value: str, name: str) -> bytes:
    """A length octet and up to 255 bytes of UTF-8 (AMQP 0-9-1 §4.2.5.3)."""
    if not isinstance(value, str):
        raise InvalidMessageError(name, f"is {_described(value)}; text is needed")
    data = _utf8(value, name)
    if len(data) > 255:
        raise InvalidMessageError(name, f"is {len(data)} bytes long; AMQP allows 255")
    return bytes((len(data),)) + data


def table(value: Mapping[str, Any], name: str = "headers") -> bytes:
    """A field table, its length first (AMQP 0-9-1 §4.2.5.5)."""
    if not isinstance(value, Mapping):
        raise InvalidMessageError(name, f"is {_described(value)}; a mapping is needed")
    parts = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidMessageError(name, f"has the key {key!r}; keys are strings")
        parts.append(short_string(key, f"key in {name}"))
        parts.append(_field(item, f"{name}[{key!r}]"))
    data = b"".join(parts)
    return len(data).to_bytes(4, "big") + data


def _field(value: Any, name: str) -> bytes:
    """One typed value. The letters are RabbitMQ's, which differ from the specification's."""
    match value:
        case bool():
            return b"t\x01" if value else b"t\x00"
        case str():
            data = _utf8(value, name)
            return b"S" + len(data).to_bytes(4, "big") + data
        case int():
            if -_INT32 <= value < _INT32:
                return b"I" + value.to_bytes(4, "big", signed=True)
            if -_INT64 <= value < _INT64:
                return b"l" + value.to_bytes(8, "big", signed=True)
            raise InvalidMessageError(name, "is an integer of more than 64 bits")
        case float():
            return b"d" + struct.pack(">d", value)
        case None:
            return b"V"
        case bytes() | bytearray() | memoryview():
            data = bytes(value)
            return b"x" + len(data).to_bytes(4, "big") + data
        case datetime():
            return b"T" + _timestamp(value, name)
        case Decimal():
            return b"D" + _decimal(value, name)
        case Mapping():
            return b"F" + table(value, name)
        case list() | tuple():
            data = b"".join(_field(item, f"{name}[{i}]") for i, item in enumerate(value))
            return b"A" + len(data).to_bytes(4, "big") + data
    raise InvalidMessageError(name, f"is {_described(value)}, which AMQP cannot carry")


def _described(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _utf8(value: str, name: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(
            name, "holds half of a surrogate pair, which is no text"
        ) from None


def _timestamp(value: datetime, name: str) -> bytes:
    """Whole seconds since 1970 (AMQP 0-9-1 §4.2.5.4); a naive time is taken as UTC."""
    if not isinstance(value, datetime):
        raise InvalidMessageError(name, f"is {_described(value)}; a datetime is needed")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    seconds = int(aware.timestamp())
    if seconds < 0:
        raise InvalidMessageError(name, f"is {value.isoformat()}; AMQP times start in 1970")
    return seconds.to_bytes(8, "big")


def _decimal(value: Decimal, name: str) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    if not isinstance(exponent, int):
        raise InvalidMessageError(name, f"is {value}, which AMQP cannot carry")
    if exponent > _DECIMAL_DIGITS and number:
        raise InvalidMessageError(name, f"is {value}, too long for an AMQP decimal")
    if exponent > 0:
        number, exponent = number * 10**exponent, 0
    if not (-_INT32 <= number < _INT32 and -exponent <= 255):
        raise InvalidMessageError(name, f"is {value}, too long for an AMQP decimal")
    return bytes((-exponent,)) + number.to_bytes(4, "big", signed=True)


def _octet(value: int, name: str) -> bytes:
    if not isinstance(value, int):
        raise InvalidMessageError(name, f"is {_described(value)}; a number is needed")
    if not 0 <= value <= 255:
        raise InvalidMessageError(name, f"is {value}; 0 to 255 is allowed")
    return bytes((value,))


_ENCODERS: tuple[Any, ...] = (
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
_ENCODER_OF = dict(zip(Properties._fields, _ENCODERS, strict=True))
