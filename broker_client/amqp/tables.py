"""Encoding and decoding of values and field tables (AMQP 0-9-1 §4.2.5).

The letters of the types are RabbitMQ's, which differ from the specification's table. What AMQP
carries comes back as any client on a network sees it: times in whole seconds, tuples as lists.
Whatever is decoded here can be encoded again, to the same value.

Tables may be nested `MAX_DEPTH` deep. Decoding does not recurse, and checks each length against
what surrounds it before it reads: bytes from a peer or a file raise `MalformedFrameError` at worst.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

from broker_client.errors import InvalidMessageError, MalformedFrameError

MAX_DEPTH = 64
"""Levels of tables and arrays in each other; RabbitMQ has no limit of its own."""

_INT32, _INT64 = 2**31, 2**63
_DECIMAL_DIGITS = 10  # as many as 32 bits hold
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1 = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())
_YEAR_9999 = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())

_TOO_LONG = "is {} bytes long; AMQP allows 255"

_float64 = struct.Struct(">d").pack
_U64 = struct.Struct(">Q").unpack_from
_I64 = struct.Struct(">q").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U16 = struct.Struct(">H").unpack_from

_Path = str | tuple["_Path", str | int]
"""The place of a value; formatted only for an error."""


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


@lru_cache(maxsize=256)
def _encoded_key(key: str) -> bytes:
    data = key.encode()
    return bytes((min(len(data), 255),)) + data


class FrozenTable(Mapping[str, Any]):
    """An encoded field table, independent of later changes to its source.

    Its values are those that a client reads off the wire. They are decoded when first read.
    """

    __slots__ = ("_values", "encoded")

    def __init__(self, encoded: bytes, values: dict[str, Any] | None = None) -> None:
        """
        Args:
            encoded: the table.
            values: what it means, where somebody has decoded it already.
        """
        self.encoded: bytes = encoded
        self._values = values

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str = "headers") -> FrozenTable:
        """`table`, frozen.

        Raises:
            InvalidMessageError: it holds what AMQP cannot carry.
        """
        return table if isinstance(table, FrozenTable) else cls(encode_table(table, name))

    def lacks(self, keys: Iterable[str]) -> bool:
        """True if it certainly has none of `keys`: their bytes are not in it. It is not decoded."""
        encoded = self.encoded
        for key in keys:  # noqa: SIM110 - a generator costs more than the search
            if _encoded_key(key) in encoded:
                return False
        return True

    def plain(self) -> dict[str, Any]:
        """Its values as a plain table, which the caller owns."""
        return self._read().copy()

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            self._values = decode_arguments(self.encoded)
        return self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`; the others are not decoded for it."""
        if self._values is not None:
            return self._values.get(key, default)
        if "?" not in key and self.lacks((key,)):  # which may stand for bytes that are not UTF-8
            return default
        entry = b"".join([entry for name, entry in _entries(self.encoded) if name == key])
        return decode_arguments(_with_length(entry)).get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __bool__(self) -> bool:
        return len(self.encoded) > 4  # its length is there always

    def __repr__(self) -> str:
        return f"FrozenTable({self._read()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenTable, (self.encoded,)


def replaced(
    table: Mapping[str, Any],
    without: Collection[str],
    added: Mapping[str, Any] = MappingProxyType({}),
) -> Mapping[str, Any]:
    """`table` without the keys `without`, and with `added`.

    Of an encoded one, what stays keeps its bytes, so that the types stay that Python's values do
    not tell apart: integers by their size, single and double floats.

    Raises:
        InvalidMessageError: `added` holds what AMQP cannot carry.
    """
    if type(table) is not FrozenTable:
        kept = {key: value for key, value in table.items() if key not in without}
        return {**kept, **added}
    if not added and table.lacks(without):
        return table
    more = encode_table(added)[4:]
    if table.lacks(without) and table.lacks(added):
        kept_bytes = table.encoded[4:]
    else:
        kept_bytes = b"".join(
            [
                entry
                for key, entry in _entries(table.encoded)
                if key not in without and key not in added
            ]
        )
    return FrozenTable(_with_length(kept_bytes + more))


