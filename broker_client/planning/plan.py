"""Compares what a vhost's configuration declares with what is on its broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from broker_client.config import VhostConfig
from broker_client.connection.delay_queues import PREFIX as DELAY_QUEUES
from broker_client.planning.inventory import (
    RESERVED,
    Entity,
    Found,
    Inventory,
    ListedBinding,
    Settings,
    comparable,
)
from broker_client.runtime.slotted import slotted

Action = Literal["create", "differs", "missing", "left"]
"""
`create`: it is not there, and is made. `differs`: it is there with other settings, which no broker
changes. `missing`: it is only checked (`check: true`), and not there. `left`: it is there, and
nothing declares it.
"""
Subject = Entity | ListedBinding


@slotted
class Difference:
    """A setting that is not as declared; None stands for one that is not set."""

    setting: str
    current: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.setting} is {_shown(self.current)}, declared {_shown(self.wanted)}"


@slotted
class Change:
    """One difference between a configuration and a broker."""

    vhost: str
    action: Action
    subject: Subject
    differences: tuple[Difference, ...] = ()
    found: Found | None = None

    @property
    def kind(self) -> str:
        """``vhost``, ``exchange``, ``queue`` or ``binding``."""
        return "binding" if isinstance(self.subject, ListedBinding) else self.subject[0]

    @property
    def name(self) -> str:
        """Its name on the broker; of a binding its ends and key."""
        return str(self.subject) if isinstance(self.subject, ListedBinding) else self.subject[1]


def plan_vhost(config: VhostConfig, inventory: Inventory) -> list[Change]:
    """The differences, in the order in which they would be carried out.

    Queues that belong to one connection or one process (`exclusive`, `reply_to`) are left out.

    Args:
        config: of the vhost.
        inventory: what is there.
    """
    declared = dict(_declared(config))
    bindings = _bindings(config, declared)
    changes: list[Change] = []
    if not inventory.has_vhost:
        action: Action = "create" if config.assert_ else "missing"
        changes.append(Change(config.name, action, ("vhost", config.name)))
    changes += [
        Change(config.name, action, entity, differences, inventory.entities.get(entity))
        for entity, want in declared.items()
        for action, differences in [_compared(want, entity, inventory)]
        if action is not None
    ]
    made = {change.subject for change in changes if change.action == "create"}
    changes += [
        Change(config.name, "create", binding)
        for binding in bindings
        if binding not in inventory.bindings
        and (inventory.is_complete or made.intersection(binding.ends))
    ]
    if inventory.is_complete:
        changes += _left(config, inventory, declared, bindings)
    return changes


@slotted
class _Declared:
    settings: Settings
    is_made: bool
    is_checked: bool


def _declared(config: VhostConfig) -> Iterator[tuple[Entity, _Declared]]:
    for exchange in config.exchanges.values():
        if exchange.name:
            settings = {
                "type": exchange.type,
                **exchange.options.model_dump(include={"durable", "auto_delete", "internal"}),
                **exchange.arguments,
            }
            want = _Declared(settings, exchange.assert_, exchange.check)
            yield ("exchange", exchange.qualified_name), want
    for queue in config.queues.values():
        if not queue.options.exclusive and queue.reply_to is None:
            flags = queue.options.model_dump(include={"durable", "auto_delete"})
            want = _Declared({**flags, **queue.arguments}, queue.assert_, queue.check)
            yield ("queue", queue.qualified_name), want


def _bindings(config: VhostConfig, declared: dict[Entity, _Declared]) -> list[ListedBinding]:
    own = {
        queue.qualified_name
        for queue in config.queues.values()
        if ("queue", queue.qualified_name) not in declared
    }
    found: dict[ListedBinding, None] = {}
    for each in config.bindings:
        if each.destination_type == "queue" and each.qualified_destination in own:
            continue
        destination = (each.destination_type, each.qualified_destination)
        for key in each.qualified_keys:
            arguments = each.options.arguments
            found[ListedBinding.of(each.qualified_source, destination, key, arguments)] = None
    return list(found)


def _compared(
    want: _Declared, entity: Entity, inventory: Inventory
) -> tuple[Action | None, tuple[Difference, ...]]:
    found = inventory.entities.get(entity)
    if found is None:
        # As the Broker does it: what is declared is made before anything is checked.
        action: Action | None = "create" if want.is_made else "missing" if want.is_checked else None
        return action, ()
    if not want.is_made or found.settings is None:
        return None, ()
    differences = tuple(_differences(want.settings, found.settings))
    return ("differs" if differences else None), differences


def _differences(wanted: Settings, current: Settings) -> Iterator[Difference]:
    for setting in [*wanted, *(key for key in current if key not in wanted)]:
        new, old = comparable(wanted.get(setting)), comparable(current.get(setting))
        if setting == "x-queue-type":
            # RabbitMQ: a queue without a type has the default one, and 4.x lists it with it.
            new, old = new or old, old or "classic"
        if new != old:
            yield Difference(setting, old, new)


def _left(
    config: VhostConfig,
    inventory: Inventory,
    declared: dict[Entity, _Declared],
    bindings: list[ListedBinding],
) -> Iterator[Change]:
    prefix = f"{config.namespace}:" if config.namespace else ""
    wanted = set(bindings)
    for binding in sorted(inventory.bindings - wanted):
        # A binding of something that is left goes with it; of another connection's, with that.
        if all(end in declared or _is_predeclared(end) for end in binding.ends):
            yield Change(config.name, "left", binding)
    for entity, found in sorted(inventory.entities.items(), reverse=True):  # queues go first
        name = entity[1]
        ours = name.startswith(prefix) and not name.startswith(DELAY_QUEUES)
        if ours and entity not in declared and not found.is_reserved:
            yield Change(config.name, "left", entity, (), found)


def _is_predeclared(entity: Entity) -> bool:
    return entity[0] == "exchange" and entity[1].startswith(RESERVED)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value) if isinstance(value, str) else f"{value}"
