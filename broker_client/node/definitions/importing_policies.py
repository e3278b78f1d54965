"""Reads vhosts with their limits, parameters and policies out of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.commands.policies import limit_problems
from broker_client.core.policies import ALL, Policy
from broker_client.node.definitions.exporting import OPERATOR_POLICY, VHOST_LIMITS
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan

_WITHOUT_NOTE = frozenset(("internal_cluster_id", "cluster_name", "cluster_tags"))
"""Global parameters that name a cluster; an import has no use for them."""
_PLAIN = ("classic", "undefined", "", None)


def read_vhost(plan: Plan, item: Item) -> bool:
    """A vhost, with what it has beside its name."""
    name = item.get("name", str)
    if not item.is_right or (plan.vhost is not None and name != plan.vhost):
        return False
    plan.add_vhost(name, f"{item.path}.name")
    read_vhost_values(plan, item, name)
    item.known |= {"tracing", "tags", "description", "cluster_state"}
    plan.without_effect(item, f"vhost {name!r}")
    return True


def read_vhost_values(plan: Plan, item: Item, name: str) -> None:
    """What a vhost has beside its name: in its object, or beside the sections of its file."""
    limits = item.get("limits", dict, {}) if item.values.get("limits") else {}
    item.known.add("limits")
    if limits:
        _set_limits(plan, item, "limits", name, limits)
    metadata = item.get("metadata", dict, {})
    for values in (item.values, metadata):
        for key in ("description", "tags"):
            if values.get(key) not in (None, "", [], "Default virtual host"):
                plan.notes.append(f"vhost {name!r}: its {key} is not kept")
        if values.get("default_queue_type", "") not in _PLAIN:
            kind = values["default_queue_type"]
            plan.notes.append(
                f"vhost {name!r}: queues declared without a type are classic, not {kind}"
            )
    item.known |= {"default_queue_type", "description", "tags"}


def _set_limits(plan: Plan, item: Item, key: str, vhost: str, limits: Mapping[str, Any]) -> None:
    for problem in limit_problems(limits):
        item.problem(key, problem)
    plan.steps.append(lambda: plan.node.set_vhost_limits(vhost, limits))


def read_parameter(plan: Plan, item: Item) -> bool:
    """An operator policy or the limits of a vhost; RabbitMQ keeps both as parameters."""
    component, name = item.get("component", str), item.get("name", str)
    vhost = plan.vhost_of(item)
    if vhost is None or not item.is_right:
        return False
    if component == OPERATOR_POLICY:
        value = Item(f"{item.path}.value", item.get("value", dict), plan.problems)
        return item.is_right and _add_policy(plan, value, vhost, name, is_operator=True)
    if component == VHOST_LIMITS:
        _set_limits(plan, item, "value", vhost, item.get("value", dict))
        return True
    plan.notes.append(
        f"parameter {name!r} of {component} in vhost {vhost!r}: not supported, left out"
    )
    return False


def read_global_parameter(plan: Plan, item: Item) -> bool:
    """Named, and left out."""
    name = item.get("name", str)
    if name not in _WITHOUT_NOTE:
        plan.notes.append(f"global parameter {name!r}: not supported, left out")
    return False


def read_policy(plan: Plan, item: Item) -> bool:
    """A policy."""
    vhost = plan.vhost_of(item)
    if vhost is None:
        return False
    return _add_policy(plan, item, vhost, item.get("name", str), is_operator=False)


def _add_policy(plan: Plan, item: Item, vhost: str, name: str, *, is_operator: bool) -> bool:
    policy = Policy(
        vhost,
        name,
        item.get("pattern", str),
        item.get("definition", dict),
        item.get("priority", int, 0),
        item.get("apply-to", str, ALL),
        is_operator,
    )
    if not item.is_right:
        return False
    for problem in policy.problems():
        item.problem("", problem)
    what = f"{'operator ' if is_operator else ''}policy {name!r} in vhost {vhost!r}"
    for key in policy.without_effect:
        plan.notes.append(f"{what}: {key} has no effect here")
    plan.steps.append(lambda: plan.node.engine.policies.set_policy(policy, plan.node.now()))
    return True
