"""Publishes, put together from their frames (AMQP 0-9-1 §4.2.6)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from broker_client.amqp import violations
from broker_client.amqp.decode import BODY, FRAME_END, FRAME_HEADER_SIZE, HEADER, METHOD
from broker_client.amqp.method_codec import strict_short, unreadable_arguments
from broker_client.amqp.properties import ReceivedProperties
from broker_client.amqp.received_properties import received_properties
from broker_client.amqp.table_decoding import UNREADABLE
from broker_client.errors import MalformedFrameError, ReplyError
from broker_client.message import Outgoing

PUBLISH = 60 << 16 | 40

_BASIC = 60
_CONTENT = struct.Struct(">HHQ")  # class, weight, body size
_METHOD_FRAME = struct.Struct(">BHII").unpack_from  # frame, then class and method
_HEADER_FRAME = struct.Struct(">BHIHHQ").unpack_from  # frame, then class, weight, body size
_BODY_FRAME = struct.Struct(">BHI").unpack_from


class _Target(NamedTuple):
    """The arguments of a basic.publish."""

    exchange: str
    routing_key: str
    mandatory: bool


class PublishAssembler:
    """Assembles the publish that arrives frame by frame on one channel."""

    __slots__ = ("_missing", "_parts", "_properties", "_target")

    def __init__(self) -> None:
        self._target: _Target | None = None
        self._properties: ReceivedProperties | None = None
        self._missing = 0
        self._parts: list[bytes] = []

    @property
    def is_idle(self) -> bool:
        """True between two messages."""
        return self._target is None

    def reset(self) -> None:
        """Forget what has arrived."""
        self._target = self._properties = None
        self._missing = 0
        self._parts = []

    def method(self, payload: bytes) -> None:
        """Take a basic.publish.

        Raises:
            ReplyError: it cannot be decoded, or asks for an unsupported feature.
        """
        self._target = _target(payload)

    def header(self, payload: bytes, max_message_size: int) -> Outgoing | None:
        """Take a content header; returns the message if it has no body.

        Raises:
            ReplyError: it is out of order, malformed, or the body will be too large.
        """
        if len(payload) < _CONTENT.size:
            raise violations.unknown_frame(HEADER, payload)
        if self._target is None:
            raise violations.expected_method()
        if self._properties is not None:
            raise violations.expected_body()
        class_id, weight, size = _CONTENT.unpack_from(payload)
        if class_id != _BASIC:
            raise violations.expected(
                f"content header for class {_BASIC}", f"one for class {class_id}"
            )
        if weight:
            raise violations.expected_header()
        if size > max_message_size:
            raise violations.message_too_large(size, max_message_size)
        try:
            self._properties = received_properties(payload[_CONTENT.size :])
        except MalformedFrameError as error:
            raise violations.syntax_error(error.reason) from error
        self._missing = size
        return None if size else self._complete()

    def body(self, payload: bytes) -> Outgoing | None:
        """Take a body frame; returns the message if it is whole.

        Raises:
            ReplyError: it is out of order, or longer than the header said.
        """
        if self._target is None:
            raise violations.expected_method()
        if self._properties is None:
            raise violations.expected_header()
        if len(payload) > self._missing:
            raise violations.expected_body()
        self._missing -= len(payload)
        self._parts.append(payload)
        return None if self._missing else self._complete()

    def interrupted(self) -> ReplyError:
        """505: a method came where the content of a publish should."""
        if self._properties is None:
            return violations.expected_header()
        return violations.expected_body()

    def _complete(self) -> Outgoing:
        target, properties, parts = self._target, self._properties, self._parts
        assert target is not None, "content comes after basic.publish"
        assert properties is not None, "the content header comes before the body"
        self._target = self._properties = None
        self._parts = []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return Outgoing(target.exchange, target.routing_key, body, properties, target.mandatory)


@lru_cache(maxsize=4_096)
def _target(payload: bytes) -> _Target:
    """The arguments of a basic.publish; the same come again thousands of times.

    Raises:
        ReplyError: they cannot be decoded, or ask for an unsupported feature.
    """
    try:
        exchange, at = strict_short(payload, 6)
        routing_key, at = strict_short(payload, at)
        bits = payload[at]
    except UNREADABLE as error:
        raise unreadable_arguments(payload, error) from error
    if at + 1 != len(payload):
        raise violations.undecodable(payload[4:])
    if bits & 2:
        raise violations.immediate()
    return _Target(exchange, routing_key, bits & 1 == 1)


def read_publishes(
    buffer: bytes, at: int, number: int, largest: int, messages: list[Outgoing]
) -> int:
    """Take the publishes of one channel that are whole in `buffer`, one after the other.

    It stops before the first that is not whole, or has anything unusual: that one is read frame
    by frame, with all checks.

    Args:
        buffer: what a peer sent.
        at: where a frame begins.
        number: of the channel.
        largest: bytes of the largest payload of a frame and of the largest body.
        messages: the publishes are appended to it.

    Returns:
        Where the first frame begins that was not taken.
    """
    end = len(buffer)
    append = messages.append
    try:
        while True:
            kind, channel, size, key = _METHOD_FRAME(buffer, at)
            if kind != METHOD or channel != number or key != PUBLISH:
                return at
            start = at + FRAME_HEADER_SIZE
            stop = start + size
            if size > largest or buffer[stop] != FRAME_END:
                return at
            target = _target(buffer[start:stop])
            start = stop + 1
            kind, channel, size, class_id, weight, body_size = _HEADER_FRAME(buffer, start)
            stop = start + FRAME_HEADER_SIZE + size
            if (
                kind != HEADER
                or channel != number
                or class_id != _BASIC
                or weight
                or size > largest
                or body_size > largest
                or stop >= end
                or buffer[stop] != FRAME_END
            ):
                return at
            properties = received_properties(buffer[start + 19 : stop])
            start = stop + 1
            if body_size:
                kind, channel, size = _BODY_FRAME(buffer, start)
                start += FRAME_HEADER_SIZE
                stop = start + size
                if (
                    kind != BODY
                    or channel != number
                    or size != body_size
                    or stop >= end
                    or buffer[stop] != FRAME_END
                ):
                    return at
                body = buffer[start:stop]
                start = stop + 1
            else:
                body = b""
            append(
                Outgoing(target.exchange, target.routing_key, body, properties, target.mandatory)
            )
            at = start
    except (struct.error, IndexError, MalformedFrameError, ReplyError):
        return at
