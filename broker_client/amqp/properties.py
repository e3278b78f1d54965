"""Encoding and decoding of message properties: the content header (AMQP 0-9-1 §4.2.6.1)."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple

from broker_client.amqp.table_decoding import (
    UNREADABLE,
    decode_short,
    decode_table,
    decode_time,
    fault_of,
    malformed,
    readable_table,
)
from broker_client.amqp.tables import described, encode_short, encode_table, encode_time
from broker_client.errors import InvalidMessageError, MalformedFrameError
from broker_client.message import Properties

_CONTENT = struct.Struct(">HHQH")  # class, weight, body size, property flags
_BASIC = 60
_new = tuple.__new__  # a named tuple's own constructor is a Python call
_NO_BODY = struct.pack(">HHQ", _BASIC, 0, 0)  # class, weight, body size


def _encode_octet(value: int, name: str) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidMessageError(name, f"is {described(value)}; a number is needed")
    if not 0 <= value <= 255:
        raise InvalidMessageError(name, f"is {value}; 0 to 255 is allowed")
    return bytes((value,))


def _octet(data: bytes, at: int) -> tuple[int, int]:
    return data[at], at + 1


class _Codec(NamedTuple):
    """How one property is written and read."""

    encode: Callable[[Any, str], bytes]
    decode: Callable[[bytes, int], tuple[Any, int]]


_SPECIAL = {
    "headers": _Codec(encode_table, decode_table),
    "delivery_mode": _Codec(_encode_octet, _octet),
    "priority": _Codec(_encode_octet, _octet),
    "timestamp": _Codec(encode_time, decode_time),
}
CODECS = {
    name: _SPECIAL.get(name, _Codec(encode_short, decode_short)) for name in Properties._fields
}
"""In the order of the flags, highest bit first (AMQP 0-9-1 §1.8)."""

_IN_ORDER = tuple(CODECS.values())
_VARYING = frozenset(
    index
    for index, name in enumerate(Properties._fields)
    if name in ("headers", "correlation_id", "message_id", "timestamp")
)
"""Places of what is another in each message. The rest is the same in thousands of them."""


class ReceivedProperties(Properties):
    """Properties that keep the bytes a peer sent, so that they are delivered as they came.

    `_replace` gives properties without `encoded`.
    """

    encoded: bytes = b""
    """Property flags and values; empty once a value was replaced."""


def plain_properties(properties: Properties) -> Properties:
    """`properties` with plain headers, as an application in this process is to see them."""
    if type(properties) is not ReceivedProperties:
        return properties
    headers = properties.headers
    plain = Properties(*properties)
    return plain if headers is None else plain._replace(headers=dict(headers))


def property_list(properties: Properties) -> tuple[int, bytes]:
    """(flags, values) of a content header.

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    # By name it would take twice as long, and this is done once a message.
    a, b, headers, d, e, correlation_id, g, h, message_id, timestamp, k, m, n, o = properties
    try:
        flags, first, second, third, fourth, fifth = _around(
            a,
            b,
            headers is None,
            d,
            e,
            correlation_id is None,
            g,
            h,
            message_id is None,
            timestamp is None,
            k,
            m,
            n,
            o,
        )
    except TypeError:  # one cannot be hashed, so it is not text and not a number
        for name, value in zip(Properties._fields, properties, strict=True):
            if value is not None:
                CODECS[name].encode(value, name)
        raise
    return flags, b"".join(
        (
            first,
            b"" if headers is None else encode_table(headers),
            second,
            b"" if correlation_id is None else encode_short(correlation_id, "correlation_id"),
            third,
            b"" if message_id is None else encode_short(message_id, "message_id"),
            fourth,
            b"" if timestamp is None else encode_time(timestamp, "timestamp"),
            fifth,
        )
    )


@lru_cache(maxsize=256, typed=True)
def _around(*values: Any) -> tuple[Any, ...]:
    """The flags, and what stands before, between and behind the varying properties.

    Args:
        values: as in `Properties`; of a varying one, whether it is absent.
    """
    flags = 0
    pieces: list[list[bytes]] = [[]]
    for index, value in enumerate(values):
        if index in _VARYING:
            flags |= 0 if value else 0x8000 >> index
            pieces.append([])
        elif value is not None:
            flags |= 0x8000 >> index
            pieces[-1].append(_IN_ORDER[index].encode(value, Properties._fields[index]))
    return (flags, *map(b"".join, pieces))