def preceded(table: Mapping[str, Any], first: FrozenTable) -> Mapping[str, Any]:
    """`table` behind the entries of `first`, whose keys it does not have."""
    if type(table) is not FrozenTable:
        return {**first, **table}
    return FrozenTable(_with_length(first.encoded[4:] + table.encoded[4:]))


def without_first(table: FrozenTable, first: FrozenTable) -> FrozenTable | None:
    """`table` without the entries of `first`; None if it does not begin with them."""
    entries = first.encoded[4:]
    if not table.encoded.startswith(entries, 4):
        return None
    return FrozenTable(_with_length(table.encoded[4 + len(entries) :]))


def _entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Key and bytes of each entry of an encoded table, the key's own bytes included."""
    at = 4
    while at < len(data):
        start = at
        key, at = decode_short(data, at)
        at = _end_of_value(data, at)
        yield key, data[start:at]


def _with_length(entries: bytes) -> bytes:
    return len(entries).to_bytes(4, "big") + entries


def has_none_of(table: Mapping[str, Any], keys: frozenset[str]) -> bool:
    """True if `table` has none of `keys`; an encoded one is decoded only if it may have one."""
    if type(table) is FrozenTable and table.lacks(keys):
        return True
    return keys.isdisjoint(table)


# --------------------------------------------------------------------------- encoding


def encode_short(value: str, name: str) -> bytes:
    """A short string: a length octet and up to 255 bytes of UTF-8 (AMQP 0-9-1 §4.2.5.3).

    Raises:
        InvalidMessageError: it is too long, or no text.
    """
    if not isinstance(value, str):
        raise InvalidMessageError(name, f"is {described(value)}; text is needed")
    data = _utf8(value, name)
    if len(data) > 255:
        raise InvalidMessageError(name, _TOO_LONG.format(len(data)))
    return bytes((len(data),)) + data


def check_short(value: str, name: str) -> None:
    """Raise InvalidMessageError where `encode_short` would."""
    if not isinstance(value, str) or len(value) > 255 or not value.isascii():
        encode_short(value, name)  # what is ASCII and short enough needs no bytes to be checked


def encode_table(value: Mapping[str, Any], name: _Path = "headers", depth: int = 1) -> bytes:
    """A field table, its length first (AMQP 0-9-1 §4.2.5.5).

    Raises:
        InvalidMessageError: it holds what AMQP, or RabbitMQ, cannot carry.
    """
    if not isinstance(value, Mapping):
        raise InvalidMessageError(_place(name), f"is {described(value)}; a mapping is needed")
    if depth == 1 and isinstance(value, FrozenTable):
        return value.encoded
    if depth > MAX_DEPTH:
        raise _too_deep(name)
    parts: list[bytes] = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise InvalidMessageError(_place(name), f"has the key {key!r}; keys are strings")
        data = _utf8(key, name)
        if len(data) > 255:
            raise InvalidMessageError(f"key in {_place(name)}", _TOO_LONG.format(len(data)))
        parts += (bytes((len(data),)), data, _encode_value(item, (name, key), depth))
    data = b"".join(parts)
    return len(data).to_bytes(4, "big") + data


def _encode_value(value: Any, path: _Path, depth: int) -> bytes:
    match value:
        case str():
            data = _utf8(value, path)
            return b"S" + len(data).to_bytes(4, "big") + data
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            if -_INT32 <= value < _INT32:
                return b"I" + value.to_bytes(4, "big", signed=True)
            if -_INT64 <= value < _INT64:
                return b"l" + value.to_bytes(8, "big", signed=True)
            raise InvalidMessageError(_place(path), "is an integer of more than 64 bits")
        case float():
            if not isfinite(value):  # RabbitMQ closes the connection over it (541)
                raise InvalidMessageError(_place(path), f"is {value}, which AMQP cannot carry")
            return b"d" + _float64(value)
        case None:
            return b"V"
        case Mapping():
            return b"F" + encode_table(value, path, depth + 1)
        case list() | tuple():
            if depth >= MAX_DEPTH:
                raise _too_deep(path)
            data = b"".join(
                [_encode_value(item, (path, i), depth + 1) for i, item in enumerate(value)]
            )
            return b"A" + len(data).to_bytes(4, "big") + data
        case bytes() | bytearray() | memoryview():
            data = bytes(value)
            return b"x" + len(data).to_bytes(4, "big") + data
        case datetime():
            return b"T" + encode_time(value, path)
        case Decimal():
            return b"D" + _encode_decimal(value, path)
    raise InvalidMessageError(_place(path), f"is {described(value)}, which AMQP cannot carry")


