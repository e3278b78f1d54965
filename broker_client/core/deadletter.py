"""Dead letters: the message that a death makes of one, in the shape of RabbitMQ 3.10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from broker_client.message import Outgoing

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"


def dead_letter(
    message: Outgoing,
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_key: str | None,
    now: float,
) -> Outgoing:
    """The message to publish to the dead-letter `exchange`.

    Its `expiration` is gone so that it does not expire again; with a `routing_key` of its own
    the CC and BCC headers go too, since those keys no longer count (RabbitMQ).
    """
    properties = message.properties
    headers = dict(properties.headers or {})
    death: dict[str, Any] = {
        "count": 1,
        "exchange": message.exchange,
        "queue": queue,
        "reason": reason,
        "routing-keys": [message.routing_key, *_cc(headers)],
        "time": datetime.fromtimestamp(int(now), UTC),
    }
    if properties.expiration is not None:
        death["original-expiration"] = properties.expiration
    before = deaths(headers)
    if before is None:
        headers["x-first-death-exchange"] = message.exchange
        headers["x-first-death-queue"] = queue
        headers["x-first-death-reason"] = reason
    headers["x-death"] = _merged(death, before or [])
    if routing_key is not None:
        headers.pop("CC", None)
        headers.pop("BCC", None)
    return Outgoing(
        exchange,
        message.routing_key if routing_key is None else routing_key,
        message.body,
        properties._replace(headers=headers, expiration=None),
    )


def deaths(headers: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """The x-death tables, newest first; None when the header is absent or no such array."""
    found = headers.get("x-death")
    if not isinstance(found, list) or not all(isinstance(table, Mapping) for table in found):
        return None
    return found


def _merged(death: dict[str, Any], before: Sequence[Mapping[str, Any]]) -> list[Any]:
    """`death` in front; RabbitMQ: one of the same queue and reason is moved and counted up."""
    key = (death["queue"], death["reason"])
    same = [table for table in before if (table.get("queue"), table.get("reason")) == key]
    others = [table for table in before if (table.get("queue"), table.get("reason")) != key]
    if not same:
        return [death, *others]
    count = sum(table.get("count", 1) for table in same) + 1
    return [{**same[0], "count": count}, *others]


def is_cycle(message: Outgoing, queue: str, reason: str) -> bool:
    """True when a dead letter would come back to `queue` with no consumer having rejected it.

    RabbitMQ: such a message is dropped, for it would circle for ever; one `rejected` death in
    the cycle shows that a consumer steers it, and it goes on.
    """
    if reason == REJECTED:
        return False
    cycle: list[Mapping[str, Any]] = []
    for table in deaths(message.properties.headers or {}) or []:
        cycle.append(table)
        if table.get("queue") == queue:
            return all(death.get("reason") != REJECTED for death in cycle)
    return False


def _cc(headers: Mapping[str, Any]) -> list[Any]:
    keys = headers.get("CC")
    return list(keys) if isinstance(keys, list) else []
