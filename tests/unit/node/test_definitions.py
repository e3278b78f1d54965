"""Definitions: imported whole or not at all, exported so that an import makes the same broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker_client.core.access import SHA256, hash_password
from broker_client.core.exchange import Destination
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.errors import InvalidDefinitionsError, ReplyError
from broker_client.node.definitions import (
    Export,
    export_definitions,
    import_definitions,
    import_in_steps,
)
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.policies import effective_policy
from tests.support.receivers import RecordingReceiver

HASH = hash_password("secret", b"salt")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node("test")
    node.administration.add_vhost("/")
    yield node
    await node.close()


def a_document(**sections: Any) -> dict[str, Any]:
    return {"rabbit_version": "3.10.8", "vhosts": [{"name": "/"}], **sections}


def a_channel(node: Node, vhost: str = "/") -> int:
    return node.open_channel(
        node.open_connection(vhost, RecordingReceiver()), RecordingReceiver(), confirm=True
    )


def a_full_node(node: Node) -> None:
    """One with something in every section."""
    node.administration.add_vhost("shop")
    node.access.import_user("ann", HASH, SHA256, ("administrator", "monitoring"))
    node.access.set_permissions("ann", "shop", configure="^a", write=".*", read="")
    node.access.set_topic_permissions("ann", "shop", "amq.topic", write="^x", read=".*")
    node.administration.set_policy(
        "short", "^q", {"max-length": 7, "overflow": "reject-publish"}, vhost="shop"
    )
    node.administration.set_policy(
        "guard", "", {"expires": 90_000}, vhost="shop", is_operator=True, priority=2
    )
    node.administration.set_vhost_limits("shop", {"max-queues": 20})
    node.administration.set_vhost_metadata("shop", description="the shop", tags=["a", "b"])
    node.administration.set_global_parameter("owner", {"a": 1})
    node.administration.add_cluster_id()
    channel = a_channel(node, "shop")
    node.commands.declare_exchange(channel, "spare", "fanout")
    node.commands.declare_exchange(
        channel, "orders", "topic", auto_delete=True, arguments={"alternate-exchange": "spare"}
    )
    node.commands.declare_exchange(channel, "by-header", "headers", durable=False, internal=True)
    node.commands.declare_queue(
        channel, "q", arguments={"x-message-ttl": 60_000, "x-max-priority": 5}
    )
    node.commands.declare_queue(channel, "safe", arguments={"x-queue-type": "quorum"})
    node.commands.declare_queue(channel, "fleeting", durable=False, auto_delete=True)
    node.commands.declare_queue(channel, "mine", exclusive=True)
    node.commands.bind(channel, Destination("queue", "q"), "orders", "order.#", {})
    node.commands.bind(channel, Destination("exchange", "by-header"), "orders", "*", {})
    arguments = {"x-match": "any", "kind": "a", "size": 3}
    node.commands.bind(channel, Destination("queue", "safe"), "by-header", "", arguments)
    node.commands.bind(channel, Destination("queue", "mine"), "orders", "gone", {})


def _without_cluster_id(exported: Export) -> tuple[dict[str, Any], str]:
    document = dict(exported.document)
    [found] = [e for e in document["global_parameters"] if e["name"] == "internal_cluster_id"]
    document["global_parameters"] = [e for e in document["global_parameters"] if e != found]
    return document, found["value"]


async def test_an_export_that_is_imported_makes_the_same_broker(node: Node) -> None:
    a_full_node(node)
    exported = export_definitions(node)
    text = json.dumps(exported.document)
    assert "mine" not in text
    other = Node("other")
    report = import_definitions(other, json.loads(text))
    assert (exported.notes, report.notes) == ((), ())
    assert report.counts == {
        "vhosts": 2,
        "users": 1,
        "permissions": 1,
        "topic_permissions": 1,
        "parameters": 2,
        "global_parameters": 1,
        "policies": 1,
        "exchanges": 3,
        "queues": 3,
        "bindings": 3,
    }
    assert other.administration.add_cluster_id()  # it is another broker, with an id of its own
    mine, others = (_without_cluster_id(each) for each in (exported, export_definitions(other)))
    assert mine[0] == others[0]
    assert mine[1] != others[1]
    assert other.access.authenticate("ann", "secret") is not None
    assert effective_policy(other, "q", "shop").definition == {
        "max-length": 7,
        "overflow": "reject-publish",
        "expires": 90_000,
    }
    channel = a_channel(other, "shop")
    other.commands.publish(channel, [a_message("order.new", exchange="orders")])
    assert {queue.name: queue.ready for queue in other.stats().queues}["q"] == 1
    assert import_definitions(other, json.loads(text)).counts == report.counts
    await other.close()


async def test_one_vhost_is_exported_and_imported_into_another(node: Node) -> None:
    a_full_node(node)
    document = export_definitions(node, "shop").document
    assert {"users", "vhosts", "permissions"} & set(document) == set()
    assert all("vhost" not in item for item in document["queues"] + document["policies"])
    report = import_definitions(node, document, "copy")
    assert report.counts["queues"] == 3
    assert export_definitions(node, "copy").document == document


async def test_of_a_whole_file_one_vhost_may_be_taken(node: Node) -> None:
    a_full_node(node)
    other = Node("other")
    import_definitions(other, export_definitions(node).document, "shop")
    assert other.administration.vhosts == ("shop",)
    assert len(other.access.users) == 0
    assert len(other.stats().queues) == 3
    await other.close()


async def test_an_export_of_a_vhost_that_is_not_there_is_refused(node: Node) -> None:
    with pytest.raises(ReplyError, match="vhost nope not found"):
        export_definitions(node, "nope")


async def test_what_is_imported_is_in_the_file(tmp_path: Path, node: Node) -> None:
    a_full_node(node)
    document, _ = _without_cluster_id(export_definitions(node))
    kept = Node("kept", store=SqliteStore(str(tmp_path / "broker.db")))
    await kept.recover()
    import_definitions(kept, document)
    await kept.close()
    again = Node("kept", store=SqliteStore(str(tmp_path / "broker.db")))
    await again.recover()
    restored = export_definitions(again).document
    for section in ("queues", "exchanges"):
        document[section] = [item for item in document[section] if item["durable"]]
    names = [item["name"] for section in ("queues", "exchanges") for item in document[section]]
    document["bindings"] = [
        item
        for item in document["bindings"]
        if item["source"] in names and item["destination"] in names
    ]
    assert restored == document
    await again.close()


async def test_what_is_there_and_different_stays_and_is_named(node: Node) -> None:
    channel = a_channel(node)
    node.commands.declare_queue(channel, "q", arguments={"x-max-length": 3})
    node.commands.declare_exchange(channel, "x", "topic")
    report = import_definitions(
        node,
        a_document(
            queues=[{"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 4}}],
            exchanges=[{"name": "x", "vhost": "/", "type": "direct"}],
        ),
    )
    assert report.notes == (
        "exchange 'x' in vhost '/': a different one exists already and is not changed",
        "queue 'q' in vhost '/': a different one exists already and is not changed",
    )
    assert node.engine.state.vhosts["/"].queues["q"].settings.max_length == 3


async def test_a_type_that_is_written_out_is_no_difference(node: Node) -> None:
    node.commands.declare_queue(a_channel(node), "q")
    queue = {"name": "q", "vhost": "/", "arguments": {"x-queue-type": "classic"}}
    assert import_definitions(node, a_document(queues=[queue])).notes == ()


async def test_what_is_not_supported_is_named_and_left_out_with_what_hangs_on_it(
    node: Node,
) -> None:
    report = import_definitions(
        node,
        a_document(
            vhosts=[{"name": "/", "metadata": {"default_queue_type": "stream"}, "tracing": True}],
            users=[{"name": "ann", "password_hash": HASH, "tags": "", "limits": {"max": 1}}],
            queues=[
                {"name": "log", "vhost": "/", "arguments": {"x-queue-type": "stream"}},
                {"name": "q", "vhost": "/", "arguments": {"x-queue-mode": "lazy", "x-foo": 1}},
            ],
            exchanges=[
                {"name": "hash", "vhost": "/", "type": "x-consistent-hash"},
                {"name": "amq.rabbitmq.log", "vhost": "/", "type": "topic"},
            ],
            bindings=[
                {"source": "amq.topic", "vhost": "/", "destination": "log"},
                {"source": "hash", "vhost": "/", "destination": "q"},
            ],
            policies=[
                {"vhost": "/", "name": "p", "pattern": ".*", "definition": {"ha-mode": "all"}}
            ],
            parameters=[
                {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}
            ],
            global_parameters=[
                {"name": "cluster_name", "value": "rabbit@a"},
                {"name": "internal_cluster_id", "value": "another"},
            ],
            extras=[1],
        ),
    )
    assert list(report.notes) == [
        "extras: not supported, left out",
        "vhost '/': queues declared without a type are classic, not stream",
        "vhost '/': tracing is not supported, left out",
        "user 'ann': limits is not supported, left out",
        "parameter 's' of shovel in vhost '/': not supported, left out",
        "policy 'p' in vhost '/': ha-mode has no effect here",
        "exchange 'hash' in vhost '/': type x-consistent-hash is not supported, left out",
        "exchange 'amq.rabbitmq.log' in vhost '/': a reserved name is not supported, left out",
        "queue 'log' in vhost '/': type stream is not supported, left out",
        "queue 'q' in vhost '/': argument x-queue-mode has no effect here",
        "queue 'q' in vhost '/': argument x-foo has no effect here",
        "binding from 'amq.topic' to 'log' in vhost '/': left out with queue 'log'",
        "binding from 'hash' to 'q' in vhost '/': left out with exchange 'hash'",
    ]
    assert [queue.name for queue in node.stats().queues] == ["q"]
    assert report.counts == {
        "vhosts": 1,
        "users": 1,
        "global_parameters": 1,
        "policies": 1,
        "queues": 1,
    }
    assert node.administration.global_parameters() == {"cluster_name": "rabbit@a"}
    assert export_definitions(node).document["policies"][0]["definition"] == {"ha-mode": "all"}


async def test_metadata_comes_beside_the_name_or_in_its_object_and_counts_for_the_queues(
    node: Node,
) -> None:
    node.administration.set_vhost_metadata("/", description="kept", default_queue_type="quorum")
    metadata = {"description": "inner", "tags": ["x"], "default_queue_type": "quorum"}
    report = import_definitions(
        node,
        a_document(
            vhosts=[
                {"name": "/", "tags": "a, b", "limits": {}},
                {"name": "in", "description": "outer", "metadata": metadata},
                {"name": "beside", "description": "d", "default_queue_type": "undefined"},
            ],
            queues=[
                {"name": "q", "vhost": "in"},
                {"name": "gone", "vhost": "in", "auto_delete": True},
                {"name": "q", "vhost": "beside"},
                {"name": "q", "vhost": "/"},
            ],
        ),
    )
    assert report.notes == ()
    assert node.administration.vhost_metadata("/") == VHostMetadata("kept", ("a", "b"), "quorum")
    assert node.administration.vhost_metadata("in") == VHostMetadata("inner", ("x",), "quorum")
    assert node.administration.vhost_metadata("beside") == VHostMetadata("d")
    vhosts = node.engine.state.vhosts
    types = {(v, q): each.type for v in vhosts for q, each in vhosts[v].queues.items()}
    assert types == {
        ("in", "q"): "quorum",
        ("in", "gone"): "classic",
        ("beside", "q"): "classic",
        ("/", "q"): "quorum",
    }
    node.commands.declare_queue(a_channel(node, "in"), "q")
    wrong = {"description": 1, "tags": [1], "default_queue_type": "rubbish"}
    with pytest.raises(InvalidDefinitionsError) as refused:
        import_definitions(node, a_document(vhosts=[{"name": "/", "metadata": wrong}]))
    assert [each.partition(":")[0] for each in refused.value.problems] == [
        "vhosts[0].description",
        "vhosts[0].tags",
        "vhosts[0]",
    ]
    assert node.administration.vhost_metadata("/").description == "kept"


async def test_every_problem_is_reported_with_its_place_and_nothing_is_imported(node: Node) -> None:
    before = export_definitions(node).document
    with pytest.raises(InvalidDefinitionsError) as refused:
        import_definitions(
            node,
            a_document(
                vhosts=[{"name": "/"}, {"name": "good"}, {"nam": "x"}, 7],
                users=[
                    {"name": "ann", "password_hash": "short"},
                    {"name": "bob", "password_hash": HASH, "hashing_algorithm": "md5"},
                    {"name": "eve", "password_hash": HASH, "tags": [1]},
                ],
                permissions=[
                    {"user": "who", "vhost": "/", "configure": "", "write": "", "read": ""},
                    {"user": "eve", "vhost": "no", "configure": "(", "write": "", "read": ""},
                ],
                policies=[{"vhost": "/", "name": "p", "pattern": "(", "definition": {"a": 1}}],
                queues=[
                    {"name": "good", "vhost": "/"},
                    {"name": "q", "vhost": "/", "arguments": {"x-message-ttl": -1}},
                    {"name": "q", "vhost": "/", "durable": "yes"},
                    {"name": "q" * 300, "vhost": "/"},
                    {"name": "q", "vhost": "/", "arguments": {"x-big": 1 << 70}},
                ],
                exchanges=[
                    {"name": "x", "vhost": "/", "type": "direct"},
                    {"name": "y", "vhost": "/"},
                    {"name": "", "vhost": "/", "type": 1},
                ],
                bindings=[
                    {"source": "x", "vhost": "/", "destination": "missing"},
                    {"source": "missing", "vhost": "/", "destination": "good"},
                    {"source": "", "vhost": "/", "destination": "good"},
                    {
                        "source": "amq.headers",
                        "vhost": "/",
                        "destination": "good",
                        "arguments": {"x-match": "most"},
                    },
                    {"source": "x", "destination": "good"},
                    {
                        "source": "x",
                        "vhost": "/",
                        "destination": "",
                        "destination_type": "exchange",
                    },
                ],
                parameters={},
            ),
        )
    assert list(refused.value.problems) == [
        "vhosts[2].name: is missing; it is text",
        "vhosts[3]: 7 is not an object",
        "users[0]: user 'ann': the password hash is not base64 of a salt and a "
        "rabbit_password_hashing_sha256 digest",
        "users[1]: user 'bob': hashing algorithm 'md5' is not one of "
        "rabbit_password_hashing_sha256, rabbit_password_hashing_sha512",
        "users[2].tags: [1] is not a list of texts",
        "permissions[0].user: there is no user 'who'",
        "permissions[1].vhost: there is no vhost 'no'",
        "permissions[1].configure: pattern '(' is invalid: missing ) at position 1",
        "parameters: {} is not a list",
        "policies[0]: pattern '(' is invalid: missing ) at position 1",
        "policies[0]: 'a' is not a recognised policy setting; there are alternate-exchange, "
        "consumer-timeout, dead-letter-exchange, dead-letter-routing-key, delivery-limit, expires, "
        "max-length, max-length-bytes, message-ttl, overflow",
        "exchanges[1].type: is missing; it is text",
        "exchanges[2].type: 1 is not text",
        "queues[1]: invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}",
        "queues[2].durable: 'yes' is not true or false",
        "queues[3]: queue name is longer than 255 bytes",
        "queues[4]: arguments['x-big'] is an integer of more than 64 bits",
        "bindings[0].destination: there is no queue 'missing' in vhost '/'",
        "bindings[1].source: there is no exchange 'missing' in vhost '/'",
        "bindings[2]: operation not permitted on the default exchange",
        'bindings[3]: Invalid x-match field value <<"most">>; expected all, any, all-with-x, or '
        "any-with-x",
        "bindings[4].vhost: is missing: say into which one it goes",
        "bindings[5]: operation not permitted on the default exchange",
    ]
    assert export_definitions(node).document == before


async def test_each_wrong_argument_of_a_queue_is_reported(node: Node) -> None:
    arguments = {"x-max-length": "y", "x-message-ttl": -1, "x-expires": 1, "x-max-priority": 999}
    with pytest.raises(InvalidDefinitionsError) as refused:
        import_definitions(
            node, a_document(queues=[{"name": "q", "vhost": "/", "arguments": arguments}])
        )
    found = [problem.partition(" for queue")[0] for problem in refused.value.problems]
    assert sorted(found) == [
        "queues[0].arguments.x-max-length: invalid arg 'x-max-length'",
        "queues[0].arguments.x-message-ttl: invalid arg 'x-message-ttl'",
        "queues[0]: invalid arg 'x-max-priority'",
    ]


async def test_what_no_file_can_keep_is_reported_with_its_place(node: Node) -> None:
    rights = {"user": "ann", "vhost": "/", "write": "", "read": ""}
    with pytest.raises(InvalidDefinitionsError) as refused:
        import_definitions(
            node,
            a_document(
                users=[{"name": "ann"}, {"name": "\ud800"}],
                permissions=[{**rights, "configure": "\ud800"}],
                topic_permissions=[{**rights, "exchange": "\ud800"}],
                policies=[
                    {
                        "vhost": "/",
                        "name": "p",
                        "pattern": "",
                        "priority": 1 << 70,
                        "definition": {"max-length": 1},
                    }
                ],
            ),
        )
    assert list(refused.value.problems) == [
        "users[1]: the name of a user is a text of 1 to 255 bytes",
        "permissions[0].configure: pattern '\\ud800' is invalid: it holds half of a surrogate pair",
        "topic_permissions[0].exchange: holds half of a surrogate pair",
        f"policies[0]: priority should be a number, actually was {1 << 70}",
    ]


@pytest.mark.parametrize("document", [None, [], "text", 1])
async def test_what_is_no_object_is_refused(node: Node, document: Any) -> None:
    with pytest.raises(InvalidDefinitionsError, match="definitions are an object, not"):
        import_definitions(node, document)


async def test_an_object_that_is_about_something_else_is_refused(node: Node) -> None:
    with pytest.raises(InvalidDefinitionsError, match="there is none of the sections"):
        import_definitions(node, {"vhost": {}})


async def test_a_user_may_come_with_a_plain_password(node: Node) -> None:
    import_definitions(
        node, a_document(users=[{"name": "ann", "password": "secret", "tags": "a,b"}])
    )
    user = node.access.authenticate("ann", "secret")
    assert user is not None
    assert user.tags == ("a", "b")


async def test_what_rabbitmq_would_refuse_is_reported_at_the_export(node: Node) -> None:
    channel = a_channel(node)
    node.commands.declare_queue(channel, "q", arguments={"x-delivery-limit": 3})
    node.commands.declare_exchange(
        channel, "later", "x-delayed-message", arguments={"x-delayed-type": "direct"}
    )
    assert list(export_definitions(node).notes) == [
        "queue 'q' in vhost '/': RabbitMQ refuses x-delivery-limit of a classic queue",
        "exchange 'later' in vhost '/': RabbitMQ needs a plugin for its type",
    ]


# --------------------------------------------------------------------------- in steps


def _many(count: int) -> dict[str, Any]:
    names = [f"q{number}" for number in range(count)]
    return a_document(
        queues=[{"name": name, "vhost": "shop"} for name in names],
        vhosts=[{"name": "shop"}],
        bindings=[
            {"source": "amq.topic", "vhost": "shop", "destination": name, "routing_key": "k"}
            for name in names
        ],
    )


async def test_import_in_steps_does_the_same_and_lets_others_have_turns(node: Node) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    report = await import_in_steps(node, _many(1_000))
    counting.cancel()
    assert report.counts == {"vhosts": 1, "queues": 1_000, "bindings": 1_000}
    assert report.notes == ()
    other = Node()
    assert import_definitions(other, _many(1_000)) == report
    assert export_definitions(other, "shop") == export_definitions(node, "shop")
    assert turns > 2
    await other.close()


async def test_what_is_deleted_while_definitions_are_imported_is_noted(node: Node) -> None:
    async def delete() -> None:
        for _ in range(10_000):
            if node.administration.delete_vhost("shop"):
                return
            await asyncio.sleep(0)

    deleting = asyncio.create_task(delete())
    report = await import_in_steps(node, _many(1_000))
    await deleting
    assert not node.administration.has_vhost("shop")
    assert report.notes == (
        "left out, since something else was changed meanwhile: 530 NOT_ALLOWED - vhost shop not "
        "found",
    )


async def test_import_in_steps_of_what_is_wrong_imports_nothing(node: Node) -> None:
    document = _many(3)
    document["bindings"].append({**document["bindings"][0], "destination": "missing"})
    with pytest.raises(InvalidDefinitionsError, match="there is no queue 'missing'"):
        await import_in_steps(node, document)
    assert not node.administration.has_vhost("shop")
