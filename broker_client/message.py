"""What travels: a message's properties, one to be sent, one handed back, one delivered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

Headers = Mapping[str, Any]

TRANSIENT = 1
PERSISTENT = 2
"""Values of `delivery_mode` (AMQP 0-9-1 §1.8, basic class)."""


class Properties(NamedTuple):
    """The properties of the basic class (AMQP 0-9-1 §1.8), each None when absent.

    Named tuples, because they are made once a message on the hot path and shared between the
    copies that several queues hold: they must be cheap and must not change.
    """

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Headers | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    """Milliseconds, as decimal digits: the wire's own form."""
    message_id: str | None = None
    timestamp: datetime | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class Outgoing(NamedTuple):
    """A message ready for the wire."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    mandatory: bool = False


class Returned(NamedTuple):
    """A mandatory message that no queue took (basic.return)."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties


class Delivery(NamedTuple):
    """One handing-out of a message to a consumer, as a transport reports it."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    attempts: int | None = None
    """Deliveries so far, this one included; None where the broker does not count."""
