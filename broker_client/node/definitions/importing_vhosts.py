"""Reads vhosts with their limits and metadata out of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker_client.core.vhost_metadata import CLASSIC, queue_type_problem, split_tags
from broker_client.node.definitions.importing_policies import set_limits
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan

_METADATA = ("description", "tags", "default_queue_type")
_UNSET = ("undefined", "", None)
"""RabbitMQ's words for a vhost without a default queue type."""


def read_vhost(plan: Plan, item: Item) -> bool:
    """A vhost, with what it has beside its name."""
    name = item.get("name", str)
    if not item.is_right or (plan.vhost is not None and name != plan.vhost):
        return False
    plan.add_vhost(name, f"{item.path}.name")
    read_vhost_values(plan, item, name)
    item.known.add("cluster_state")
    plan.without_effect(item, f"vhost {name!r}")
    return True


def read_vhost_values(plan: Plan, item: Item, name: str) -> None:
    """What a vhost has beside its name: in its object, or beside the sections of its file."""
    limits = item.get("limits", dict, {}) if item.values.get("limits") else {}
    item.known.add("limits")
    if limits:
        set_limits(plan, item, "limits", name, limits)
    _set_metadata(plan, item, name)


def _set_metadata(plan: Plan, item: Item, name: str) -> None:
    """RabbitMQ writes metadata beside the name as well; where they differ, the object counts."""
    metadata = item.get("metadata", dict, {})
    given = {key: value for key, value in metadata.items() if key in _METADATA}
    given = {**{key: item.values[key] for key in _METADATA if key in item.values}, **given}
    item.known |= set(_METADATA)
    if not given:
        return
    read = Item(item.path, given, plan.problems)
    changes: dict[str, Any] = {}
    if given.get("description") is not None:
        changes["description"] = read.get("description", str)
    if given.get("tags") is not None:
        changes["tags"] = _tags(read)
    if "default_queue_type" in given:
        changes["default_queue_type"] = _queue_type(plan, read, name)
    plan.metadata[name] = replace(plan.metadata[name], **changes)
    plan.steps.append(lambda: _change_metadata(plan, name, changes))


def _change_metadata(plan: Plan, name: str, changes: Mapping[str, Any]) -> None:
    vhost = plan.there(name)
    vhost.set_metadata(replace(vhost.metadata, **changes))


def _tags(item: Item) -> tuple[str, ...]:
    tags = item.values["tags"]
    if isinstance(tags, str):
        return split_tags(tags)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        item.problem("tags", f"{tags!r:.60} is not a list of texts")
        return ()
    return tuple(tags)


def _queue_type(plan: Plan, item: Item, name: str) -> str:
    if item.values["default_queue_type"] in _UNSET:
        return CLASSIC
    type = item.get("default_queue_type", str, CLASSIC)
    if type == "stream":  # a file of RabbitMQ: what else is in it can be had
        plan.notes.append(f"vhost {name!r}: queues declared without a type are classic, not {type}")
        return CLASSIC
    if type and (problem := queue_type_problem(type)):  # without one, it was no text
        item.problem("", problem)
    return type
