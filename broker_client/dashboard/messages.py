"""Messages as the page shows them, and keys by which it names them again."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from broker_client.amqp.x_death import deaths
from broker_client.dashboard.rows import as_object
from broker_client.dashboard.stories import YEAR_9999, attempts_of, origin_of, story_of
from broker_client.message import Delivery

HASHED_BYTES = 4096
"""Of a body. No less may be asked of an API that cuts bodies off."""

_DUMPED = 4096  # bytes of a binary body
_NO_TEXT = "Not UTF-8, base64 is: "  # RabbitMQ's, of bytes
_CHANGED_BY_QUEUES = ("x-delivery-count", "x-acquired-count")


class Content(NamedTuple):
    """Identifies a message, however it was read."""

    message_id: str
    size: int
    start: bytes
    """Of the body, no more than `HASHED_BYTES`."""

    @property
    def trace(self) -> str:
        """Names the message wherever it is moved to."""
        return _digest([self.message_id, self.size, self.start.hex()])

    def key(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> str:
        """Names the message in the queue where it is. Those of one key are alike."""
        values = {
            name: value
            for name, value in ((name, _comparable(value)) for name, value in headers.items())
            if value is not None and name not in _CHANGED_BY_QUEUES
        }
        died = [
            [each.get(part) for part in ("queue", "reason", "count")] for each in deaths(headers)
        ]
        return _digest([self.trace, exchange, routing_key, values, died])


def _comparable(value: Any) -> str | int | None:
    """The part of a header's value that is the same in AMQP and in the JSON of each API, or None.

    An API shows times as numbers and bytes as text; RabbitMQ leaves times in milliseconds as they
    are, and each has its own way with bytes that are not text.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return None
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, str):
        return None if "\ufffd" in value or value.startswith(_NO_TEXT) else value
    if isinstance(value, int):
        return value // 1000 if value > YEAR_9999 else value
    return None


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def content_of(delivery: Delivery) -> Content:
    """Identifies a delivery."""
    properties, body = delivery.properties, delivery.body
    return Content(properties.message_id or "", len(body), body[:HASHED_BYTES])


def key_of(delivery: Delivery) -> str:
    """The key that `message_of` gives the same message."""
    headers = delivery.properties.headers or {}
    return content_of(delivery).key(delivery.exchange, delivery.routing_key, headers)


def message_of(got: Mapping[str, Any], position: int, most: int) -> dict[str, Any]:
    """A message as the page shows it.

    Args:
        got: as a management API answers to `get`.
        position: among those that were got.
        most: bytes of the body that are shown.
    """
    properties = as_object(got.get("properties"))
    headers = as_object(properties.get("headers"))
    body, size = payload_of(got), int(got.get("payload_bytes", 0))
    content = content_of_got(got)
    exchange, routing_key = str(got.get("exchange", "")), str(got.get("routing_key", ""))
    redelivered = bool(got.get("redelivered"))
    shown = body[:most]
    message: dict[str, Any] = {
        "key": content.key(exchange, routing_key, headers),
        "position": position,
        "exchange": exchange,
        "routing_key": routing_key,
        "redelivered": redelivered,
        "size": size,
        "truncated": size > len(shown),
        "properties": {name: value for name, value in properties.items() if name != "headers"},
        "headers": headers,
        "body": readable(shown, whole=size <= len(shown)),
        **_payload(shown),
        "story": story_of(properties, exchange, routing_key, redelivered=redelivered),
    }
    attempts, origin = attempts_of(headers), origin_of(headers)
    if attempts is not None:
        message["attempts"] = attempts
    if origin is not None:
        message["origin"] = origin
    return message


def content_of_got(got: Mapping[str, Any]) -> Content:
    """Identifies a message from an API's answer."""
    named = as_object(got.get("properties")).get("message_id")
    size = int(got.get("payload_bytes", 0))
    return Content(str(named or ""), size, payload_of(got)[:HASHED_BYTES])


def payload_of(got: Mapping[str, Any]) -> bytes:
    """The body of a message that an API has answered, as far as it goes."""
    payload = str(got.get("payload", ""))
    if got.get("payload_encoding") != "base64":
        return payload.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(payload)
    except binascii.Error:
        return b""


def _payload(body: bytes) -> dict[str, str]:
    try:
        return {"payload": body.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": base64.b64encode(body).decode(), "payload_encoding": "base64"}


def readable(body: bytes, *, whole: bool = True) -> dict[str, str]:
    """A body as people read it: JSON indented, text, or bytes by their numbers.

    Args:
        body: or its beginning.
        whole: nothing was cut off.
    """
    if not body:
        return {"kind": "empty", "text": "", "encoding": ""}
    text = _text(body, whole=whole)
    if text is None:
        return {"kind": "binary", "text": hex_dump(body[:_DUMPED]), "encoding": "hex"}
    if whole and text.lstrip()[:1] in ("{", "["):
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
            pretty.encode()  # half a surrogate pair is not text
        except (ValueError, RecursionError):
            pass
        else:
            return {"kind": "json", "text": pretty, "encoding": "utf-8"}
    return {"kind": "text", "text": text, "encoding": "utf-8"}


def _text(body: bytes, *, whole: bool) -> str | None:
    """`body` as text; None where it is none."""
    for cut in range(1 if whole else 4):  # a character may have been cut in two
        try:
            text = body[: len(body) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def hex_dump(data: bytes) -> str:
    """Sixteen bytes a line: where, their numbers, and what of them is ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        ascii_part = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {ascii_part}")
    return "\n".join(lines)
