"""Headers of the copies that recovery publishes, and dead letters.

Headers are rascal's, so that both may share queues. All is made from the message
as it was delivered, never from headers that a handler may have changed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from broker_client.amqp.x_death import (
    REJECTED,
    X_DEATH,
    are_sound,
    dead_lettered,
    find_death,
    with_sound_deaths,
)
from broker_client.config import Forward, Republish
from broker_client.errors import text_of
from broker_client.message import (
    ORIGINAL_USER_ID,
    RASCAL,
    Delivery,
    Message,
    Outgoing,
    Properties,
    count_in,
    with_original_user,
)

_ERROR_TEXT_LIMIT = 1024  # characters
_NAME_LIMIT = 128
_NOT_COPIED = ("CC", "BCC", "x-delivery-count", "x-acquired-count")


class Notes(Enum):
    """What recovery adds to the headers of a copy; less if there is no room."""

    ALL = "all"
    NO_ERROR = "no error"
    """The history: how often the message was copied, and where it came from."""
    NONE = "none"
    """Nothing: the headers are those of the message."""


def recovery_headers(
    message: Message,
    error: BaseException | str,
    counters: Mapping[str, int],
    *,
    restore: bool,
    notes: Notes = Notes.ALL,
) -> dict[str, Any]:
    """Headers of the copy that a recovery strategy publishes.

    CC and BCC are left out: the copy goes to one place, not to all the first one went to. So is
    the broker's count of the deliveries of the original.

    Args:
        message: the original.
        error: why it failed.
        counters: counts of its queue in the history.
        restore: whether handlers of the copy see the first exchange and routing key.
        notes: less than all where the headers would be too large with them.
    """
    headers = {
        key: copy.deepcopy(value)
        for key, value in with_sound_deaths(message.properties.headers or {}).items()
        if key not in _NOT_COPIED
    }
    if message.properties.user_id is not None:
        headers[ORIGINAL_USER_ID] = message.properties.user_id
    if notes is Notes.NONE:
        return headers
    history = _table_at(headers, RASCAL)
    history.setdefault("originalQueue", message.queue)
    history.setdefault("originalVhost", message.vhost)
    history.setdefault("originalExchange", message.exchange)
    history.setdefault("originalRoutingKey", message.routing_key)
    history["restoreRoutingHeaders"] = restore
    history["tries"] = message.tries
    _table_at(_table_at(history, "recovery"), message.queue).update(counters)
    history.pop("error", None)
    if notes is Notes.ALL:
        history["error"] = _note_of(error)
    return headers


def _note_of(error: BaseException | str) -> dict[str, Any]:
    """The error as a header value that any broker accepts. Never raises."""
    note: dict[str, Any] = {"message": _fitting(text_of(error), _ERROR_TEXT_LIMIT)}
    if isinstance(error, BaseException):
        note["name"] = _fitting(type(error).__name__, _NAME_LIMIT)
        try:
            code = getattr(error, "code", None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a property may do anything
            code = None
        if isinstance(code, str):
            note["code"] = _fitting(code, _NAME_LIMIT)
        elif isinstance(code, int) and -(2**63) <= code < 2**63:
            note["code"] = int(code)
    return note


def _fitting(text: str, limit: int) -> str:
    """`text`, shortened, without surrogates that UTF-8 cannot encode."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return text.encode("utf-8", "replace").decode()


def republished(
    message: Message,
    error: BaseException | str,
    strategy: Republish,
    *,
    notes: Notes = Notes.ALL,
) -> Outgoing:
    """The copy for the tail of the message's own queue."""
    headers = recovery_headers(
        message,
        error,
        {"republished": message.republished + 1},
        restore=strategy.restore_routing_headers,
        notes=notes,
    )
    if strategy.immediate_nack:
        # the flag takes the place of the counters.
        death = find_death(headers, message.queue, REJECTED)
        headers[RASCAL]["recovery"][message.queue] = {
            "immediateNack": True,
            "xDeath": death if death is not None else {"count": 0, "time": {"value": 0}},
        }
    return Outgoing(
        "",  # AMQP 0-9-1 §3.1.3.1: the default exchange routes to the queue of that name
        message.queue,
        message.body,
        message.properties._replace(headers=headers, user_id=None),
        mandatory=True,
    )


def forwarded(
    message: Message,
    error: BaseException | str,
    strategy: Forward,
    *,
    notes: Notes = Notes.ALL,
) -> dict[str, Any]:
    """Headers of the copy that goes through a publication; its options are added there."""
    headers = recovery_headers(
        message,
        error,
        {"forwarded": message.forwarded + 1},
        restore=strategy.restore_routing_headers,
        notes=notes,
    )
    if strategy.x_death_fix:
        # RabbitMQ drops a message that its deaths show to go in a circle.
        headers.pop(X_DEATH, None)
    return headers


