"""Content of a message to bytes and back, by content type (as in rascal)."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python

from broker_client.codec.registry import codec_of, forgets
from broker_client.errors import InvalidContentError, described

TEXT = "text/plain"
JSON = "application/json"

_decode_json_text = json.JSONDecoder().decode
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def encode(content: Any) -> tuple[bytes, str | None]:
    """Encode content; returns (body, content type).

    Bytes go as they are, with no content type; `str` becomes UTF-8 text; all else becomes JSON,
    pydantic models, dataclasses, dates, UUIDs and sets included.

    Raises:
        InvalidContentError: JSON cannot express it, or its text holds half of a surrogate pair.
    """
    if isinstance(content, bytes):
        return content, None
    if isinstance(content, bytearray | memoryview):
        return bytes(content), None
    if isinstance(content, str):
        return _utf8(content, TEXT), TEXT
    return encode_json(content), JSON


def encode_json(content: Any) -> bytes:
    """Any content but bytes as JSON.

    Raises:
        InvalidContentError: JSON cannot express it.
    """
    try:
        body = to_json(content, inf_nan_mode="constants")
    except (ValueError, PydanticSerializationError, RecursionError):
        return _encode_slowly(content)  # which knows what is wrong, or finds that nothing is
    if (
        # A number that JSON does not have; keys that are None, or such a number.
        (b"NaN" in body or b"Infinity" in body)
        or (b'None":' in body or b'nan":' in body or b'inf":' in body)
    ):
        return _encode_slowly(content)
    return body


def _encode_slowly(content: Any) -> bytes:
    """As the standard library does it, which decides what JSON can express."""
    try:
        try:
            text = _encode_json(content)
        except TypeError:
            text = _encode_json(to_jsonable_python(content, by_alias=True))
    except (TypeError, ValueError, PydanticSerializationError, RecursionError) as error:
        raise InvalidContentError(JSON, str(error)) from error
    return _utf8(text, JSON)


def decode(body: bytes, content_type: str | None) -> Any:
    """Decode a body for a handler: `str` for text, the parsed value for JSON, otherwise bytes.

    Raises:
        InvalidContentError: the body does not fit the content type.
    """
    if content_type is None:
        return body
    try:
        return _decoder_of(content_type)(body)
    except (ValueError, LookupError, RecursionError) as error:
        raise InvalidContentError(content_type, str(error)) from error


@lru_cache(maxsize=256)
def _decoder_of(content_type: str) -> Callable[[bytes], Any]:
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == JSON or kind.endswith("+json"):
        return _decode_json
    if kind == TEXT:
        charset = _charset(parameters)
        return lambda body: body.decode(charset)
    codec = codec_of(kind)
    return bytes if codec is None else _guarded(codec.decode)


forgets(_decoder_of.cache_clear)


def _guarded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`decode`; every exception that it raises is reported as invalid content."""

    def guarded(body: bytes) -> Any:
        try:
            return decode(body)
        except Exception as error:  # noqa: BLE001 - a library's, or the application's
            raise ValueError(described(error)) from None

    return guarded


def _decode_json(body: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return from_json(body)
    # The standard library decides what JSON is; it also reads what is nested deeper.
    try:
        return _decode_json_text(body.decode())
    except ValueError:
        return json.loads(body)  # which knows UTF-16 and byte order marks too


def _utf8(text: str, content_type: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidContentError(content_type, str(error)) from error


def _charset(parameters: str) -> str:
    """The charset that the parameters of a content type name.

    Raises:
        LookupError: texts are not written in it. Python knows further ones (punycode,
            idna) that take minutes for a body of some hundred kilobytes.
    """
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"')
            if _CHARSET.fullmatch(codecs.lookup(charset).name) is None:
                raise LookupError(f"charset {charset!r} is not supported")
            return charset
    return "utf-8"


_CHARSET = re.compile(
    r"ascii|utf-(8|16|32)(-[bl]e|-sig)?|iso8859-\d+|cp(125\d|437|850|852|866|874|932|949|950)"
    r"|koi8-[rtu]|mac-roman|shift_jis(x0213|_2004)?|euc_(jp|kr)|iso2022_(jp|kr)|big5(hkscs)?"
    r"|gb(2312|k|18030)|tis-620"
)
"""Names of codecs, as Python normalises them, in which bodies of text may be written."""
