"""Answers to requests: what a handler returned, nothing, or that it failed.

A reply goes to the queue that the request names (`reply_to`) and carries its correlation id, else
its message id. It is dropped when that queue is gone, since the requester no longer waits.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from broker_client.codec import content
from broker_client.message import FAILURE_KIND, Message, Outgoing, Properties


def answer(request: Message, result: Any) -> Outgoing:
    """The answer with what the handler returned; without content for None.

    Raises:
        InvalidContentError: `result` cannot be encoded.
    """
    if result is None:
        return _reply(request, b"", Properties())
    body, content_type = content.encode(result)
    return _reply(request, body, Properties(content_type=content_type))


def failure(request: Message, error: BaseException | str) -> Outgoing:
    """The answer that the request failed, and with which class of error.

    Its text is not sent: it may be confidential.
    """
    kind = type(error).__name__ if isinstance(error, BaseException) else "error"
    return _reply(request, b"", Properties(headers={FAILURE_KIND: kind[:_KIND_LIMIT]}))


_KIND_LIMIT = 128  # characters


def _reply(request: Message, body: bytes, properties: Properties) -> Outgoing:
    asked = request.properties
    properties = properties._replace(
        correlation_id=asked.correlation_id or asked.message_id, message_id=uuid4().hex
    )
    return Outgoing("", asked.reply_to or "", body, properties)
