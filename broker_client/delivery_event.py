"""What can happen to a message, as one line of the delivery-event log.

The built-in broker notes these inside its pure core, the client from what it sees of a remote
broker; `eventlog` writes them and `broker_client.spark.events` reads them. docs/event-log.md
says what each event means and which fields it carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

PUBLISHED = "published"
CONFIRMED = "confirmed"
RETURNED = "returned"
PUBLISH_FAILED = "publish_failed"
ENQUEUED = "enqueued"
DELIVERED = "delivered"
ACKED = "acked"
NACKED = "nacked"
REQUEUED = "requeued"
TIMED_OUT = "timed_out"
DEAD_LETTERED = "dead_lettered"
EXPIRED = "expired"
DROPPED = "dropped"
REPLAYED = "replayed"

EVENTS = (
    PUBLISHED,
    CONFIRMED,
    RETURNED,
    PUBLISH_FAILED,
    ENQUEUED,
    DELIVERED,
    ACKED,
    NACKED,
    REQUEUED,
    TIMED_OUT,
    DEAD_LETTERED,
    EXPIRED,
    DROPPED,
    REPLAYED,
)

# Reasons; the first four are also RabbitMQ's in x-death.
REASON_REJECTED = "rejected"
REASON_EXPIRED = "expired"
REASON_MAXLEN = "maxlen"
REASON_DELIVERY_LIMIT = "delivery_limit"
REASON_TIMEOUT = "timeout"
REASON_HANDLER_ERROR = "handler_error"
REASON_CONNECTION_LOST = "connection_lost"
REASON_UNROUTABLE = "unroutable"
REASON_PURGED = "purged"
REASON_QUEUE_DELETED = "queue_deleted"
REASON_RECOVERED = "recovered"
REASON_CYCLE = "cycle"


class DeliveryEvent(NamedTuple):
    """One change of state. Times are seconds since the epoch; None is absent.

    First the fields that are the same in many events: the log writes them as one piece.
    """

    event: str
    vhost: str
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    """1 is the first delivery."""
    redelivered: bool | None = None
    reason: str | None = None
    publication: str | None = None
    subscription: str | None = None
    message_id: str | None = None
    ts: float | None = None
    """When; None where the core was not told the time: the log takes that of `record`."""
    size: int | None = None
    published_at: float | None = None
    enqueued_at: float | None = None
    delivered_at: float | None = None
    priority: int | None = None
    error_class: str | None = None
    error: str | None = None
    trace_id: str | None = None


COMMON_FIELDS = 11
"""How many of the fields are the same in many events."""


def trace_id_of(headers: Mapping[str, Any] | None) -> str | None:
    """The trace id in a W3C ``traceparent`` header (``00-<trace id>-<span id>-<flags>``)."""
    value = headers.get("traceparent") if headers else None
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        return None
    parts = value.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