def encoded_properties(properties: Properties) -> bytes:
    """Flags and values of a content header, as received if they are unchanged.

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    if type(properties) is ReceivedProperties and properties.encoded:
        return properties.encoded
    flags, data = property_list(properties)
    return flags.to_bytes(2, "big") + data


def encode_properties(properties: Properties) -> bytes:
    """A content header payload for a body of 0 bytes.

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    return _NO_BODY + encoded_properties(properties)


def content_header(data: bytes, at: int = 0) -> tuple[int, Properties]:
    """(body size, properties) of a content header payload that begins at `at`.

    Raises:
        MalformedFrameError: or what `malformed` turns into one.
    """
    _, _, size, flags = _CONTENT.unpack_from(data, at)
    at += 14
    if flags & 1:
        raise MalformedFrameError("more than one word of property flags")
    values = [None] * len(_IN_ORDER)
    for index, decode in _present(flags):
        values[index], at = decode(data, at)
    return size, _new(Properties, values)


@lru_cache(maxsize=1024)
def _present(flags: int) -> tuple[tuple[int, Any], ...]:
    """Index and decoder of each property that is there (AMQP 0-9-1 §4.2.6.1)."""
    return tuple(
        (index, codec.decode) for index, codec in enumerate(_IN_ORDER) if flags & (0x8000 >> index)
    )


def readable_header(payload: bytes) -> tuple[int, Properties, str]:
    """(body size, properties, what is wrong) of the content header of a delivery.

    A header that cannot be read makes its message invalid, not its connection: what can be read
    of it is there, and the third item says what cannot.

    Raises:
        MalformedFrameError: not even the size of the body is there.
    """
    try:
        return (*content_header(payload), "")
    except UNREADABLE as error:
        reason = str(MalformedFrameError(fault_of(error)))
    with malformed():
        _, _, size, flags = _CONTENT.unpack_from(payload)
    values: list[Any] = [None] * len(_IN_ORDER)
    at = _CONTENT.size
    with contextlib.suppress(*UNREADABLE):
        for index, decode in _present(flags & 0xFFFE):
            if decode is decode_table:
                table, at = readable_table(payload, at)
                values[index] = table or None
            else:
                values[index], at = decode(payload, at)
    return size, Properties(*values), reason


class HeaderReader:
    """Reads the content headers of one connection, as `readable_header`.

    The properties before the first that varies are often those of the previous message; they are
    decoded once.
    """

    __slots__ = ("_at", "_flags", "_later", "_same", "_values")

    def __init__(self) -> None:
        self._flags = -1  # of the previous header, as all of these
        self._same = b""  # what came before its first varying property
        self._at = 0  # where that ends
        self._values: list[Any] = []
        self._later: tuple[tuple[int, Any], ...] = ()

    def __call__(self, payload: bytes) -> tuple[int, Properties, str]:
        """(body size, properties, what is wrong) of a content header.

        Raises:
            MalformedFrameError: not even the size of the body is there.
        """
        try:
            _, _, size, flags = _CONTENT.unpack_from(payload)
            if flags != self._flags or not payload.startswith(self._same, _CONTENT.size):
                self._learn(payload, flags)
            at, values = self._at, self._values.copy()
            for index, decode in self._later:
                values[index], at = decode(payload, at)
        except UNREADABLE:
            return readable_header(payload)
        return size, _new(Properties, values), ""

    def _learn(self, payload: bytes, flags: int) -> None:
        self._flags = -1  # in case of an error
        if flags & 1:
            raise MalformedFrameError("more than one word of property flags")
        values: list[Any] = [None] * len(_IN_ORDER)
        present, at = _present(flags), _CONTENT.size
        same = list(takewhile(lambda each: each[0] not in _VARYING, present))
        for index, decode in same:
            values[index], at = decode(payload, at)
        self._same, self._at, self._values = payload[_CONTENT.size : at], at, values
        self._later = present[len(same) :]
        self._flags = flags


def decode_properties(data: bytes) -> Properties:
    """What `encode_properties` was given.

    Raises:
        MalformedFrameError: `data` is not a content header.
    """
    with malformed():
        return content_header(data)[1]
