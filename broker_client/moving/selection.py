"""Selects messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any

from broker_client.message import Delivery
from broker_client.runtime.slotted import slotted


@slotted
class Selection:
    """What a message must have to be selected; all of it. Without anything, all are."""

    reason: str | None = None
    """Why it died last: `rejected`, `expired`, `maxlen` or `delivery_limit`."""
    origin: str | None = None
    """The queue where it died last."""
    older_than: float | None = None
    """Seconds since it died or, where it never did, since its `timestamp`; without either it is not
    selected."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by name, with their values as text; truth values are ``true`` and ``false``."""
    message_ids: frozenset[str] = frozenset()
    """One of these ids."""

    @property
    def is_all(self) -> bool:
        """True where every message is selected."""
        return self == EVERYTHING

    def matches(self, delivery: Delivery, death: Mapping[str, Any], now: datetime) -> bool:
        """True where `delivery`, whose last death is `death`, is selected at the time `now`."""
        properties = delivery.properties
        if self.message_ids and properties.message_id not in self.message_ids:
            return False
        headers = properties.headers or {}
        if any(
            name not in headers or _text(headers[name]) != value
            for name, value in self.headers.items()
        ):
            return False
        if self.reason is not None and death.get("reason") != self.reason:
            return False
        if self.origin is not None and death.get("queue") != self.origin:
            return False
        if self.older_than is None:
            return True
        age = _age(death.get("time", properties.timestamp), now)
        return age is not None and age > self.older_than


EVERYTHING = Selection()


def _age(moment: object, now: datetime) -> float | None:
    if not isinstance(moment, datetime):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (now - moment).total_seconds()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
