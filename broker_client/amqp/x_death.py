"""The `x-death` header: how often, why and where a message was dead-lettered.

RabbitMQ writes it as an array of tables, newest first, one for each queue and reason
(https://www.rabbitmq.com/docs/dlx). This is its only reader and writer here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from broker_client.amqp.tables import FrozenTable, replaced
from broker_client.message import Properties

X_DEATH = "x-death"

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"

Death = Mapping[str, Any]

TELLS_OF_DEATHS = frozenset(
    (
        X_DEATH,
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("exchange", "queue", "reason")
        ),
    )
)
"""Names of headers."""


def deaths(headers: Mapping[str, Any] | None) -> list[Death]:
    """Deaths in `headers`, newest first; empty if the header is malformed."""
    found = (headers or {}).get(X_DEATH)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def newest_death(headers: Mapping[str, Any] | None) -> Death | None:
    """The first of `deaths`, or None; the others are not looked at."""
    found = None if headers is None else headers.get(X_DEATH)
    if not isinstance(found, list):
        return None
    for each in found:
        if type(each) is dict or isinstance(each, Mapping):  # the second takes long
            return each
    return None


def find_death(headers: Mapping[str, Any] | None, queue: str, reason: str) -> Death | None:
    """The death in `queue` for `reason`, or None."""
    for death in deaths(headers):
        if death.get("queue") == queue and death.get("reason") == reason:
            return death
    return None


def are_sound(headers: Mapping[str, Any] | None) -> bool:
    """False for deaths that a queue of RabbitMQ fails over when it adds its own.

    RabbitMQ 3.10: an entry that is not a table, or whose count is not an integer, makes the channel
    or the queue fail, which then delivers the message again. A value that is not an array is
    replaced.
    """
    found = (headers or {}).get(X_DEATH)
    return not isinstance(found, list | tuple) or all(map(_is_sound, found))


def with_sound_deaths(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """`headers` without malformed deaths."""
    if are_sound(headers):
        return headers
    return replaced(headers, (), {X_DEATH: [each for each in headers[X_DEATH] if _is_sound(each)]})


def _is_sound(death: object) -> bool:
    return isinstance(death, Mapping) and type(death.get("count", 1)) is int


def dead_lettered(
    properties: Properties,
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: Sequence[str],
    now: float,
    with_last: bool = False,
) -> Properties:
    """The properties of the dead letter of a message, with this death noted in its headers.

    The `expiration` goes, so that the dead letter does not expire again. A death of the same
    queue and reason is counted up and comes to the front. Of encoded headers, the others keep
    their bytes.

    Args:
        properties: of the message; not changed.
        queue: where it died.
        reason: `REJECTED`, `EXPIRED`, `MAXLEN` or `DELIVERY_LIMIT`.
        exchange: that it was published to.
        routing_keys: that it was published with: its own, then those of its CC header.
        now: seconds since the epoch; the header has whole seconds.
        with_last: add `x-last-death-*`, as RabbitMQ does from 4.0 on.
    """
    headers = properties.headers
    if type(headers) is FrozenTable and headers.lacks((X_DEATH,)):
        keys = tuple(routing_keys)
        first = _first_death(
            queue, reason, exchange, keys, int(now), properties.expiration, with_last
        )
        return properties._replace(headers=replaced(headers, (), first), expiration=None)
    headers = with_sound_deaths(headers or {})
    before = deaths(headers)
    same = [each for each in before if (each.get("queue"), each.get("reason")) == (queue, reason)]
    if same:
        counts = (each.get("count", 1) for each in same)
        count = sum(count for count in counts if isinstance(count, int)) + 1
        time = datetime.fromtimestamp(int(now), UTC)
        death: dict[str, Any] = {**same[0], "count": count, "time": time}
    else:
        death = _a_death(queue, reason, exchange, routing_keys, int(now), properties.expiration)
    others = [each for each in before if each not in same]
    which = (["first"] if not before else []) + (["last"] if with_last else [])
    noted = _noted(which, [death, *others], queue, reason, exchange)
    return properties._replace(headers=replaced(headers, (), noted), expiration=None)


def _a_death(
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: Sequence[str],
    second: int,
    expiration: str | None,
) -> dict[str, Any]:
    death: dict[str, Any] = {
        "count": 1,
        "exchange": exchange,
        "queue": queue,
        "reason": reason,
        "routing-keys": list(routing_keys),
        "time": datetime.fromtimestamp(second, UTC),
    }
    if expiration is not None:
        death["original-expiration"] = expiration
    return death


def _noted(
    which: Sequence[str], found: Sequence[Death], queue: str, reason: str, exchange: str
) -> dict[str, Any]:
    """The headers that tell of the death: `x-first-death-*`, `x-last-death-*`, and all deaths."""
    noted: dict[str, Any] = {}
    for each in which:
        noted[f"x-{each}-death-exchange"] = exchange
        noted[f"x-{each}-death-queue"] = queue
        noted[f"x-{each}-death-reason"] = reason
    noted[X_DEATH] = list(found)
    return noted


@lru_cache(maxsize=64)
def _first_death(
    queue: str,
    reason: str,
    exchange: str,
    routing_keys: tuple[str, ...],
    second: int,
    expiration: str | None,
    with_last: bool,
) -> FrozenTable:
    """The headers of a first death, encoded: those of one second are mostly the same."""
    death = _a_death(queue, reason, exchange, routing_keys, second, expiration)
    which = ["first", "last"] if with_last else ["first"]
    return FrozenTable.of(_noted(which, [death], queue, reason, exchange))


def without_deaths(
    headers: Mapping[str, Any], added: Mapping[str, Any] = MappingProxyType({})
) -> Mapping[str, Any]:
    """`headers` without those about deaths, and with `added`."""
    return replaced(headers, TELLS_OF_DEATHS, added)


def is_cycle(headers: Mapping[str, Any] | None, queue: str, reason: str) -> bool:
    """True when a dead letter that died for `reason` comes back to `queue` unsteered.

    RabbitMQ drops such a message, since it would circle forever. A `REJECTED` death on the way
    shows that a consumer decides, and the message goes on.
    """
    if reason == REJECTED:
        return False
    if type(headers) is FrozenTable and queue.encode() not in headers.encoded:
        return False  # it never died there; nothing needs to be decoded
    cycle: list[Death] = []
    for death in deaths(headers):
        cycle.append(death)
        if death.get("queue") == queue:
            return all(each.get("reason") != REJECTED for each in cycle)
    return False