def hops(message: Message) -> int:
    """Number of copies that recovery has made so far, over all queues."""
    states = _history(message).get("recovery")
    if not isinstance(states, Mapping):
        return 0
    return sum(
        count_in(state.get(counter))
        for state in states.values()
        if isinstance(state, Mapping)
        for counter in ("republished", "forwarded")
    )


# --------------------------------------------------------------------------- immediate nack


def is_to_be_nacked(delivery: Delivery, queue: str) -> bool | None:
    """The flag of `immediate_nack` on a delivery, or None.

    True the first time round. False once `queue` has rejected it since: then it was dead-lettered,
    and sent back to be handled again. RabbitMQ before 3.13 leaves the time of a
    repeated death as it was, 3.13.0 to 3.13.2 the count; so either may tell.
    """
    flagged = _recovery(delivery.properties.headers, queue)
    if not flagged or not flagged.get("immediateNack"):
        return None
    now = find_death(delivery.properties.headers, queue, REJECTED)
    if now is None:
        return True
    before = flagged.get("xDeath")
    before = before if isinstance(before, Mapping) else {}
    has_more = count_in(now.get("count")) > count_in(before.get("count"))
    return not (has_more or _seconds(now.get("time")) > _seconds(before.get("time")))


def noted_error(message: Message) -> str:
    """The error that a copy was made for, as its headers tell it."""
    note = _history(message).get("error")
    known = note if isinstance(note, Mapping) else {}
    return ": ".join(str(known[key]) for key in ("name", "message") if known.get(key)) or "unknown"


def unflagged(delivery: Delivery, queue: str) -> Delivery:
    """`delivery` without the flag, which applies only once."""
    headers = copy.deepcopy(dict(delivery.properties.headers or {}))
    state = headers[RASCAL]["recovery"][queue]
    state.pop("immediateNack", None)
    state.pop("xDeath", None)
    return delivery._replace(properties=delivery.properties._replace(headers=headers))


# --------------------------------------------------------------------------- dead letters


def has_lost_its_key(message: Message) -> bool:
    """True for a copy that `republish` made: it was routed by the name of its queue.

    A broker dead-letters with the routing key of the copy, which a direct or topic exchange may
    not know; the message would be dropped (rascal #155).
    """
    delivery = message.delivery
    if delivery.exchange or delivery.routing_key != message.queue:
        return False
    state = _recovery(message.properties.headers, message.queue)
    if not state or not ("republished" in state or "immediateNack" in state):
        return False
    return _original(message)[1] != message.queue


def has_unsound_deaths(message: Message) -> bool:
    """True for a message that makes its queue fail on RabbitMQ when that dead-letters it."""
    return not are_sound(message.properties.headers)


def dead_letter(
    message: Message, exchange: str, key: str | None = None, *, notes: Notes = Notes.ALL
) -> Outgoing:
    """The dead letter of a rejected message, as the broker makes it, but with the original key,
    unless `key` is given, and with sound deaths."""
    first_exchange, first_key = _original(message)
    key = first_key if key is None else key
    properties = dead_lettered(
        message.properties,
        queue=message.queue,
        reason=REJECTED,
        exchange=first_exchange,
        routing_keys=[key],
        now=time.time(),
    )
    properties = with_original_user(properties)
    if notes is not Notes.ALL:
        properties = _without_error(properties)
    return Outgoing(exchange, key, message.body, properties)


def _without_error(properties: Properties) -> Properties:
    headers = dict(properties.headers or {})
    history = headers.get(RASCAL)
    if isinstance(history, Mapping):
        headers[RASCAL] = {key: value for key, value in history.items() if key != "error"}
    return properties._replace(headers=headers)


def _original(message: Message) -> tuple[str, str]:
    known = _history(message)
    return (
        str(known.get("originalExchange", message.exchange)),
        str(known.get("originalRoutingKey", message.routing_key)),
    )


# --------------------------------------------------------------------------- headers of anybody


def _history(message: Message) -> Mapping[str, Any]:
    history = (message.properties.headers or {}).get(RASCAL)
    return history if isinstance(history, Mapping) else {}


def _table_at(table: dict[str, Any], key: str) -> dict[str, Any]:
    """The table under `key`, created if missing or malformed: other clients may have set it."""
    inner = table.get(key)
    if not isinstance(inner, dict):
        inner = table[key] = {}
    return inner


def _recovery(headers: Mapping[str, Any] | None, queue: str) -> Mapping[str, Any] | None:
    node: Any = headers
    for key in (RASCAL, "recovery", queue):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def _seconds(value: Any) -> float:
    """A time as headers carry it: AMQP's own, or Node's rascal's table of a value."""
    if isinstance(value, Mapping):
        value = value.get("value")
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, int | float) else 0.0
