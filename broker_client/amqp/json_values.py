"""Values of messages as the JSON of RabbitMQ's management API has them."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime


def timestamp_of(seconds: object) -> datetime:
    """The property `timestamp`.

    Args:
        seconds: since 1970, whole.

    Raises:
        ValueError: that is not a time.
    """
    if isinstance(seconds, int) and not isinstance(seconds, bool):
        try:
            return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, ValueError, OSError):
            pass
    raise ValueError("timestamp must be seconds since 1970")


def body_of(payload: str, encoding: str) -> bytes:
    """The body of a message.

    Args:
        payload: the body as text.
        encoding: ``string`` for UTF-8, or ``base64``.

    Raises:
        ValueError: it is neither.
    """
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise ValueError("payload_encoding is string or base64")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("payload is not base64") from None
