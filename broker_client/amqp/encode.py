"""What a client sends most, as bytes: publishes, acks and nacks (AMQP 0-9-1 §4.2).

Ours and not pamqp's for two reasons: pamqp writes every float of a header table as 32 bits, which
changes its value, and refuses `bytes`; and a publish is encoded once a message on the hot path,
where the method frame is the same thousands of times over and is made once here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC
from functools import lru_cache
from typing import Any

from broker_client.amqp.properties import CODECS, property_list
from broker_client.amqp.table_decoding import decode_time
from broker_client.amqp.tables import FrozenTable, check_short, encode_short, encode_time
from broker_client.amqp.x_death import X_DEATH, are_sound
from broker_client.errors import InvalidMessageError
from broker_client.message import Outgoing, Properties

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = b"\xce"
_FRAME = struct.Struct(">BHI")
_FRAME_OVERHEAD = _FRAME.size + len(_END)
_HEADER_FRAME = struct.Struct(">BHIHHQH")  # frame, then class, weight, body size, property flags
_BASIC = 60
_SETTLE = struct.Struct(">BHIHHQBB")  # frame, class, method, delivery tag, bits, frame end
_PUBLISH = struct.Struct(">HHH")  # class, method, reserved


def publish_frames(channel: int, message: Outgoing, frame_max: int) -> bytes:
    """All frames of one publish.

    Args:
        channel: channel number.
        message: what to publish.
        frame_max: negotiated largest frame in bytes, 0 for no limit.

    Raises:
        InvalidMessageError: a name is too long, or a header holds what AMQP cannot carry.
    """
    body = message.body
    size = len(body)
    head = _method_frame(channel, message.exchange, message.routing_key, message.mandatory)
    header = _header_frame(channel, size, message.properties)
    if frame_max and len(header) > frame_max:
        raise _too_large(len(header), frame_max)
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
            encode_short(queue, "queue"),
            b"\x01" if no_ack else b"\x00",
        )
    )
    return b"".join((_FRAME.pack(_METHOD, channel, len(payload)), payload, _END))


def ack_frame(channel: int, delivery_tag: int, *, multiple: bool = False) -> bytes:
    """basic.ack."""
    return _settle_frame(channel, 80, delivery_tag, multiple)


def nack_frame(channel: int, delivery_tag: int, *, requeue: bool, multiple: bool = False) -> bytes:
    """basic.nack."""
    return _settle_frame(channel, 120, delivery_tag, multiple | requeue << 1)


def reject_frame(channel: int, delivery_tag: int, *, requeue: bool) -> bytes:
    """basic.reject."""
    return _settle_frame(channel, 90, delivery_tag, requeue)


def _settle_frame(channel: int, method: int, delivery_tag: int, bits: int) -> bytes:
    return _SETTLE.pack(_METHOD, channel, 13, _BASIC, method, delivery_tag, bits, _END[0])


def check_publish(message: Outgoing, properties: Iterable[str] = Properties._fields) -> None:
    """Raise InvalidMessageError if `publish_frames` would, whatever the largest frame.

    Args:
        message: what is to be published.
        properties: names of those to check; others are ignored.
    """
    check_short(message.exchange, "exchange")
    check_short(message.routing_key, "routing key")
    for name in properties:
        codec = CODECS.get(name)
        if codec is not None and (value := getattr(message.properties, name)) is not None:
            (check_short if codec.encode is encode_short else codec.encode)(value, name)
            if name == "headers" and X_DEATH in value and not are_sound(value):
                why = "has a form that no broker writes, and RabbitMQ's queues fail on it"
                raise InvalidMessageError(f"headers[{X_DEATH!r}]", why)


def as_received(message: Outgoing, frame_max: int) -> Outgoing:
    """`message` as a client receives it: headers and time in AMQP's types.

    What stays in one process is delivered like this, so that it is the same on all brokers.

    Raises:
        InvalidMessageError: as `publish_frames`, for exchange, routing key, headers, timestamp.
    """
    properties, key = message.properties, message.routing_key
    if len(key) > 255 or not key.isascii():
        encode_short(key, "routing key")
    if not message.exchange.isascii():
        encode_short(message.exchange, "exchange")
    headers, time = properties.headers, properties.timestamp
    if headers is None and time is None:
        return message
    changes: dict[str, Any] = {}
    if headers is not None:
        if type(headers) is not FrozenTable:
            changes["headers"] = headers = FrozenTable.of(headers)
        if len(headers.encoded) > frame_max - _LARGEST_OF_OTHERS:
            size = len(_header_frame(0, 0, properties._replace(headers=headers)))
            if size > frame_max:
                raise _too_large(size, frame_max)
    if time is not None and (time.microsecond or time.tzinfo is not UTC):
        changes["timestamp"] = decode_time(encode_time(time, "timestamp"), 0)[0]
    return message._replace(properties=properties._replace(**changes)) if changes else message


_LARGEST_OF_OTHERS = 4_096  # bytes of a header frame without headers; thirteen short strings


def _too_large(size: int, frame_max: int) -> InvalidMessageError:
    # AMQP 0-9-1 §4.2.3: only a body may be split; RabbitMQ closes the connection over this.
    return InvalidMessageError(
        "headers", f"make a frame of {size} bytes; this broker takes {frame_max}"
    )


@lru_cache(maxsize=8192)
def _method_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    payload = b"".join(
        (
            _PUBLISH.pack(_BASIC, 40, 0),
            encode_short(exchange, "exchange"),
            encode_short(routing_key, "routing key"),
            b"\x01" if mandatory else b"\x00",
        )
    )
    return b"".join((_FRAME.pack(_METHOD, channel, len(payload)), payload, _END))


def _header_frame(channel: int, body_size: int, properties: Properties) -> bytes:
    flags, data = property_list(properties)
    head = _HEADER_FRAME.pack(_HEADER, channel, len(data) + 14, _BASIC, 0, body_size, flags)
    return b"".join((head, data, _END))
