"""Writes definitions, as RabbitMQ reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker_client.core.access import TopicPermissions, User, VHostPermissions
from broker_client.core.exchange import DELAYED
from broker_client.core.policies import Policy
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.core.virtual_host import VirtualHost
from broker_client.node.node import Node
from broker_client.runtime.slotted import slotted

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"
LIMITS = "limits"
"""RabbitMQ: the one name that a parameter of that component has."""
RESERVED = "amq."


@slotted
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
    policies = node.administration.policies(vhost)
    notes: list[str] = []
    names = node.administration.vhosts if vhost is None else (vhost,)
    document: dict[str, Any] = {
        "rabbit_version": _version(node),
        "rabbitmq_version": _version(node),
        "product_name": "broker_client",
    }
    if vhost is None:
        users = node.access.users
        document["users"] = [user_object(user) for user in users]
        document["permissions"] = [permission_object(each) for each in users.permissions()]
        document["topic_permissions"] = [
            topic_permission_object(each) for each in users.topic_permissions()
        ]
        document["vhosts"] = [
            {
                "name": name,
                "limits": node.administration.vhost_limits(name),
                "metadata": metadata_object(node.administration.vhost_metadata(name)),
            }
            for name in names
        ]
        document["global_parameters"] = [
            global_parameter_object(name, value)
            for name, value in node.administration.global_parameters().items()
        ]
    else:
        document["rabbitmq_definition_format"] = "single_virtual_host"
        document["limits"] = node.administration.vhost_limits(vhost)
        document["metadata"] = metadata_object(node.administration.vhost_metadata(vhost))
    document["parameters"] = [each for name in names for each in parameter_objects(node, name)]
    document["policies"] = [policy_object(policy) for policy in policies if not policy.is_operator]
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


def metadata_object(metadata: VHostMetadata) -> dict[str, Any]:
    """The metadata of a vhost."""
    return {
        "description": metadata.description,
        "tags": list(metadata.tags),
        "default_queue_type": metadata.default_queue_type,
    }


def user_object(user: User) -> dict[str, Any]:
    """One user, with the hash of its password, as RabbitMQ tells it to administrators."""
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "limits": {},
    }


def permission_object(permissions: VHostPermissions) -> dict[str, Any]:
    """The permissions of a user in a vhost."""
    return {
        "user": permissions.user,
        "vhost": permissions.vhost,
        "configure": permissions.configure,
        "write": permissions.write,
        "read": permissions.read,
    }


def topic_permission_object(permissions: TopicPermissions) -> dict[str, Any]:
    """The topic permissions of a user for an exchange."""
    return {
        "user": permissions.user,
        "vhost": permissions.vhost,
        "exchange": permissions.exchange,
        "write": permissions.write,
        "read": permissions.read,
    }


def policy_object(policy: Policy) -> dict[str, Any]:
    """One policy."""
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": dict(policy.definition),
        "priority": policy.priority,
    }


def parameter_objects(node: Node, vhost: str) -> list[dict[str, Any]]:
    """Operator policies and limits of a vhost, as RabbitMQ has them among its parameters."""
    found: list[dict[str, Any]] = []
    for policy in node.administration.policies(vhost):
        if policy.is_operator:
            value = policy_object(policy)
            parameter = {key: value.pop(key) for key in ("vhost", "name")}
            found.append({**parameter, "component": OPERATOR_POLICY, "value": value})
    if limits := node.administration.vhost_limits(vhost):
        parameter = {"vhost": vhost, "name": LIMITS, "component": VHOST_LIMITS}
        found.append({**parameter, "value": limits})
    return found


def global_parameter_object(name: str, value: Any) -> dict[str, Any]:
    """One parameter of the whole broker."""
    return {"name": name, "value": value}


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
                "arguments": plain(queue.arguments),
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
                "arguments": plain(exchange.arguments),
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
                "arguments": plain(arguments),
            }
            for name, exchange in exchanges
            for binding, arguments in exchange.bindings.items()
            if binding.destination.kind == "exchange" or binding.destination.name in queues
        ],
    }


def plain(value: Any) -> Any:
    """A value of AMQP as JSON can have it; as RabbitMQ: times in seconds, bytes as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return float(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
    return str(value)
