"""Frames a server sends often: deliveries, returned messages, confirms (AMQP 0-9-1 §4.2).

Each function appends to a list of bytes, which is joined once for many of them.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from broker_client.amqp.properties import encoded_properties
from broker_client.amqp.tables import encode_short
from broker_client.message import Delivery, Properties, Returned

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = b"\xce"
_FRAME = struct.Struct(">BHI")
_FRAME_OVERHEAD = 8
_NEXT_FRAME = struct.Struct(">BBHI")  # frame end, then the next frame
_KEY = struct.Struct(">HH")
_HEADER_FRAME = struct.Struct(">BHIHHQ")  # frame, then class, weight, body size
_CONFIRM = struct.Struct(">BHIHHQBB")
_TAG_AND_BIT = struct.Struct(">Q?")
_BASIC, _RETURN, _DELIVER, _GET_OK, _ACK, _NACK = 60, 50, 60, 71, 80, 120

HEARTBEAT_FRAME = _FRAME.pack(_HEARTBEAT, 0, 0) + _END


def deliver(out: list[bytes], channel: int, delivery: Delivery, frame_max: int) -> None:
    """basic.deliver with its content."""
    tag, number, redelivered, exchange, routing_key, body, properties, _, _ = delivery
    before, behind = _around_tag(channel, tag, exchange, routing_key)
    size = len(body)
    if not size or (frame_max and size > frame_max - _FRAME_OVERHEAD):
        out += (before, _TAG_AND_BIT.pack(number, redelivered), behind)
        _content(out, channel, body, properties, frame_max)
        return
    encoded = encoded_properties(properties)
    out += (
        before,
        _TAG_AND_BIT.pack(number, redelivered),
        behind,
        _HEADER_FRAME.pack(_HEADER, channel, len(encoded) + 12, _BASIC, 0, size),
        encoded,
        _NEXT_FRAME.pack(0xCE, _BODY, channel, size),
        body,
        _END,
    )


def get_ok(
    out: list[bytes], channel: int, delivery: Delivery, message_count: int, frame_max: int
) -> None:
    """basic.get-ok with its content."""
    payload = b"".join(
        (
            _KEY.pack(_BASIC, _GET_OK),
            _TAG_AND_BIT.pack(delivery.delivery_tag, delivery.redelivered),
            encode_short(delivery.exchange, "exchange"),
            encode_short(delivery.routing_key, "routing key"),
            message_count.to_bytes(4, "big"),
        )
    )
    out += (_FRAME.pack(_METHOD, channel, len(payload)), payload, _END)
    _content(out, channel, delivery.body, delivery.properties, frame_max)


def returned(out: list[bytes], channel: int, message: Returned, frame_max: int) -> None:
    """basic.return with its content."""
    payload = b"".join(
        (
            _KEY.pack(_BASIC, _RETURN),
            message.reply_code.to_bytes(2, "big"),
            encode_short(message.reply_text, "reply text"),
            encode_short(message.exchange, "exchange"),
            encode_short(message.routing_key, "routing key"),
        )
    )
    out += (_FRAME.pack(_METHOD, channel, len(payload)), payload, _END)
    _content(out, channel, message.body, message.properties, frame_max)


def confirm(
    out: list[bytes], channel: int, delivery_tag: int, *, multiple: bool, acked: bool
) -> None:
    """basic.ack, or basic.nack."""
    method = _ACK if acked else _NACK
    out.append(_CONFIRM.pack(_METHOD, channel, 13, _BASIC, method, delivery_tag, multiple, 0xCE))


@lru_cache(maxsize=8192)
def _around_tag(
    channel: int, consumer_tag: str, exchange: str, routing_key: str
) -> tuple[bytes, bytes]:
    """A basic.deliver without delivery tag and redelivered bit: what is before, and behind."""
    before = _KEY.pack(_BASIC, _DELIVER) + encode_short(consumer_tag, "consumer tag")
    behind = encode_short(exchange, "exchange") + encode_short(routing_key, "routing key")
    size = len(before) + _TAG_AND_BIT.size + len(behind)
    return _FRAME.pack(_METHOD, channel, size) + before, behind + _END


def _content(
    out: list[bytes], channel: int, body: bytes, properties: Properties, frame_max: int
) -> None:
    encoded = encoded_properties(properties)
    size = len(body)
    out += (
        _HEADER_FRAME.pack(_HEADER, channel, len(encoded) + 12, _BASIC, 0, size),
        encoded,
        _END,
    )
    limit = frame_max - _FRAME_OVERHEAD if frame_max else size
    if size <= limit:
        if size:
            out += (_FRAME.pack(_BODY, channel, size), body, _END)
        return
    for start in range(0, size, limit):
        chunk = body[start : start + limit]
        out += (_FRAME.pack(_BODY, channel, len(chunk)), chunk, _END)
