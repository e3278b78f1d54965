"""Writes definitions, as RabbitMQ reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from broker_client.core.access import TopicPermissions, User, VHostPermissions
from broker_client.core.exchange import DELAYED
from broker_client.core.policies import Policy
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.core.virtual_host import VirtualHost
from broker_client.node.node import Node
from broker_client.runtime.pace import paced
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
    export = _Exporting(node, vhost)
    for _ in export.steps():
        pass
    return export.ended()


async def export_in_steps(node: Node, vhost: str | None = None) -> Export:
    """As `export_definitions`, with turns of the event loop in between for others.

    What is declared or deleted meanwhile may be in it, or not.

    Raises:
        ReplyError: 530 where there is no such vhost.
    """
    export = _Exporting(node, vhost)
    async for _ in paced(export.steps()):
        pass
    return export.ended()


class _Exporting:
    """Definitions that are being collected."""

    def __init__(self, node: Node, vhost: str | None) -> None:
        self._node, self._vhost = node, vhost
        self._names = node.administration.vhosts if vhost is None else (vhost,)
        self._notes: list[str] = []
        self._document: dict[str, Any] = {
            "rabbit_version": _version(node),
            "rabbitmq_version": _version(node),
            "product_name": "broker_client",
        }
        self._document |= self._of_broker() if vhost is None else self._of_vhost(vhost)

    def _of_broker(self) -> dict[str, Any]:
        users, administration = self._node.access.users, self._node.administration
        return {
            "users": [user_object(user) for user in users],
            "permissions": [permission_object(each) for each in users.permissions()],
            "topic_permissions": [
                topic_permission_object(each) for each in users.topic_permissions()
            ],
            "vhosts": [
                {
                    "name": name,
                    "limits": administration.vhost_limits(name),
                    "metadata": metadata_object(administration.vhost_metadata(name)),
                }
                for name in self._names
            ],
            "global_parameters": [
                global_parameter_object(name, value)
                for name, value in administration.global_parameters().items()
            ],
        }

    def _of_vhost(self, vhost: str) -> dict[str, Any]:
        administration = self._node.administration
        return {
            "rabbitmq_definition_format": "single_virtual_host",
            "limits": administration.vhost_limits(vhost),
            "metadata": metadata_object(administration.vhost_metadata(vhost)),
        }

    def steps(self) -> Iterator[None]:
        """Collect: a little each time that it is asked."""
        document, administration = self._document, self._node.administration
        document["parameters"] = [
            each for name in self._names for each in parameter_objects(self._node, name)
        ]
        policies = administration.policies(self._vhost)
        document["policies"] = [policy_object(each) for each in policies if not each.is_operator]
        document |= {"queues": [], "exchanges": [], "bindings": []}
        for name in self._names:
            vhost = self._node.engine.state.vhosts.get(name)
            if vhost is not None:  # else it was deleted meanwhile
                for section, item in _topology(vhost, self._notes):
                    document[section].append(item)
                    yield

    def ended(self) -> Export:
        """What was collected."""
        if self._vhost is not None:
            for section in ("parameters", "policies", "queues", "exchanges", "bindings"):
                for item in self._document[section]:
                    del item["vhost"]
        return Export(self._document, tuple(self._notes))


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


def _topology(vhost: VirtualHost, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each queue, exchange and binding as it is when its turn comes, with its section."""
    queues = {name: q for name, q in sorted(vhost.queues.items()) if q.owner is None}
    exchanges = sorted(vhost.exchanges.items())
    for name, queue in queues.items():
        if queue.type == "classic" and "x-delivery-limit" in queue.arguments:
            notes.append(
                f"queue {name!r} in vhost {vhost.name!r}: RabbitMQ refuses x-delivery-limit of a "
                "classic queue"
            )
        yield (
            "queues",
            {
                "name": name,
                "vhost": vhost.name,
                "durable": queue.durable,
                "auto_delete": queue.auto_delete,
                "arguments": plain(queue.arguments),
            },
        )
    for name, exchange in exchanges:
        if exchange.type == DELAYED:
            notes.append(
                f"exchange {name!r} in vhost {vhost.name!r}: RabbitMQ needs a plugin for its type"
            )
        if not name or name.startswith(RESERVED):
            continue
        yield (
            "exchanges",
            {
                "name": name,
                "vhost": vhost.name,
                "type": exchange.type,
                "durable": exchange.durable,
                "auto_delete": exchange.auto_delete,
                "internal": exchange.internal,
                "arguments": plain(exchange.arguments),
            },
        )
    for name, exchange in exchanges:
        for binding, arguments in list(exchange.bindings.items()):
            if binding.destination.kind == "queue" and binding.destination.name not in queues:
                continue
            yield (
                "bindings",
                {
                    "source": name,
                    "vhost": vhost.name,
                    "destination": binding.destination.name,
                    "destination_type": binding.destination.kind,
                    "routing_key": binding.binding_key,
                    "arguments": plain(arguments),
                },
            )


def plain(value: Any) -> Any:
    """A value of AMQP as JSON can have it; as RabbitMQ: times in seconds, bytes as text."""
    match value:
        case None | bool() | int() | str():
            return value
        case dict() if not value:  # nearly always, and to ask for a Mapping takes time
            return {}
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
