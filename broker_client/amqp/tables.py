"""Field tables: encoded, frozen, changed without being decoded (AMQP 0-9-1 §4.2.5).

The letters of the types are RabbitMQ's, which differ from the specification's table. What AMQP
carries comes back as any client on a network sees it: times in whole seconds, tuples as lists.
`table_decoding` reads what is encoded here, to the same value.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

from broker_client.amqp.table_decoding import MAX_DEPTH, ForeignTime, decode_arguments, entries
from broker_client.errors import InvalidMessageError

_INT32, _INT64 = 2**31, 2**63
_DECIMAL_DIGITS = 10  # as many as 32 bits hold

_TOO_LONG = "is {} bytes long; AMQP allows 255"

_float64 = struct.Struct(">d").pack

_Path = str | tuple["_Path", str | int]
"""The place of a value; formatted only for an error."""


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
        entry = b"".join([entry for name, entry in entries(self.encoded) if name == key])
        return decode_arguments(_with_length(entry)).get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self._read()[key]

    def __contains__(self, key: object) -> bool:
        if self._values is None and isinstance(key, str) and "?" not in key and self.lacks((key,)):
            return False
        return key in self._read()

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
                for key, entry in entries(table.encoded)
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
    if depth == 1 and isinstance(value, FrozenTable):
        return value.encoded
    if not isinstance(value, Mapping):
        raise InvalidMessageError(_place(name), f"is {described(value)}; a mapping is needed")
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


# --------------------------------------------------------------------------- arguments


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """A table in one order of its keys, so that equal arguments are equal bytes."""
    return encode_table(_ordered(arguments), "arguments")


def _ordered(value: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:  # refused as it is encoded
        return value
    if isinstance(value, Mapping):
        return {key: _ordered(value[key], depth + 1) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_ordered(item, depth + 1) for item in value]
    return value
