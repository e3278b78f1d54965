"""Methods to bytes and back, by pamqp's list of them (AMQP 0-9-1 §4.2.4 and RabbitMQ's errata).

pamqp says which methods there are, and of which arguments. The values are encoded and decoded
here: pamqp reads beyond the end of a short frame, recurses into nested tables as deep as a peer
likes, and checks names by rules that brokers do not have.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING

from broker_client.amqp import violations
from broker_client.amqp.table_decoding import UNREADABLE, decode_table
from broker_client.amqp.tables import encode_short, encode_table
from broker_client.errors import MalformedFrameError, ReplyError

_NUMBERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_METHODS: Mapping[int, type[Frame]] = INDEX_MAPPING
_ARGUMENTS: Mapping[int, tuple[tuple[str, str], ...]] = {
    key: tuple((name, method.amqp_type(name)) for name in method.attributes())
    for key, method in _METHODS.items()
}
"""Name and type of each argument, in order, by class and method."""

_KEY = struct.Struct(">I")
_FRAME = struct.Struct(">BHI")
_METHOD, _END = 1, b"\xce"


def decode_method(payload: bytes) -> Frame:
    """The method in the payload of a method frame.

    Args:
        payload: at least the 4 bytes of class and method.

    Raises:
        ReplyError: 540, no such method; 501 or 502, its arguments are malformed.
    """
    (key,) = _KEY.unpack_from(payload)
    kind = _METHODS.get(key)
    if kind is None:
        raise violations.unknown_method(key)
    method = kind.__new__(kind)  # __init__ would check, and warn of basic.recover-async
    at, bit = 4, 8
    try:
        for name, type_ in _ARGUMENTS[key]:
            if type_ == "bit":
                if bit == 8:
                    bit, at = 0, at + 1
                setattr(method, name, payload[at - 1] >> bit & 1 == 1)
                bit += 1
                continue
            bit = 8
            value, at = _decode(payload, at, type_)
            setattr(method, name, value)
    except UNREADABLE as error:
        raise unreadable_arguments(payload, error) from error
    if at != len(payload):
        raise violations.undecodable(payload[4:])
    return method


def unreadable_arguments(payload: bytes, error: Exception) -> ReplyError:
    """501 or 502: why the arguments in a method's payload cannot be decoded.

    Args:
        payload: of the method frame.
        error: one of `UNREADABLE`.
    """
    if isinstance(error, UnicodeDecodeError):
        return violations.frame_error("Malformed UTF-8 in shortstr")
    if isinstance(error, MalformedFrameError):
        return violations.syntax_error(error.reason)
    return violations.undecodable(payload[4:])


def encode_method(channel: int, method: Frame) -> bytes:
    """The frame of a method.

    Raises:
        InvalidMessageError: an argument that AMQP cannot carry.
    """
    parts = [_KEY.pack(method.index)]
    bits = count = 0
    for name, type_ in _ARGUMENTS[method.index]:
        value = getattr(method, name)
        if type_ == "bit":
            if count == 8:
                parts.append(bytes((bits,)))
                bits = count = 0
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            parts.append(bytes((bits,)))
            bits = count = 0
        parts.append(_encode(value, name, type_))
    if count:
        parts.append(bytes((bits,)))
    payload = b"".join(parts)
    return b"".join((_FRAME.pack(_METHOD, channel, len(payload)), payload, _END))


def _decode(data: bytes, at: int, type_: str) -> tuple[Any, int]:
    number = _NUMBERS.get(type_)
    if number is not None:
        return number.unpack_from(data, at)[0], at + number.size
    if type_ == "table":
        return decode_table(data, at)
    if type_ == "shortstr":
        return strict_short(data, at)
    (size,) = _KEY.unpack_from(data, at)
    end = at + 4 + size
    raw = data[at + 4 : end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end  # RabbitMQ: a long string is any bytes


def strict_short(data: bytes, at: int) -> tuple[str, int]:
    """A short string at `at`, and the offset behind it, which may lie beyond `data`.

    Raises:
        UnicodeDecodeError: it is not UTF-8, which RabbitMQ wants of the names in methods.
        IndexError: it starts beyond `data`.
    """
    end = at + 1 + data[at]
    return str(data[at + 1 : end], "utf-8"), end


def _encode(value: Any, name: str, type_: str) -> bytes:
    number = _NUMBERS.get(type_)
    if number is not None:
        return number.pack(value)
    if type_ == "table":
        return encode_table(value or {}, name)
    if type_ == "shortstr":
        return encode_short(value or "", name)
    data = value.encode() if isinstance(value, str) else bytes(value or b"")
    return len(data).to_bytes(4, "big") + data
