"""Policies, operator policies and limits of vhosts over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.core.access import ADMINISTRATOR
from broker_client.node.definitions.exporting import policy_object
from broker_client.server.http.callers import POLICYMAKER
from broker_client.server.http.calls import CREATED, NO_CONTENT, Call, Operations, number, text
from broker_client.server.http.errors import bad_request, not_found

operations: Operations = Operations()

_POLICY = ("pattern", "definition", "priority", "apply-to")


# --------------------------------------------------------------------------- policies


@operations.listing("/api/policies", "All policies")
@operations.listing("/api/policies/{vhost}", "All policies of a vhost")
async def list_policies(call: Call) -> Any:
    return _policies(call, is_operator=False)


@operations.get("/api/policies/{vhost}/{name}", "One policy", POLICYMAKER)
async def get_policy(call: Call) -> Any:
    return _the_policy(call, is_operator=False)


@operations.put(
    "/api/policies/{vhost}/{name}", "Add or replace a policy", POLICYMAKER, body=_POLICY
)
async def put_policy(call: Call) -> int:
    return await _put(call, is_operator=False)


@operations.delete("/api/policies/{vhost}/{name}", "Delete a policy", POLICYMAKER)
async def delete_policy(call: Call) -> int:
    return await _delete(call, is_operator=False)


@operations.listing("/api/operator-policies", "All operator policies")
@operations.listing("/api/operator-policies/{vhost}", "All operator policies of a vhost")
async def list_operator_policies(call: Call) -> Any:
    return _policies(call, is_operator=True)


@operations.get("/api/operator-policies/{vhost}/{name}", "One operator policy", ADMINISTRATOR)
async def get_operator_policy(call: Call) -> Any:
    return _the_policy(call, is_operator=True)


@operations.put(
    "/api/operator-policies/{vhost}/{name}",
    "Add or replace an operator policy",
    ADMINISTRATOR,
    body=_POLICY,
)
async def put_operator_policy(call: Call) -> int:
    return await _put(call, is_operator=True)


@operations.delete(
    "/api/operator-policies/{vhost}/{name}", "Delete an operator policy", ADMINISTRATOR
)
async def delete_operator_policy(call: Call) -> int:
    return await _delete(call, is_operator=True)


def _policies(call: Call, *, is_operator: bool) -> list[dict[str, Any]]:
    return [
        policy_object(policy)
        for vhost in call.vhosts()
        for policy in call.node.administration.policies(vhost.name)
        if policy.is_operator is is_operator
    ]


def _the_policy(call: Call, *, is_operator: bool) -> dict[str, Any]:
    name = call.name("name")
    for each in _policies(call, is_operator=is_operator):
        if each["name"] == name:
            return each
    raise not_found()


async def _put(call: Call, *, is_operator: bool) -> int:
    call.vhost()
    return put_policy_of(call, await call.json(), is_operator=is_operator)


def put_policy_of(call: Call, data: Mapping[str, Any], *, is_operator: bool) -> int:
    """Set the policy that the path names, as `data` says; answers whether it is new."""
    vhost, name = call.vhost().name, call.name("name")
    definition = data.get("definition")
    if not isinstance(definition, dict):
        raise bad_request("definition must be an object")
    known = {each["name"] for each in _policies(call, is_operator=is_operator)}
    call.node.administration.set_policy(
        name,
        text(data, "pattern"),
        definition,
        vhost=vhost,
        priority=number(data, "priority", 0),
        apply_to=text(data, "apply-to", "queues" if is_operator else "all"),
        is_operator=is_operator,
    )
    return NO_CONTENT if name in known else CREATED


async def _delete(call: Call, *, is_operator: bool) -> int:
    vhost, name = call.vhost().name, call.name("name")
    if not call.node.administration.delete_policy(name, vhost=vhost, is_operator=is_operator):
        raise not_found()
    return NO_CONTENT


# --------------------------------------------------------------------------- limits of vhosts


@operations.listing("/api/vhost-limits", "Limits of all vhosts that have some")
@operations.listing("/api/vhost-limits/{vhost}", "Limits of a vhost")
async def list_limits(call: Call) -> Any:
    return [
        {"vhost": vhost.name, "value": limits}
        for vhost in call.watched_vhosts()
        if (limits := call.node.administration.vhost_limits(vhost.name))
    ]


@operations.put(
    "/api/vhost-limits/{vhost}/{name}",
    "Set max-connections or max-queues of a vhost",
    ADMINISTRATOR,
    body=("value",),
)
async def put_limit(call: Call) -> int:
    vhost, data = call.vhost().name, await call.json()
    limits = {
        **call.node.administration.vhost_limits(vhost),
        call.name("name"): number(data, "value"),
    }
    call.node.administration.set_vhost_limits(vhost, limits)
    return NO_CONTENT


@operations.delete("/api/vhost-limits/{vhost}/{name}", "Remove a limit", ADMINISTRATOR)
async def delete_limit(call: Call) -> int:
    vhost, name = call.vhost().name, call.name("name")
    limits = dict(call.node.administration.vhost_limits(vhost))
    if limits.pop(name, None) is None:
        raise not_found()
    call.node.administration.set_vhost_limits(vhost, limits)
    return NO_CONTENT
