"""Policies, limits and metadata of a node: kept in its file, there again before its queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_client.core.policies import Policy
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.errors import InvalidParameterError, InvalidPolicyError
from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.policies import effective_policy
from tests.support.receivers import RecordingReceiver


async def a_node(path: Path) -> Node:
    node = Node("test", store=SqliteStore(str(path)))
    await node.recover()
    return node


def opened(node: Node, vhost: str = "/") -> int:
    return node.open_channel(
        node.open_connection(vhost, RecordingReceiver()), RecordingReceiver(), confirm=True
    )


async def test_policies_and_limits_are_there_again_after_a_restart(tmp_path: Path) -> None:
    node = await a_node(tmp_path / "broker.db")
    channel = opened(node)
    node.commands.declare_queue(channel, "q")
    node.commands.declare_exchange(channel, "x", "direct")
    node.administration.set_policy(
        "p", "^q", {"max-length-bytes": 12, "expires": 60_000}, priority=3
    )
    node.administration.set_policy(
        "guard", "", {"max-length": 5}, is_operator=True, apply_to="queues"
    )
    node.administration.set_policy(
        "spare", "^x$", {"alternate-exchange": "amq.fanout"}, apply_to="exchanges"
    )
    node.administration.set_policy("gone", "^q", {"max-length": 1}, priority=9)
    node.administration.delete_policy("gone")
    node.administration.set_vhost_limits("/", {"max-queues": 1})
    before, effective = node.administration.policies(), effective_policy(node, "q")
    node.commands.publish(
        channel, [a_message(body=b"hello", delivery_mode=PERSISTENT) for _ in range(3)]
    )
    await node.close()

    node = await a_node(tmp_path / "broker.db")
    assert node.administration.policies() == before
    assert effective_policy(node, "q") == effective
    assert node.administration.vhost_limits("/") == {"max-queues": 1}
    assert node.engine.state.vhosts["/"].exchanges["x"].alternate == "amq.fanout"
    [stats] = node.stats().queues
    assert stats.ready == 2
    node.commands.publish(opened(node), [a_message(body=b"hello")])
    [stats] = node.stats().queues
    assert (stats.ready, stats.drop_count) == (2, 1)
    await node.close()


async def test_metadata_of_a_vhost_is_there_again_after_a_restart(tmp_path: Path) -> None:
    node = await a_node(tmp_path / "broker.db")
    for vhost in ("a", "b", "c"):
        node.administration.add_vhost(vhost)
        node.administration.set_vhost_metadata(vhost, description="old")
    node.administration.set_vhost_metadata(
        "a", description="Bücher, 'a\0b'", tags=["x", "y z"], default_queue_type="quorum"
    )
    node.commands.declare_queue(opened(node, "a"), "q")
    node.administration.delete_vhost("b")
    node.administration.add_vhost("b")
    node.administration.set_vhost_metadata("c")
    await node.close()

    node = await a_node(tmp_path / "broker.db")
    metadata = VHostMetadata("Bücher, 'a\0b'", ("x", "y z"), "quorum")
    assert node.administration.vhost_metadata("a") == metadata
    assert (
        node.administration.vhost_metadata("b")
        == node.administration.vhost_metadata("c")
        == VHostMetadata()
    )
    queue = node.engine.state.vhosts["a"].queues["q"]
    assert dict(queue.arguments) == {"x-queue-type": "quorum"}
    node.commands.declare_queue(opened(node, "a"), "q")
    await node.close()


async def test_global_parameters_are_there_again_after_a_restart(tmp_path: Path) -> None:
    node = await a_node(tmp_path / "broker.db")
    value = {"a": [1, 2.5, None, True, "ü"]}
    node.administration.set_global_parameter("mine", value)
    value["a"].append("later")
    for name in ("none", "gone", "changed"):
        node.administration.set_global_parameter(name, None)
    assert node.administration.delete_global_parameter("gone")
    assert not node.administration.delete_global_parameter("gone")
    node.administration.set_global_parameter("changed", "new")
    await node.close()
    node = await a_node(tmp_path / "broker.db")
    assert node.administration.global_parameters() == {
        "changed": "new",
        "mine": {"a": [1, 2.5, None, True, "ü"]},
        "none": None,
    }
    await node.close()


async def test_the_id_of_a_cluster_is_made_once_and_kept(tmp_path: Path) -> None:
    node = await a_node(tmp_path / "broker.db")
    assert node.administration.add_cluster_id()
    made = node.administration.global_parameters()["internal_cluster_id"]
    assert made.startswith("rabbitmq-cluster-id-")
    await node.close()
    node = await a_node(tmp_path / "broker.db")
    assert not node.administration.add_cluster_id()
    assert node.administration.global_parameters() == {"internal_cluster_id": made}
    await node.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("", 1), ("p" * 256, 1), ("\ud800", 1), ("p", b"x"), ("p", float("nan")), ("p", "\ud800")],
)
async def test_global_parameter_that_cannot_be_kept_is_refused(name: str, value: object) -> None:
    node = Node("test")
    with pytest.raises(InvalidParameterError):
        node.administration.set_global_parameter(name, value)
    assert node.administration.global_parameters() == {}
    await node.close()


async def test_policies_go_with_their_vhost(tmp_path: Path) -> None:
    node = await a_node(tmp_path / "broker.db")
    for vhost in ("a", "b"):
        node.administration.add_vhost(vhost)
        node.administration.set_policy("p", "^q", {"max-length": 1}, vhost=vhost)
        node.administration.set_vhost_limits(vhost, {"max-queues": 1})
    node.administration.delete_vhost("a")
    node.administration.add_vhost("a")
    await node.close()
    node = await a_node(tmp_path / "broker.db")
    assert node.administration.policies() == (Policy("b", "p", "^q", {"max-length": 1}),)
    assert (node.administration.vhost_limits("a"), node.administration.vhost_limits("b")) == (
        {},
        {"max-queues": 1},
    )
    await node.close()


async def test_a_policy_with_a_limit_in_bytes_weighs_what_is_only_in_the_file(
    tmp_path: Path,
) -> None:
    node = await a_node(tmp_path / "broker.db")
    channel = opened(node)
    node.commands.declare_queue(channel, "q")
    node.commands.publish(
        channel, [a_message(body=b"x" * 10, delivery_mode=PERSISTENT) for _ in range(9)]
    )
    await node.close()
    node = await a_node(tmp_path / "broker.db")
    node.administration.set_policy("p", "^q", {"max-length-bytes": 45})
    assert node.stats().queues[0].ready == 4
    await node.close()


async def test_a_policy_that_cannot_be_is_refused(tmp_path: Path) -> None:
    node = Node("test")
    node.administration.add_vhost("/")
    with pytest.raises(InvalidPolicyError, match="policy 'p' in vhost '/': 0 is not a valid queue"):
        node.administration.set_policy("p", "^q", {"expires": 0})
    await node.close()
