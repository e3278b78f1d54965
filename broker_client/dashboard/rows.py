"""A queue as a row of the page, from what a management API says of it.

A key is absent where its value is 0, false, empty or unknown: 1,000 rows are sent at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = dict[str, Any]

COLUMNS = (
    "name,vhost,type,durable,auto_delete,exclusive,policy,state,messages_ready,"
    "messages_unacknowledged,consumers,head_message_timestamp,"
    "message_stats.publish_details.rate,message_stats.deliver_get_details.rate,"
    "message_stats.ack_details.rate,arguments.x-dead-letter-exchange,"
    "arguments.x-dead-letter-routing-key,effective_policy_definition,"
    "broker_client.deferred,broker_client.paused,broker_client.dead_lettered,"
    "broker_client.age,broker_client.latency"
)
"""What is asked for; both brokers leave out what they have not got."""

_LATENCIES = ("p50", "p95", "p99")


def row_of(queue: Mapping[str, Any], now: float) -> Row:
    """The row of a queue.

    Args:
        queue: the API's object, of `COLUMNS` at least.
        now: seconds since the epoch.
    """
    stats = _object(queue, "message_stats")
    own = _object(queue, "broker_client")
    latency = _object(own, "latency")
    row: Row = {"vhost": queue["vhost"], "name": queue["name"]}
    more: Row = {
        "type": queue.get("type"),
        "durable": queue.get("durable"),
        "auto_delete": queue.get("auto_delete"),
        "exclusive": queue.get("exclusive"),
        "policy": queue.get("policy"),
        "state": queue.get("state"),
        "ready": queue.get("messages_ready"),
        "unacked": queue.get("messages_unacknowledged"),
        "deferred": own.get("deferred"),
        "consumers": queue.get("consumers"),
        "paused": own.get("paused"),
        "publish": _rate(stats, "publish"),
        "deliver": _rate(stats, "deliver_get"),
        "ack": _rate(stats, "ack"),
        "age": _age(queue, own, now),
        "dead_lettered": own.get("dead_lettered"),
        "dlx": dead_letter_exchange(queue),
        "latency": {each: latency[each] for each in _LATENCIES if latency.get(each)},
    }
    row.update((key, value) for key, value in more.items() if value)
    if row.get("dlx") is None and dead_letter_exchange(queue) == "":
        row["dlx"] = ""  # the default exchange is one, too
    if row.get("state") == "running":
        del row["state"]
    return row


def dead_letter_exchange(queue: Mapping[str, Any]) -> str | None:
    """Where what dies in a queue goes; None where it is dropped."""
    return _setting(queue, "dead-letter-exchange")


def dead_letter_key(queue: Mapping[str, Any]) -> str | None:
    """With which routing key; None keeps that of the message."""
    return _setting(queue, "dead-letter-routing-key")


def _setting(queue: Mapping[str, Any], name: str) -> str | None:
    for value in (
        _object(queue, "arguments").get(f"x-{name}"),
        _object(queue, "effective_policy_definition").get(name),
    ):
        if isinstance(value, str):
            return value
    return None


def _age(queue: Mapping[str, Any], own: Mapping[str, Any], now: float) -> int:
    """Seconds of the message at the head; 0 where that is unknown."""
    if not queue.get("messages_ready"):
        return 0
    age = own.get("age")
    if isinstance(age, int | float):
        return int(age)
    stamp = queue.get("head_message_timestamp")  # what its publisher says, in seconds
    return max(0, int(now - stamp)) if isinstance(stamp, int | float) else 0


def _rate(stats: Mapping[str, Any], counter: str) -> float:
    rate = _object(stats, f"{counter}_details").get("rate")
    return round(rate, 1) if isinstance(rate, int | float) else 0.0


def as_object(value: object) -> Mapping[str, Any]:
    """`value`, a JSON object; RabbitMQ writes an empty one as ``[]``, or leaves it out."""
    return value if isinstance(value, dict) else {}


def _object(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return as_object(data.get(key))
