"""The content of a broker: exchanges, queues and bindings, as its management API lists them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, NamedTuple

from broker_client.runtime.slotted import slotted

EntityKind = Literal["vhost", "exchange", "queue"]
Entity = tuple[EntityKind, str]
"""Kind and name."""

Settings = Mapping[str, Any]
"""What a declaration gives: `durable` and the like, and the arguments by their names."""

RESERVED = "amq."
_FLAGS: Mapping[EntityKind, tuple[str, ...]] = {
    "exchange": ("type", "durable", "auto_delete", "internal"),
    "queue": ("durable", "auto_delete"),
}


class ListedBinding(NamedTuple):
    """A binding. `arguments` is JSON, so that two bindings can be compared."""

    source: str
    destination_kind: EntityKind
    destination: str
    key: str
    arguments: str = "{}"

    @classmethod
    def of(
        cls, source: str, destination: Entity, key: str, arguments: Mapping[str, Any]
    ) -> ListedBinding:
        """A binding with its arguments as they are declared."""
        return cls(source, *destination, key, json.dumps(comparable(arguments), sort_keys=True))

    @property
    def ends(self) -> tuple[Entity, Entity]:
        """Source and destination."""
        return ("exchange", self.source), (self.destination_kind, self.destination)

    def __str__(self) -> str:
        arguments = "" if self.arguments == "{}" else f" {self.arguments}"
        where = "" if self.destination_kind == "queue" else "exchange "
        return f"{self.source}[{self.key}] -> {where}{self.destination}{arguments}"


@slotted
class Found:
    """An exchange or a queue that is there."""

    settings: Settings | None = None
    """None if unknown: AMQP has no method that asks for them."""
    messages: int | None = None
    """In a queue; only ready ones if the broker reports no others."""
    consumers: int | None = None
    is_reserved: bool = False
    """It belongs to the broker or to one connection, and is not deleted by others."""


@slotted(frozen=False)
class Inventory:
    """What is in one vhost of a broker."""

    entities: dict[Entity, Found] = field(default_factory=dict)
    bindings: set[ListedBinding] = field(default_factory=set)
    is_complete: bool = True
    """False where only what was asked for is known, and no binding."""
    has_vhost: bool = True

    @classmethod
    def of_lists(
        cls,
        exchanges: Iterable[Mapping[str, Any]],
        queues: Iterable[Mapping[str, Any]],
        bindings: Iterable[Mapping[str, Any]],
    ) -> Inventory:
        """From the lists of RabbitMQ's management API, or of definitions."""
        found = cls()
        for item in exchanges:
            name = str(item["name"])
            reserved = not name or name.startswith(RESERVED)
            found.entities["exchange", name] = Found(
                _settings("exchange", item), is_reserved=reserved
            )
        for item in queues:
            name = str(item["name"])
            found.entities["queue", name] = Found(
                _settings("queue", item),
                item.get("messages"),
                item.get("consumers"),
                is_reserved=bool(item.get("exclusive")) or name.startswith(RESERVED),
            )
        for item in bindings:
            if item["source"]:  # the default exchange has one to each queue
                kind: EntityKind = "queue" if item["destination_type"] == "queue" else "exchange"
                destination = (kind, str(item["destination"]))
                source, key = str(item["source"]), str(item["routing_key"])
                arguments = item.get("arguments") or {}
                found.bindings.add(ListedBinding.of(source, destination, key, arguments))
        return found


def _settings(kind: EntityKind, item: Mapping[str, Any]) -> Settings:
    flags = {flag: item[flag] for flag in _FLAGS[kind] if flag in item}
    return {**flags, **(item.get("arguments") or {})}


def comparable(value: Any) -> Any:
    """A value of an argument as JSON has it, which is how brokers list them."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): comparable(item) for key, item in value.items()}
        case list() | tuple():
            return [comparable(item) for item in value]
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
    return str(value)
