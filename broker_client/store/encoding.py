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
_OFTEN_THE_SAME = frozenset(
    index
    for index, name in enumerate(Properties._fields)
    if name in ("content_type", "content_encoding", "delivery_mode", "type", "app_id")
)


def encode_properties(properties: Properties) -> bytes:
    """A content header without its size (AMQP 0-9-1 §4.2.6.1).

    Raises:
        InvalidMessageError: a value that AMQP cannot carry.
    """
    flags = 0
    parts = [b""]
    for index, value in enumerate(properties):
        if value is not None:
            flags |= 0x8000 >> index
            if index in _OFTEN_THE_SAME:
                parts.append(_remembered(value, index))
            else:
                parts.append(_ENCODERS[index](value, Properties._fields[index]))
    parts[0] = _CONTENT.pack(_BASIC, 0, 0, flags)
    return b"".join(parts)


@lru_cache(maxsize=256)
def _remembered(value: Any, index: int) -> bytes:
    encoded: bytes = _ENCODERS[index](value, Properties._fields[index])
    return encoded


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
