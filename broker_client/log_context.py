"""The message that is being handled, in every log record.

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

    It stays known when the handler has ended, because each handler has a context of its own, in
    which recovery also runs.
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
    """Adds `message_fields` to each record, so that a format may name them: ``%(message_id)s``.

    Args:
        missing: the value where nothing is handled, or the message has none.
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
