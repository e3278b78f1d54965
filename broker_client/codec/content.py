"""Content of a message to bytes and back, by content type (as in rascal)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from broker_client.errors import InvalidContentError

TEXT = "text/plain"
JSON = "application/json"

_decode_json_text = json.JSONDecoder().decode
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def encode(content: Any) -> tuple[bytes, str | None]:
    """(body, content type) of what a caller publishes.

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
    try:
        try:
            text = _encode_json(content)
        except TypeError:
            text = _encode_json(to_jsonable_python(_plain(content)))
    except (TypeError, ValueError, PydanticSerializationError, RecursionError) as error:
        raise InvalidContentError(JSON, str(error)) from error
    return _utf8(text, JSON), JSON


def decode(body: bytes, content_type: str | None) -> Any:
    """What a handler gets: `str` for text, the parsed value for JSON, otherwise the bytes.

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
    return bytes


def _decode_json(body: bytes) -> Any:
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
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"')
    return "utf-8"


def _plain(content: Any) -> Any:
    if isinstance(content, BaseModel):
        return content.model_dump(mode="json")
    if dataclasses.is_dataclass(content) and not isinstance(content, type):
        return dataclasses.asdict(content)
    return content
