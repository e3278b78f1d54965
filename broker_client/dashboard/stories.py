"""What happened to a message, reconstructed from its headers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from broker_client.amqp.x_death import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, deaths
from broker_client.message import RASCAL

Headers = Mapping[str, Any]

_BECAUSE = {
    REJECTED: "a consumer rejected it",
    EXPIRED: "its time to live had expired",
    MAXLEN: "the queue was full",
    DELIVERY_LIMIT: "it had been delivered too often",
}
_SPRING_ERROR = "x-exception-message"  # Spring AMQP's RepublishMessageRecoverer
YEAR_9999 = 253_402_300_799  # seconds since 1970
_COUNTS = ("x-acquired-count", "x-delivery-count")


def error_of(headers: Headers) -> str:
    """The error that the last consumer noted in the headers; "" where none did."""
    history = headers.get(RASCAL)
    note = history.get("error") if isinstance(history, Mapping) else None
    if isinstance(note, Mapping):
        return ": ".join(str(note[key]) for key in ("name", "message") if note.get(key))
    spring = headers.get(_SPRING_ERROR)
    return spring if isinstance(spring, str) else ""


def origin_of(headers: Headers) -> dict[str, str] | None:
    """Where, why and with which error a message died last; None where it never died."""
    for death in deaths(headers):
        queue = death.get("queue")
        if isinstance(queue, str):
            origin = {"queue": queue, "reason": str(death.get("reason", ""))}
            error = error_of(headers)
            return {**origin, "error": error} if error else origin
    return None


def attempts_of(headers: Headers) -> int | None:
    """Earlier deliveries, as quorum queues count them; None without a count."""
    for name in _COUNTS:
        count = headers.get(name)
        if type(count) is int and count >= 0:
            return count
    return None


def story_of(
    properties: Mapping[str, Any], exchange: str, routing_key: str, *, redelivered: bool = False
) -> list[dict[str, Any]]:
    """What happened to a message, oldest first.

    Args:
        properties: with the `headers`, as a management API or a delivery has them.
        exchange: that the message was published to last.
        routing_key: that it was published with last.
        redelivered: it was delivered before.
    """
    headers = properties.get("headers")
    headers = headers if isinstance(headers, Mapping) else {}
    history = headers.get(RASCAL)
    history = history if isinstance(history, Mapping) else {}
    died = [each for each in reversed(deaths(headers)) if isinstance(each.get("queue"), str)]
    story = [_published(properties, headers, history, died, exchange, routing_key)]
    story += _recoveries(history)
    story += [_death(each) for each in died]
    attempts = attempts_of(headers)
    if attempts:
        times = "once" if attempts == 1 else f"{attempts:,} times"
        text = f"Delivered {times} from this queue, and returned to it."
        story.append({"kind": "attempts", "count": attempts, "text": text})
    elif redelivered:
        text = "Delivered or looked at before, and returned to it."
        story.append({"kind": "attempts", "text": text})
    return story


def _published(
    properties: Mapping[str, Any],
    headers: Headers,
    history: Headers,
    died: list[Mapping[str, Any]],
    exchange: str,
    routing_key: str,
) -> dict[str, Any]:
    first = died[0] if died else {}
    keys = first.get("routing-keys")
    first_key = keys[0] if isinstance(keys, list) and keys else routing_key
    exchange = str(history.get("originalExchange", first.get("exchange", exchange)))
    routing_key = str(history.get("originalRoutingKey", first_key))
    where = f"exchange {exchange!r}" if exchange else "the default exchange"
    told: dict[str, Any] = {"kind": "published", "exchange": exchange}
    by = properties.get("app_id")
    sender = f" by {by}" if isinstance(by, str) and by else ""
    told["text"] = f"Published{sender} to {where} with routing key {routing_key!r}."
    return {**told, **_time(properties.get("timestamp"))}


def _recoveries(history: Headers) -> list[dict[str, Any]]:
    """What subscriptions of broker_client or rascal did with it, by queue."""
    told: list[dict[str, Any]] = []
    recovery = history.get("recovery")
    for queue, state in recovery.items() if isinstance(recovery, Mapping) else ():
        if not isinstance(state, Mapping):
            continue
        republished, forwarded = state.get("republished"), state.get("forwarded")
        if type(republished) is int and republished > 0:
            tries = "once" if republished == 1 else f"{republished:,} times"
            text = f"Failed in queue {queue!r} and was put back to try again, {tries}."
            told.append({"kind": "republished", "queue": queue, "count": republished, "text": text})
        if type(forwarded) is int and forwarded > 0:
            text = f"Failed in queue {queue!r} and was forwarded."
            told.append({"kind": "forwarded", "queue": queue, "count": forwarded, "text": text})
    note = history.get("error")
    if isinstance(note, Mapping):
        error = error_of({RASCAL: history})
        number = history.get("tries")
        after = f"Try {number}" if type(number) is int else "The last try"
        told.append({"kind": "error", "text": f"{after} ended with {error}"})
    return told


def _death(death: Mapping[str, Any]) -> dict[str, Any]:
    reason, queue = str(death.get("reason", "")), str(death["queue"])
    because = _BECAUSE.get(reason, f"of {reason!r}" if reason else "of a reason that is not known")
    count = death.get("count", 1)
    times = f" {count:,} times, last" if type(count) is int and count > 1 else ""
    text = f"Dead-lettered from queue {queue!r}{times} because {because}."
    told: dict[str, Any] = {
        "kind": "dead_lettered",
        "queue": queue,
        "reason": reason,
        "exchange": str(death.get("exchange", "")),
        "text": text,
    }
    if type(count) is int:
        told["count"] = count
    return {**told, **_time(death.get("time"))}


def _time(value: object) -> dict[str, float]:
    """Seconds since the epoch: AMQP's time, or what an API makes of it."""
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if not isinstance(value, int | float) or isinstance(value, bool):
        return {}
    if value > YEAR_9999:
        value /= 1000  # some publishers write milliseconds
    return {"time": value} if 0 <= value <= YEAR_9999 else {}
