"""Decoding of values and field tables (AMQP 0-9-1 §4.2.5).

The letters of the types are RabbitMQ's, which differ from the specification's table. Whatever is
decoded here can be encoded again, to the same value.

Tables may be nested `MAX_DEPTH` deep. Decoding does not recurse, and checks each length against
what surrounds it before it reads: bytes from a peer or a file raise `MalformedFrameError` at worst.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from broker_client.errors import MalformedFrameError

MAX_DEPTH = 64
"""Levels of tables and arrays in each other; RabbitMQ has no limit of its own."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1 = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
_YEAR_9999 = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())

_I64 = struct.Struct(">q").unpack_from
_U32 = struct.Struct(">I").unpack_from


UNREADABLE = (
    MalformedFrameError,
    struct.error,
    LookupError,
    ValueError,
    ArithmeticError,
    OSError,
)
"""What malformed bytes raise here."""


def fault_of(error: Exception) -> str:
    """What is wrong with the bytes, in AMQP's terms.

    Args:
        error: one of `UNREADABLE`.
    """
    if isinstance(error, MalformedFrameError):
        return error.reason
    if isinstance(error, UnicodeDecodeError):
        return "a short string is not UTF-8"
    if isinstance(error, struct.error | LookupError):
        return "the bytes end in the middle of a value"
    return "a value is out of range"


class ForeignTime(datetime):
    """A time that another client encoded differently: in milliseconds, or before 1970.

    It is encoded again as the number it was.
    """

    number: int

    @classmethod
    def of(cls, number: int) -> ForeignTime:
        """The time that `number` means: seconds, or milliseconds where these would be too many."""
        fits = _YEAR_1 <= number <= _YEAR_9999
        moment = _EPOCH + (timedelta(seconds=number) if fits else timedelta(milliseconds=number))
        time = cls.fromtimestamp(0, UTC).replace(
            moment.year,
            moment.month,
            moment.day,
            moment.hour,
            moment.minute,
            moment.second,
            moment.microsecond,
        )
        time.number = number
        return time

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        if not hasattr(self, "number"):  # computed from one
            return datetime, (self.isoformat(),)
        return ForeignTime.of, (self.number,)


def decode_short(data: bytes, at: int) -> tuple[str, int]:
    """A short string at `at`, and the offset behind it.

    Bytes that are not UTF-8 become question marks, so that it never grows beyond 255 bytes.
    """
    end = at + 1 + data[at]
    if end > len(data):
        raise MalformedFrameError("a short string runs past its frame")
    raw = data[at + 1 : end]
    try:
        return str(raw, "utf-8"), end
    except UnicodeDecodeError:
        return str(raw, "utf-8", "replace").replace("\ufffd", "?"), end


def decode_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """A field table at `at`, its length included, and the offset behind it."""
    (size,) = _U32(data, at)
    at += 4
    end = at + size
    if end > len(data):
        raise MalformedFrameError("a table runs past its frame")
    table: dict[str, Any] = {}
    inside: Any = table  # the table or array that is being filled, which ends at `end`
    around: list[tuple[Any, int]] = []  # those it stands in, outermost first
    key = ""
    while True:
        if at >= end:
            if at > end:
                raise MalformedFrameError("a value runs past its table")
            if not around:
                return table, at
            inside, end = around.pop()
            continue
        is_table = type(inside) is dict
        if is_table:
            key, at = decode_short(data, at)
        kind = data[at]
        at += 1
        value: Any
        if (decode := _DECODERS.get(kind)) is not None:
            value, at = decode(data, at)
        elif kind in _CONTAINERS:
            (size,) = _U32(data, at)
            at += 4
            if at + size > end:
                raise MalformedFrameError("a table or array runs past what surrounds it")
            if len(around) + 1 >= MAX_DEPTH:
                raise MalformedFrameError(f"tables are nested more than {MAX_DEPTH} levels deep")
            value = _CONTAINERS[kind]()
            around.append((inside, end))
        else:
            raise _unknown_type(kind)
        if is_table:
            inside[key] = value
        else:
            inside.append(value)
        if kind in _CONTAINERS:
            inside, end = value, at + size


_CONTAINERS: dict[int, type[dict[str, Any]] | type[list[Any]]] = {ord("F"): dict, ord("A"): list}


