"""The arguments of a queue in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DURATIONS = {
    "message-ttl": "Messages expire after {}.",
    "expires": "The queue is deleted after {} without use.",
    "consumer-timeout": "A consumer that does not acknowledge for {} loses its message.",
    "message-timeout": "A message may be in flight for {}.",
}
_TEXTS = {
    "max-length": "It holds {} ready messages at most.",
    "max-length-bytes": "Its ready messages have {} bytes at most.",
    "delivery-limit": "A message is delivered {} times at most.",
    "max-priority": "Messages have priorities from 0 to {}.",
    "dead-letter-exchange": "Dead letters go to exchange {}.",
    "dead-letter-routing-key": "Dead letters get the routing key {}.",
    "dead-letter-strategy": "Dead letters are passed on {}.",
    "queue-type": "It is a queue of type {}.",
    "queue-mode": "Its mode is {}.",
    "queue-leader-locator": "Its leader is placed by {}.",
}
_OVERFLOWS = {
    "drop-head": "When it is full, the oldest messages are removed.",
    "reject-publish": "When it is full, publishers are refused.",
    "reject-publish-dlx": "When it is full, publishers are refused and the messages dead-lettered.",
}
_UNITS = (("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def words_of(queue: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What holds for a queue, by its arguments and by policy, as sentences.

    Args:
        queue: as a management API describes it.
    """
    told = []
    for source, named in (("arguments", "argument"), ("effective_policy_definition", "policy")):
        settings = queue.get(source)
        for key, value in settings.items() if isinstance(settings, Mapping) else ():
            told.append({"key": key, "value": value, "from": named, "text": _sentence(key, value)})
    return told


def _sentence(key: str, value: Any) -> str:
    name = key.removeprefix("x-")
    if name in _DURATIONS and isinstance(value, int) and not isinstance(value, bool):
        return _DURATIONS[name].format(duration(value))
    if name == "single-active-consumer":
        return "Only one consumer is active at a time." if value else ""
    if name == "overflow":
        return _OVERFLOWS.get(str(value), "")
    if name == "dead-letter-exchange" and value == "":
        return "Dead letters go to the default exchange."
    if name in _TEXTS:
        number = isinstance(value, int) and not isinstance(value, bool)
        return _TEXTS[name].format(f"{value:,}" if number else value)
    return ""


def duration(milliseconds: int) -> str:
    """A time as people say it: 90000 is 1 min 30 s."""
    parts, left = [], milliseconds
    for unit, length in _UNITS:
        count, left = divmod(left, length)
        if count:
            plural = "s" if unit == "day" and count > 1 else ""
            parts.append(f"{count:,} {unit}{plural}")
    if left or not parts:
        parts.append(f"{left} ms")
    return " ".join(parts)
