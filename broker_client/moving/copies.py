"""Copies of messages, for another queue or for the queue where they died."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

from broker_client.amqp.tables import FrozenTable, replaced
from broker_client.amqp.x_death import TELLS_OF_DEATHS, Death, newest_death, with_sound_deaths
from broker_client.message import (
    ORIGINAL_USER_ID,
    Delivery,
    Headers,
    Outgoing,
    Properties,
    with_headers,
    with_original_user,
)

_NOT_COPIED = frozenset(("CC", "x-delivery-count", "x-acquired-count"))
"""Headers that are no part of the message: `CC` would send the copy to further queues, which had
theirs the first time, and quorum queues add their counts."""
_NOT_REPLAYED = _NOT_COPIED | TELLS_OF_DEATHS
_ALIKE = 1_000  # bytes; dead letters of one second often have the same headers, which are read once


class Fate(Enum):
    """What becomes of a message that is not copied."""

    KEEP = "keep"
    REMOVE = "remove"


_NOTHING: Mapping[str, Any] = {}


def copy_for(queue: str, delivery: Delivery, headers: Headers | None) -> Outgoing | Fate:
    """A copy of `delivery` for `queue` alone; it is kept where its properties cannot be read."""
    if delivery.fault:
        return Fate.KEEP
    properties = copied_properties(delivery.properties, headers or {})
    return Outgoing("", queue, delivery.body, properties, mandatory=True)


def copy_for_replay(delivery: Delivery, death: Death) -> Outgoing | Fate:
    """A copy for the queue of `death`, without headers about deaths; kept where it never died."""
    origin = death.get("queue")
    if not isinstance(origin, str) or not origin or delivery.fault:
        return Fate.KEEP
    properties = delivery.properties
    headers = properties.headers
    if type(headers) is FrozenTable and len(headers.encoded) <= _ALIKE:
        kept = _kept_of(headers.encoded)
    else:
        kept = _kept(headers or _NOTHING)
    properties = with_original_user(with_headers(properties, kept or None))
    return Outgoing("", origin, delivery.body, properties, mandatory=True)


def _kept(headers: Headers) -> Headers:
    """What a replay keeps of `headers`."""
    nothing_else = _NOT_REPLAYED.issuperset(headers)
    return _NOTHING if nothing_else else replaced(headers, _NOT_REPLAYED)


@lru_cache(maxsize=64)
def _kept_of(encoded: bytes) -> Headers:
    return _kept(FrozenTable(encoded))


@lru_cache(maxsize=64)
def _death_in(encoded: bytes) -> Death:
    return newest_death(FrozenTable(encoded)) or _NOTHING


def last_death(headers: Headers | None) -> Death:
    if type(headers) is FrozenTable and len(headers.encoded) <= _ALIKE:
        return _death_in(headers.encoded)
    return newest_death(headers) or _NOTHING


def copied_properties(
    properties: Properties, headers: Headers, added: Headers | None = None
) -> Properties:
    """The properties of a copy: with `headers`, but for those that a copy must not have.

    Args:
        properties: of the message.
        headers: of the message, or some of them.
        added: further ones.
    """
    more = dict(added or {})
    if properties.user_id is not None:
        more[ORIGINAL_USER_ID] = properties.user_id
    kept = replaced(with_sound_deaths(headers), _NOT_COPIED, more)
    return properties._replace(headers=kept or None, user_id=None)
