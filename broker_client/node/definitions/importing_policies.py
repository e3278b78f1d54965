"""Reads parameters and policies out of definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.commands.policies import limit_problems
from broker_client.core.global_parameters import INTERNAL_CLUSTER_ID, parameter_problem
from broker_client.core.policies import ALL, Policy
from broker_client.node.definitions.exporting import OPERATOR_POLICY, VHOST_LIMITS
from broker_client.node.definitions.items import Item
from broker_client.node.definitions.plan import Plan


def set_limits(plan: Plan, item: Item, key: str, vhost: str, limits: Mapping[str, Any]) -> None:
    """Set the limits of a vhost, which `item` has under `key`."""
    for problem in limit_problems(limits):
        item.problem(key, problem)
    plan.steps.append(lambda: plan.node.administration.set_vhost_limits(vhost, limits))


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
        set_limits(plan, item, "value", vhost, item.get("value", dict))
        return True
    plan.notes.append(
        f"parameter {name!r} of {component} in vhost {vhost!r}: not supported, left out"
    )
    return False


def read_global_parameter(plan: Plan, item: Item) -> bool:
    """A parameter of the whole broker, unless it tells which broker the file is from."""
    name = item.get("name", str)
    if "value" not in item.values:
        item.problem("value", "is missing; any JSON value is allowed")
    if name == INTERNAL_CLUSTER_ID or plan.vhost is not None or not item.is_right:
        return False
    value = item.values["value"]
    if problem := parameter_problem(name, value):
        item.problem("", problem)
    plan.steps.append(lambda: plan.node.administration.set_global_parameter(name, value))
    return True


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
