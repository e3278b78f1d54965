"""Parameters of vhosts and of the whole broker over HTTP.

RabbitMQ keeps operator policies and the limits of vhosts as parameters, beside those of plugins,
which this broker has not got.
"""

from __future__ import annotations

from typing import Any

from broker_client.core.access import ADMINISTRATOR
from broker_client.core.global_parameters import CLUSTER_NAME
from broker_client.node.definitions.exporting import (
    LIMITS,
    OPERATOR_POLICY,
    VHOST_LIMITS,
    global_parameter_object,
    parameter_objects,
)
from broker_client.server.http.callers import POLICYMAKER
from broker_client.server.http.calls import CREATED, NO_CONTENT, Call, Operations, table, text
from broker_client.server.http.errors import bad_request, not_authorized, not_found
from broker_client.server.http.policy_operations import put_policy_of

operations: Operations = Operations()


# --------------------------------------------------------------------------- of vhosts


@operations.listing("/api/parameters", "Parameters of all vhosts", POLICYMAKER)
@operations.listing("/api/parameters/{component}", "Those of a component", POLICYMAKER)
@operations.listing(
    "/api/parameters/{component}/{vhost}", "Those of a component in a vhost", POLICYMAKER
)
async def list_parameters(call: Call) -> Any:
    found = [each for vhost in call.vhosts() for each in parameter_objects(call.node, vhost.name)]
    if "component" not in call.request.path_params:
        return found
    component = call.name("component")
    return [each for each in found if each["component"] == component]


@operations.get("/api/parameters/{component}/{vhost}/{name}", "One parameter", POLICYMAKER)
async def get_parameter(call: Call) -> Any:
    return _the_parameter(call)


@operations.put(
    "/api/parameters/{component}/{vhost}/{name}",
    "Set the limits of a vhost, or an operator policy",
    POLICYMAKER,
    body=("value",),
)
async def put_parameter(call: Call) -> int:
    vhost, name, data = call.vhost().name, call.name("name"), await call.json()
    _need_value(data)
    component = _writable_component(call)
    if not isinstance(data["value"], dict):
        raise bad_request(f"the value of a parameter of {component} must be an object")
    value = table(data, "value")
    if component == OPERATOR_POLICY:
        return put_policy_of(call, value, is_operator=True)
    if name != LIMITS:
        raise bad_request(f"the limits of a vhost are one parameter, which is named {LIMITS}")
    is_new = not call.node.administration.vhost_limits(vhost)
    call.node.administration.set_vhost_limits(vhost, value)
    return CREATED if is_new else NO_CONTENT


@operations.delete("/api/parameters/{component}/{vhost}/{name}", "Delete a parameter", POLICYMAKER)
async def delete_parameter(call: Call) -> int:
    parameter = _the_parameter(call)
    vhost, name = parameter["vhost"], parameter["name"]
    if _writable_component(call) == OPERATOR_POLICY:
        call.node.administration.delete_policy(name, vhost=vhost, is_operator=True)
    else:
        call.node.administration.set_vhost_limits(vhost, {})
    return NO_CONTENT


def _the_parameter(call: Call) -> dict[str, Any]:
    wanted = call.name("component"), call.name("name")
    for each in parameter_objects(call.node, call.vhost().name):
        if (each["component"], each["name"]) == wanted:
            return each
    raise not_found()


def _writable_component(call: Call) -> str:
    """The component of the path, which the caller may change.

    RabbitMQ lets policymakers past its rule that operator policies and limits are for
    administrators, by this path; here the rule is the same on both.
    """
    component = call.name("component")
    if component == "policy":
        raise bad_request("policies may not be set using this method")
    if component not in (OPERATOR_POLICY, VHOST_LIMITS):  # RabbitMQ's words
        raise bad_request(f"Validation failed\n\ncomponent {component} not found\n")
    if not call.caller.has(ADMINISTRATOR):
        raise not_authorized("User not authorised to access object")
    return component


def _need_value(data: dict[str, Any]) -> None:
    if "value" not in data:
        raise bad_request("key_missing: value")


# --------------------------------------------------------------------------- of the broker


@operations.listing("/api/global-parameters", "Parameters of the broker", POLICYMAKER)
async def list_global_parameters(call: Call) -> Any:
    return [
        global_parameter_object(*each)
        for each in call.node.administration.global_parameters().items()
    ]


@operations.get("/api/global-parameters/{name}", "One parameter of the broker", POLICYMAKER)
async def get_global_parameter(call: Call) -> Any:
    name, known = call.name("name"), call.node.administration.global_parameters()
    if name not in known:
        raise not_found()
    return global_parameter_object(name, known[name])


@operations.put(
    "/api/global-parameters/{name}",
    "Set a parameter of the broker",
    POLICYMAKER,
    body=("value",),
)
async def put_global_parameter(call: Call) -> int:
    name, data = call.name("name"), await call.json()
    _need_value(data)
    is_new = name not in call.node.administration.global_parameters()
    call.node.administration.set_global_parameter(name, data["value"])
    return CREATED if is_new else NO_CONTENT


@operations.delete("/api/global-parameters/{name}", "Delete a parameter of the broker", POLICYMAKER)
async def delete_global_parameter(call: Call) -> int:
    if not call.node.administration.delete_global_parameter(call.name("name")):
        raise not_found()
    return NO_CONTENT


@operations.get("/api/cluster-name", "The name of the broker: of its node, unless it was set")
async def cluster_name(call: Call) -> Any:
    return {"name": call.management.cluster_name}


@operations.put("/api/cluster-name", "Name the broker", ADMINISTRATOR, body=("name",))
async def put_cluster_name(call: Call) -> int:
    call.node.administration.set_global_parameter(CLUSTER_NAME, text(await call.json(), "name"))
    return NO_CONTENT
