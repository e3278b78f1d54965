"""The properties of messages that pass through a server."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from broker_client.amqp.properties import CODECS, ReceivedProperties, readable_header
from broker_client.amqp.table_decoding import UNREADABLE, decode_table, fault_of
from broker_client.amqp.tables import FrozenTable
from broker_client.errors import MalformedFrameError
from broker_client.message import Properties

_LARGEST_CACHED = 512  # bytes
_BEFORE_PROPERTIES = 12  # bytes of class, weight and body size
_SIZE = slice(4, 12)  # of the body, among these
_DECODERS = tuple(codec.decode for codec in CODECS.values())


def received_properties(encoded: bytes) -> ReceivedProperties:
    """The properties in a content header.

    Headers stay encoded until they are read; that they can be decoded is checked here.

    Args:
        encoded: flags and values.

    Raises:
        MalformedFrameError: they are malformed.
    """
    return _cached(encoded) if len(encoded) <= _LARGEST_CACHED else _decode(encoded)


def received_header(payload: bytes) -> tuple[int, Properties, str]:
    """As `readable_header`; sound headers stay encoded, so copies of the message have the same."""
    try:
        properties = _decode(payload[_BEFORE_PROPERTIES:], keeps_values=True)
    except MalformedFrameError:
        size, readable, fault = readable_header(payload)
        if not fault:
            raise
        return size, readable, fault
    return int.from_bytes(payload[_SIZE]), properties, ""


def kept_properties(header: bytes) -> tuple[Properties, str]:
    """(properties, what is wrong) of a content header that was kept as it came.

    Sound ones are sent on with the same bytes; of others there is what can be read.

    Raises:
        MalformedFrameError: not even the size of the body is there.
    """
    try:
        return received_properties(header[_BEFORE_PROPERTIES:]), ""
    except MalformedFrameError:
        _, properties, fault = readable_header(header)
        return properties, fault


def _decode(encoded: bytes, *, keeps_values: bool = False) -> ReceivedProperties:
    """With `keeps_values` the headers, decoded to check them, need not be decoded again: for one
    who reads them, not for a server that holds many."""
    flags = int.from_bytes(encoded[:2], "big")
    if len(encoded) < 2 or flags & 1:
        raise MalformedFrameError("a content header needs one word of property flags")
    values: list[Any] = [None] * len(_DECODERS)
    at = 2
    try:
        for index, decode in _present(flags):
            if decode is not decode_table:
                values[index], at = decode(encoded, at)
                continue
            start, at = at, at + 4 + int.from_bytes(encoded[at : at + 4])
            table = encoded[start:at]
            if not keeps_values:
                decode(table, 0)
                values[index] = FrozenTable(table)
            elif len(table) <= _LARGEST_CACHED:
                values[index] = _cached_table(table)
            else:
                values[index] = _known_table(table)
    except UNREADABLE as error:
        raise MalformedFrameError(fault_of(error)) from error
    if at != len(encoded):
        raise MalformedFrameError("the properties are longer or shorter than their frame")
    properties = ReceivedProperties(*values)
    properties.encoded = encoded
    return properties


_cached = lru_cache(maxsize=1024)(_decode)


def _known_table(encoded: bytes) -> FrozenTable:
    return FrozenTable(encoded, decode_table(encoded, 0)[0])


_cached_table = lru_cache(maxsize=64)(_known_table)
"""Dead letters of one second often have the same headers."""


@lru_cache(maxsize=1024)
def _present(flags: int) -> tuple[tuple[int, Any], ...]:
    """Index and decoder of each property that is there (AMQP 0-9-1 §4.2.6.1)."""
    return tuple(
        (index, decode) for index, decode in enumerate(_DECODERS) if flags & (0x8000 >> index)
    )
