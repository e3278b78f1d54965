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

from broker_client.amqp.tables import decode_table, encode_short, encode_table, malformed
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


def method_name(key: int) -> str:
    """The name that RabbitMQ gives a method, such as ``queue.declare``.

    Args:
        key: class and method, as class << 16 | method.
    """
    method = _METHODS.get(key)
    if method is None:
        return f"{key >> 16}.{key & 0xFFFF}"
    first, second = method.name.split(".")
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in second).removeprefix("-")
    return f"{first.lower()}.{words}"


def decode_method(payload: bytes) -> Frame:
    """The method in the payload of a method frame.

    Raises:
        ReplyError: 540, no such method; 501, its arguments are not what they should be.
    """
    if len(payload) < 4:
        raise ReplyError(501, "FRAME_ERROR - a method frame needs 4 bytes", "connection")
    (key,) = _KEY.unpack_from(payload)
    kind = _METHODS.get(key)
    if kind is None:
        raise unknown_method(key)
    method = kind()
    try:
        with malformed():
            at = 4
            bit = 8
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
            if at != len(payload):
                raise MalformedFrameError("its length is not that of its arguments")
    except MalformedFrameError as error:
        raise ReplyError(
            501, f"FRAME_ERROR - cannot decode {method_name(key)}: {error.reason}", "connection"
        ) from error
    return method


def unknown_method(key: int) -> ReplyError:
    """540: no such method."""
    text = f"NOT_IMPLEMENTED - unknown method {key & 0xFFFF} of class {key >> 16}"
    return ReplyError(540, text, "connection")


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
    if end > len(data):
        raise MalformedFrameError("a long string runs past its frame")
    raw = data[at + 4 : end]
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


def strict_short(data: bytes, at: int) -> tuple[str, int]:
    """A short string at `at`, and the offset behind it.

    Raises:
        MalformedFrameError: it runs past the frame, or is not UTF-8.
    """
    end = at + 1 + data[at]
    if end > len(data):
        raise MalformedFrameError("a short string runs past its frame")
    try:
        return str(data[at + 1 : end], "utf-8"), end
    except UnicodeDecodeError:
        raise MalformedFrameError("Malformed UTF-8 in shortstr") from None


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