def readable_table(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    """The readable part of the table at `at`, and the offset behind it.

    An entry that cannot be read is left out; one of an unknown type hides those behind it.

    Raises:
        MalformedFrameError: the table runs past its frame.
    """
    (size,) = _U32(data, at)
    at += 4
    end = at + size
    if end > len(data):
        raise MalformedFrameError("a table runs past its frame")
    table: dict[str, Any] = {}
    with contextlib.suppress(*UNREADABLE):
        while at < end:
            start = at
            _, at = decode_short(data, at)
            at = _end_of_value(data, at)
            entry = data[start:at]
            with contextlib.suppress(*UNREADABLE):
                table |= decode_table(len(entry).to_bytes(4, "big") + entry, 0)[0]
    return table, end


def _end_of_value(data: bytes, at: int) -> int:
    """The offset behind the value at `at`, whatever is in it."""
    kind = data[at]
    at += 1
    if kind in _CONTAINERS or kind in b"Sx":
        return at + 4 + int(_U32(data, at)[0])
    if kind in b"df":  # decoding refuses some of them
        return at + (8 if kind == ord("d") else 4)
    if kind not in _DECODERS:
        raise _unknown_type(kind)
    return _DECODERS[kind](data, at)[1]


def _unknown_type(kind: int) -> MalformedFrameError:
    shown = f"'{chr(kind)}'" if chr(kind).isascii() and chr(kind).isprintable() else f"{kind:#04x}"
    return MalformedFrameError(f"unknown field type {shown}")


def _number(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    fixed = struct.Struct(form)
    unpack, size = fixed.unpack_from, fixed.size
    return lambda data, at: (unpack(data, at)[0], at + size)


def _float(form: str) -> Callable[[bytes, int], tuple[float, int]]:
    number = _number(form)

    def decode(data: bytes, at: int) -> tuple[float, int]:
        value, at = number(data, at)
        if not isfinite(value):  # RabbitMQ takes none
            raise MalformedFrameError("a floating-point number is not finite")
        return value, at

    return decode


def _long_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _U32(data, at)
    end = at + 4 + size
    if end > len(data):
        raise MalformedFrameError("a long string runs past its frame")
    return bytes(data[at + 4 : end]), end


def _long_string(data: bytes, at: int) -> tuple[str | bytes, int]:
    raw, at = _long_bytes(data, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        return raw, at  # RabbitMQ: a long string is any bytes


def _decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    number = int.from_bytes(data[at + 1 : at + 5], "big", signed=True)
    return Decimal(number).scaleb(-data[at]), at + 5


def decode_time(data: bytes, at: int) -> tuple[datetime | None, int]:
    """A time; None where the number means none.

    AMQP counts seconds, but many publishers write milliseconds: what lies beyond the year 9999
    is taken as such. Java's clients write times before 1970 as negative numbers. One odd message
    must not cost its reader the connection.
    """
    (number,) = _I64(data, at)
    if 0 <= number <= _YEAR_9999:
        return datetime.fromtimestamp(number, UTC), at + 8
    if _YEAR_1 * 1000 <= number < _YEAR_9999 * 1000:
        return ForeignTime.of(number), at + 8
    return None, at + 8


def _time_or_number(data: bytes, at: int) -> tuple[datetime | int, int]:
    time, end = decode_time(data, at)
    return (_I64(data, at)[0] if time is None else time), end


_DECODERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord("S"): _long_string,
    ord("I"): _number(">i"),
    ord("l"): _number(">q"),
    ord("L"): _number(">q"),
    ord("t"): lambda data, at: (data[at] != 0, at + 1),
    ord("T"): _time_or_number,
    ord("d"): _float(">d"),
    ord("f"): _float(">f"),
    ord("V"): lambda data, at: (None, at),
    ord("x"): _long_bytes,
    ord("D"): _decimal,
    ord("b"): _number(">b"),
    ord("B"): _number(">B"),
    ord("s"): _number(">h"),
    ord("u"): _number(">H"),
    ord("i"): _number(">I"),
}
"""Values by their letter, but tables and arrays."""


def entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Key and bytes of each entry of an encoded table, the key's own bytes included."""
    at = 4
    while at < len(data):
        start = at
        key, at = decode_short(data, at)
        at = _end_of_value(data, at)
        yield key, data[start:at]


def decode_arguments(data: bytes) -> dict[str, Any]:
    """What `encode_arguments` was given.

    Raises:
        MalformedFrameError: `data` is not a table.
    """
    try:  # not `with malformed()`, which would cost as much as a few headers
        return decode_table(data, 0)[0]
    except UNREADABLE as error:
        raise MalformedFrameError(fault_of(error)) from error


@contextlib.contextmanager
def malformed() -> Iterator[None]:
    """Convert whatever malformed bytes raise here to `MalformedFrameError`."""
    try:
        yield
    except UNREADABLE as error:
        raise MalformedFrameError(fault_of(error)) from error
