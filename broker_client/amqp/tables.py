"""Message properties and argument tables as bytes, in AMQP's own form.

So whatever AMQP can carry comes back as a client on a network would see it: times in whole
seconds, tuples as lists.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from broker_client.amqp import decode
from broker_client.amqp.encode import short_string, table
from broker_client.errors import InvalidMessageError, MalformedFrameError
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


_SPECIAL: dict[str, Any] = {
    "headers": table,
    "delivery_mode": _octet,
    "priority": _octet,
    "timestamp": _timestamp,
}
_ENCODERS = tuple(_SPECIAL.get(name, short_string) for name in Properties._fields)
_VARYING = frozenset(
    index
    for index, name in enumerate(Properties._fields)
    if name in ("headers", "correlation_id", "message_id", "timestamp")
)
"""Places of what is another in each message. The rest is the same in thousands of them."""


def encode_properties(properties: Properties) -> bytes:
    """A content header without its size (AMQP 0-9-1 §4.2.6.1).

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    # By name it would take twice as long, and this is done once a kept message.
    a, b, headers, d, e, correlation_id, g, h, message_id, timestamp, k, m, n, o = properties
    key = a, b, headers is None, d, e, correlation_id is None, g, h, message_id is None
    first, second, third, fourth, fifth = _around(*key, timestamp is None, k, m, n, o)
    return b"".join(
        (
            first,
            b"" if headers is None else table(headers, "headers"),
            second,
            b"" if correlation_id is None else short_string(correlation_id, "correlation_id"),
            third,
            b"" if message_id is None else short_string(message_id, "message_id"),
            fourth,
            b"" if timestamp is None else _timestamp(timestamp, "timestamp"),
            fifth,
        )
    )


@lru_cache(maxsize=256)
def _around(*values: Any) -> tuple[bytes, ...]:
    """What stands before, between and behind the varying properties.

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
            pieces[-1].append(_ENCODERS[index](value, Properties._fields[index]))
    pieces[0].insert(0, _CONTENT.pack(_BASIC, 0, 0, flags))
    return tuple(map(b"".join, pieces))


def decode_properties(data: bytes) -> Properties:
    """What `encode_properties` was given.

    Raises:
        MalformedFrameError: `data` is no content header.
    """
    with _malformed():
        return decode.content_header(data, 0)[1]


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """A table in one order of its keys, so that equal arguments are equal bytes."""
    return table(_ordered(arguments), "arguments")


def decode_arguments(data: bytes) -> dict[str, Any]:
    """What `encode_arguments` was given.

    Raises:
        MalformedFrameError: `data` is no table.
    """
    with _malformed():
        return decode.table(data, 0)[0]


@contextlib.contextmanager
def _malformed() -> Iterator[None]:
    """`decode` trusts the length of its frame; here there is none."""
    try:
        yield
    except (struct.error, LookupError, ValueError, ArithmeticError, OSError) as error:
        raise MalformedFrameError(str(error)) from error


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value
