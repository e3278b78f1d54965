"""Definitions go from RabbitMQ to the built-in broker and back, in RabbitMQ's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from broker_client.node.definitions import export_definitions, import_definitions
from broker_client.node.node import Node
from tests.support.policies import effective_policy
from tests.support.rabbitmq import RabbitMQ

pytestmark = pytest.mark.rabbitmq

VHOST = "of/definitions"
PATH = "of%2Fdefinitions"


@pytest.fixture
def filled(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """A RabbitMQ with one object of each kind in a vhost, and a user."""
    put = rabbitmq.api
    put("PUT", f"vhosts/{PATH}", {})
    put("PUT", "users/ann", {"password": "secret", "tags": "monitoring"})
    for user, configure in (("guest", ".*"), ("ann", "^a")):
        patterns = {"configure": configure, "write": ".*", "read": ".*"}
        put("PUT", f"permissions/{PATH}/{user}", patterns)
    topic = {"exchange": "amq.topic", "write": "^{username}", "read": ".*"}
    put("PUT", f"topic-permissions/{PATH}/ann", topic)
    put("PUT", f"vhost-limits/{PATH}/max-queues", {"value": 50})
    policy = {"pattern": "^q", "definition": {"max-length": 9, "expires": 80_000}, "priority": 4}
    put("PUT", f"policies/{PATH}/short", {**policy, "apply-to": "queues"})
    put("PUT", f"operator-policies/{PATH}/guard", {"pattern": "", "definition": {"max-length": 7}})
    lazy = {"pattern": "^z", "definition": {"queue-mode": "lazy"}}
    put("PUT", f"policies/{PATH}/lazy", lazy)
    for name, arguments in {
        "q": {"x-message-ttl": 60_000, "x-dead-letter-exchange": "spare"},
        "safe": {"x-queue-type": "quorum", "x-delivery-limit": 5},
        "ranked": {"x-max-priority": 5},
        "stream": {"x-queue-type": "stream"},
    }.items():
        put("PUT", f"queues/{PATH}/{name}", {"durable": True, "arguments": arguments})
    for name, type in {"spare": "fanout", "by-header": "headers", "topics": "topic"}.items():
        put("PUT", f"exchanges/{PATH}/{name}", {"type": type, "durable": True})
    with_alternate = {"type": "direct", "arguments": {"alternate-exchange": "spare"}}
    put("PUT", f"exchanges/{PATH}/orders", with_alternate)
    put("POST", f"bindings/{PATH}/e/topics/q/q", {"routing_key": "order.#"})
    put("POST", f"bindings/{PATH}/e/topics/q/stream", {"routing_key": "#"})
    put("POST", f"bindings/{PATH}/e/orders/e/by-header", {"routing_key": "k"})
    headers = {"x-match": "any", "kind": "a", "size": 3}
    put("POST", f"bindings/{PATH}/e/by-header/q/safe", {"routing_key": "", "arguments": headers})
    yield rabbitmq
    put("DELETE", f"vhosts/{PATH}")
    put("DELETE", "users/ann")


def essence(document: dict[str, Any], vhost: str = VHOST) -> dict[str, Any]:
    """The definitions of a vhost that two brokers must agree on, sorted."""

    def queue(item: dict[str, Any]) -> dict[str, Any]:
        arguments = {"x-queue-type": "classic", **item["arguments"]}
        return {"name": item["name"], "durable": item["durable"], "arguments": arguments}

    def sorted_items(items: Any) -> list[str]:
        return sorted(json.dumps(item, sort_keys=True) for item in items)

    of_vhost = {
        section: [
            {k: v for k, v in i.items() if k != "vhost"}
            for i in document[section]
            if i.get("vhost", vhost) == vhost
        ]
        for section in (
            "queues",
            "exchanges",
            "bindings",
            "policies",
            "parameters",
            "permissions",
            "topic_permissions",
        )
        if section in document
    }
    of_vhost["queues"] = [
        queue(item)
        for item in of_vhost["queues"]
        if item["arguments"].get("x-queue-type") != "stream"
    ]
    for exchange in of_vhost["exchanges"]:
        exchange.setdefault("internal", False)  # RabbitMQ 4 leaves it out
    of_vhost["bindings"] = [i for i in of_vhost["bindings"] if i["destination"] != "stream"]
    return {section: sorted_items(items) for section, items in of_vhost.items()}


async def test_an_export_of_rabbitmq_is_imported_and_exported_again_the_same(
    filled: RabbitMQ,
) -> None:
    theirs = filled.api("GET", "definitions")
    node = Node("test")
    report = import_definitions(node, theirs)
    stream = f"queue 'stream' in vhost '{VHOST}'"
    assert f"{stream}: type stream is not supported, left out" in report.notes
    lazy = f"policy 'lazy' in vhost '{VHOST}'"
    assert f"{lazy}: queue-mode has no effect here" in report.notes
    binding = f"binding from 'topics' to 'stream' in vhost '{VHOST}'"
    assert f"{binding}: left out with queue 'stream'" in report.notes
    assert essence(export_definitions(node).document) == essence(theirs)
    ann = node.access.authenticate("ann", "secret")
    assert ann is not None
    assert ann.tags == ("monitoring",)
    effective = effective_policy(node, "q", VHOST)
    assert (effective.policy, effective.operator_policy) == ("short", "guard")
    assert effective.definition == {"max-length": 7, "expires": 80_000}
    await node.close()


async def test_an_export_of_one_vhost_is_imported(filled: RabbitMQ) -> None:
    theirs = filled.api("GET", f"definitions/{PATH}")
    node = Node("test")
    import_definitions(node, theirs, "copy")
    ours = export_definitions(node, "copy").document
    assert essence(ours) == essence(theirs)
    await node.close()


async def test_an_export_of_ours_is_imported_by_rabbitmq(filled: RabbitMQ) -> None:
    node = Node("test")
    import_definitions(node, filled.api("GET", "definitions"))
    ours = export_definitions(node).document
    filled.api("DELETE", f"vhosts/{PATH}")
    filled.api("DELETE", "users/ann")
    filled.api("POST", "definitions", ours)
    assert essence(filled.api("GET", "definitions")) == essence(ours)
    name = f"v-{uuid4().hex[:8]}"
    filled.api("PUT", f"vhosts/{name}", {})
    one = export_definitions(node, VHOST).document
    filled.api("POST", f"definitions/{name}", one)
    assert essence(filled.api("GET", f"definitions/{name}"), name) == essence(one)
    filled.api("DELETE", f"vhosts/{name}")
    await node.close()