def _place(path: _Path) -> str:
    keys: list[str] = []
    while isinstance(path, tuple):
        path, key = path
        keys.append(f"[{key!r}]")
    if len(keys) > 8:
        keys[4:-3] = ["[...]"]
    return path + "".join(reversed(keys))


def _too_deep(path: _Path) -> InvalidMessageError:
    return InvalidMessageError(_place(path), f"is nested more than {MAX_DEPTH} levels deep")


def described(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _utf8(value: str, path: _Path) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidMessageError(
            _place(path), "holds half of a surrogate pair, which is not text"
        ) from None


def encode_time(value: datetime, path: _Path) -> bytes:
    """Whole seconds since 1970 (AMQP 0-9-1 §4.2.5.4); a naive time is taken as UTC."""
    if not isinstance(value, datetime):
        raise InvalidMessageError(_place(path), f"is {described(value)}; a datetime is needed")
    if isinstance(value, ForeignTime) and (number := getattr(value, "number", None)) is not None:
        return int(number).to_bytes(8, "big", signed=True)
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    seconds = int(aware.timestamp())
    if seconds < 0:
        raise InvalidMessageError(_place(path), f"is {value.isoformat()}; AMQP times start in 1970")
    return seconds.to_bytes(8, "big")


def _encode_decimal(value: Decimal, path: _Path) -> bytes:
    sign, digits, exponent = value.as_tuple()
    number = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    if not isinstance(exponent, int):
        raise InvalidMessageError(_place(path), f"is {value}, which AMQP cannot carry")
    if exponent > _DECIMAL_DIGITS and number:
        raise InvalidMessageError(_place(path), f"is {value}, too long for an AMQP decimal")
    if exponent > 0:
        number, exponent = number * 10**exponent, 0
    if not (-_INT32 <= number < _INT32 and -exponent <= 255):
        raise InvalidMessageError(_place(path), f"is {value}, too long for an AMQP decimal")
    return bytes((-exponent,)) + number.to_bytes(4, "big", signed=True)


# --------------------------------------------------------------------------- decoding


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
            raise MalformedFrameError(f"unknown field type {chr(kind)!r}")
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
    return _DECODERS[kind](data, at)[1]


def _number(form: str) -> Callable[[bytes, int], tuple[Any, int]]:
    fixed = struct.Struct(form)
    unpack, size = fixed.unpack_from, fixed.size
    return lambda data, at: (unpack(data, at)[0], at + size)


def _float(form: str) -> Callable[[bytes, int], tuple[float, int]]:
    number = _number(form)

    def decode(data: bytes, at: int) -> tuple[float, int]:
        value, at = number(data, at)
        if not isfinite(value):  # RabbitMQ takes none
            raise MalformedFrameError(f"a number is {value}")
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


# --------------------------------------------------------------------------- arguments


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """A table in one order of its keys, so that equal arguments are equal bytes."""
    return encode_table(_ordered(arguments), "arguments")


def decode_arguments(data: bytes) -> dict[str, Any]:
    """What `encode_arguments` was given.

    Raises:
        MalformedFrameError: `data` is not a table.
    """
    try:  # not `with malformed()`, which would cost as much as a few headers
        return decode_table(data, 0)[0]
    except UNREADABLE as error:
        raise MalformedFrameError(str(error)) from error


def _ordered(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:  # refused as it is encoded
        return value
    if isinstance(value, Mapping):
        return {key: _ordered(value[key], depth + 1) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_ordered(item, depth + 1) for item in value]
    return value


UNREADABLE = (
    MalformedFrameError,
    struct.error,
    LookupError,
    ValueError,
    ArithmeticError,
    OSError,
)


@contextlib.contextmanager
def malformed() -> Iterator[None]:
    """Convert whatever malformed bytes raise here to `MalformedFrameError`."""
    try:
        yield
    except UNREADABLE as error:
        raise MalformedFrameError(str(error)) from error
