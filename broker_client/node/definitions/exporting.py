"""Writes definitions, as RabbitMQ reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker_client.core.exchange import DELAYED
from broker_client.core.policies import Policy
from broker_client.core.virtual_host import VirtualHost
from broker_client.node.node import Node

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"
RESERVED = "amq."


@dataclass(frozen=True, slots=True)
class Export:
    """Definitions, and what RabbitMQ would refuse or read otherwise."""

    document: dict[str, Any]
    notes: tuple[str, ...]


def export_definitions(node: Node, vhost: str | None = None) -> Export:
    """What `node` has been told to have, as RabbitMQ's JSON.

    Exclusive queues belong to their connections and are left out.

    Args:
        node: of which.
        vhost: of this one only, in RabbitMQ's form for one vhost, which has no users.

    Raises:
        ReplyError: 530 where there is no such vhost.
    """
    policies = node.policies(vhost)
    notes: list[str] = []
    names = node.vhosts if vhost is None else (vhost,)
    document: dict[str, Any] = {
        "rabbit_version": _version(node),
        "rabbitmq_version": _version(node),
        "product_name": "broker_client",
    }
    if vhost is None:
        document |= _access(node)
        document["vhosts"] = [
            {"name": name, "limits": node.vhost_limits(name), "metadata": {}} for name in names
        ]
        document["global_parameters"] = []
    else:
        document["rabbitmq_definition_format"] = "single_virtual_host"
        document["limits"] = node.vhost_limits(vhost)
    document["parameters"] = [
        *({**_policy(p), "component": OPERATOR_POLICY} for p in policies if p.is_operator),
        *(
            {"vhost": name, "component": VHOST_LIMITS, "name": "limits", "value": limits}
            for name in names
            if (limits := node.vhost_limits(name))
        ),
    ]
    for parameter in document["parameters"]:
        if parameter["component"] == OPERATOR_POLICY:
            about = ("pattern", "definition", "priority", "apply-to")
            parameter["value"] = {key: parameter.pop(key) for key in about}
    document["policies"] = [_policy(policy) for policy in policies if not policy.is_operator]
    for section in ("queues", "exchanges", "bindings"):
        document[section] = []
    for name in names:
        exported = _topology(node.engine.state.vhosts[name], notes)
        for section, items in exported.items():
            document[section] += items
    if vhost is not None:
        for section in ("parameters", "policies", "queues", "exchanges", "bindings"):
            for item in document[section]:
                del item["vhost"]
    return Export(document, tuple(notes))


def _version(node: Node) -> str:
    return ".".join(map(str, (*node.engine.state.settings.compatibility, 0)))


def _access(node: Node) -> dict[str, Any]:
    users = node.access.users
    return {
        "users": [
            {
                "name": user.name,
                "password_hash": user.password_hash,
                "hashing_algorithm": user.hashing_algorithm,
                "tags": list(user.tags),
                "limits": {},
            }
            for user in users
        ],
        "permissions": [
            {
                "user": each.user,
                "vhost": each.vhost,
                "configure": each.configure,
                "write": each.write,
                "read": each.read,
            }
            for each in users.permissions()
        ],
        "topic_permissions": [
            {
                "user": each.user,
                "vhost": each.vhost,
                "exchange": each.exchange,
                "write": each.write,
                "read": each.read,
            }
            for each in users.topic_permissions()
        ],
    }


def _policy(policy: Policy) -> dict[str, Any]:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def _topology(vhost: VirtualHost, notes: list[str]) -> dict[str, list[dict[str, Any]]]:
    queues = {name: q for name, q in sorted(vhost.queues.items()) if q.owner is None}
    exchanges = sorted(vhost.exchanges.items())
    for name, queue in queues.items():
        if queue.type == "classic" and "x-delivery-limit" in queue.arguments:
            notes.append(
                f"queue {name!r} in vhost {vhost.name!r}: RabbitMQ refuses x-delivery-limit of a "
                "classic queue"
            )
    for name, exchange in exchanges:
        if exchange.type == DELAYED:
            notes.append(
                f"exchange {name!r} in vhost {vhost.name!r}: RabbitMQ needs a plugin for its type"
            )
    return {
        "queues": [
            {
                "name": name,
                "vhost": vhost.name,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": _as_json(queue.arguments),
            }
            for name, queue in queues.items()
        ],
        "exchanges": [
            {
                "name": name,
                "vhost": vhost.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": _as_json(exchange.arguments),
            }
            for name, exchange in exchanges
            if name and not name.startswith(RESERVED)
        ],
        "bindings": [
            {
                "source": name,
                "vhost": vhost.name,
                "destination": binding.destination.name,
                "destination_type": binding.destination.kind,
                "routing_key": binding.binding_key,
                "arguments": _as_json(arguments),
            }
            for name, exchange in exchanges
            for binding, arguments in exchange.bindings.items()
            if binding.destination.kind == "exchange" or binding.destination.name in queues
        ],
    }


def _as_json(value: Any) -> Any:
    """Field table values as RabbitMQ writes them: times in seconds, bytes as text."""
    match value:
        case Mapping():
            return {key: _as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_as_json(item) for item in value]
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case bytes():
            return value.decode("utf-8", "replace")
    return value
