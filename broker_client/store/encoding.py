"""Message properties and argument tables as bytes, in AMQP's own form.

So whatever AMQP can carry comes back as a client on a network would see it: times in whole
seconds, tuples as lists.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from broker_client.amqp import decode
from broker_client.amqp.encode import short_string, table
from broker_client.errors import InvalidMessageError
from broker_client.message import Properties

_CONTENT = struct.Struct(">HHQH")  # class, weight, body size, property flags
_BASIC = 60


def _octet(value: int, name: str) -> bytes:
    if not 0 <= value <= 255:
        raise InvalidMessageError(name, f"is {value}; 0 to 255 is allowed")
    return value.to_bytes(1, "big")


def _timestamp(value: datetime, name: str) -> bytes:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    seconds = int(aware.timestamp())
    if seconds < 0:
        raise InvalidMessageError(name, f"is {value.isoformat()}; AMQP times start in 1970")
    return seconds.to_bytes(8, "big")


_ENCODERS: dict[str, Any] = {
    "headers": table,
    "delivery_mode": _octet,
    "priority": _octet,
    "timestamp": _timestamp,
}
_FIELDS = tuple(
    (1 << (15 - index), _ENCODERS.get(name, short_string), name)
    for index, name in enumerate(Properties._fields)
)


def encode_properties(properties: Properties) -> bytes:
    """A content header without its size (AMQP 0-9-1 §4.2.6.1).

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    flags = 0
    parts = []
    for (flag, encode, name), value in zip(_FIELDS, properties, strict=True):
        if value is not None:
            flags |= flag
            parts.append(encode(value, name))
    return _CONTENT.pack(_BASIC, 0, 0, flags) + b"".join(parts)


def decode_properties(data: bytes) -> Properties:
    """What `encode_properties` was given.

    Raises:
        MalformedFrameError: `data` is no content header.
    """
    return decode.content_header(data, 0)[1]


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """A table in one order of its keys, so that equal arguments are equal bytes."""
    return table(_ordered(arguments), "arguments")


def decode_arguments(data: bytes) -> dict[str, Any]:
    """What `encode_arguments` was given.

    Raises:
        MalformedFrameError: `data` is no table.
    """
    return decode.table(data, 0)[0]


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value
