"""Adds the message that is being handled to every log record.

Add `log_context` as middleware, and a `MessageFilter` to the handlers of your logging::

    broker.middleware("handle")(log_context)
    logging.getLogger().handlers[0].addFilter(MessageFilter())

Records written while a message is handled, and by the client when its handler has failed, then have
the attributes `message_id`, `subscription`, `attempt` and `trace_id`.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

from broker_client.consuming.handle_call import HandleCall, HandleNext

_call: ContextVar[HandleCall | None] = ContextVar("broker_client.handled", default=None)

FIELDS = ("message_id", "subscription", "attempt", "trace_id")


async def log_context(call: HandleCall, call_next: HandleNext) -> Any:
    """Middleware around handlers: makes the message known to `message_fields`.

    It stays known after the handler has ended, because recovery runs in the same context.
    """
    _call.set(call)
    return await call_next(call)


def message_fields() -> dict[str, str | int | None]:
    """`message_id`, `subscription`, `attempt` and `trace_id` of the message that is being handled;
    empty outside of a handler."""
    call = _call.get()
    if call is None:
        return {}
    message = call.message
    return {
        "message_id": message.message_id,
        "subscription": call.subscription,
        "attempt": message.tries,
        "trace_id": call.trace_id,
    }


class MessageFilter(logging.Filter):
    """Adds `message_fields` to each record, for use in a format: ``%(message_id)s``.

    Args:
        missing: the value outside of a handler, and for fields that the message does not have.
    """

    def __init__(self, missing: str | None = None) -> None:
        super().__init__()
        self._missing = missing

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; True."""
        fields = message_fields()
        for name in FIELDS:
            value = fields.get(name)
            setattr(record, name, self._missing if value is None else value)
        return True
