"""Dead letters: the message that a death makes of one, in the shape of RabbitMQ 3.10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.amqp.x_death import dead_lettered
from broker_client.message import Outgoing


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
    headers = message.properties.headers or {}
    properties = dead_lettered(
        message.properties,
        queue=queue,
        reason=reason,
        exchange=message.exchange,
        routing_keys=[message.routing_key, *_cc(headers)],
        now=now,
    )
    if routing_key is None:
        return Outgoing(exchange, message.routing_key, message.body, properties)
    kept = {k: v for k, v in (properties.headers or {}).items() if k not in ("CC", "BCC")}
    return Outgoing(exchange, routing_key, message.body, properties._replace(headers=kept))


def _cc(headers: Mapping[str, Any]) -> list[Any]:
    keys = headers.get("CC")
    return list(keys) if isinstance(keys, list) else []
