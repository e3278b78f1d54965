"""Vhosts that are added and deleted, and alarms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_client.core.exchange import Destination
from broker_client.core.settings import EngineSettings
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.eventually import eventually
from tests.support.receivers import RecordingReceiver


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node("test", settings=EngineSettings(memory_high_watermark=100))
    yield node
    await node.close()


async def test_a_vhost_is_added_once_and_its_name_checked(node: Node) -> None:
    assert node.administration.add_vhost("a")
    assert not node.administration.add_vhost("a")
    with pytest.raises(ReplyError, match="vhost name is longer than 255 bytes"):
        node.administration.add_vhost("ä" * 128)
    assert node.administration.vhosts == ("a",)


async def test_a_vhost_that_is_deleted_closes_its_connections_and_no_other(node: Node) -> None:
    gone, other = RecordingReceiver(), RecordingReceiver()
    node.open_channel(node.open_connection("a", gone), RecordingReceiver(), confirm=False)
    node.open_connection("b", other)
    assert node.administration.delete_vhost("a")
    assert gone.closed_with == [(320, "CONNECTION_FORCED - vhost 'a' is deleted")]
    assert other.closed_with == []
    assert (node.administration.vhosts, node.stats().connections) == (("b",), 1)
    assert not node.administration.delete_vhost("a")


async def test_a_vhost_that_is_deleted_is_gone_from_the_file_too(tmp_path: Path) -> None:
    file = str(tmp_path / "broker.db")
    node = Node("test", store=SqliteStore(file))
    await node.recover()
    for vhost in ("a", "b"):
        channel = node.open_channel(
            node.open_connection(vhost, RecordingReceiver()), RecordingReceiver(), confirm=True
        )
        node.commands.declare_exchange(channel, "x", "topic")
        node.commands.declare_queue(channel, "q")
        node.commands.bind(channel, Destination("queue", "q"), "x", "#", {})
        node.commands.publish(channel, [a_message("k", exchange="x", delivery_mode=PERSISTENT)])
    await node.drain()
    node.administration.delete_vhost("a")
    node.administration.add_vhost("a")
    await node.close()

    again = Node("test", store=SqliteStore(file))
    await again.recover()
    assert again.administration.vhosts == ("a", "b")
    assert [(queue.vhost, queue.ready) for queue in again.stats().queues] == [("b", 1)]
    channel = again.open_channel(
        again.open_connection("a", RecordingReceiver()), RecordingReceiver(), confirm=True
    )
    with pytest.raises(ReplyError, match="no exchange 'x'"):
        again.commands.check_exchange(channel, "x")
    await again.close()


def publisher(node: Node) -> tuple[int, RecordingReceiver]:
    receiver = RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", receiver), RecordingReceiver(), confirm=True
    )
    node.commands.declare_queue(channel, "q")
    return channel, receiver


async def test_publishers_go_on_once_all_alarms_are_cleared(node: Node) -> None:
    channel, receiver = publisher(node)
    node.set_alarm("disk", True)
    node.commands.publish(channel, [a_message(body=b"x" * 101)])
    assert receiver.heard == [("blocked", "low on disk & memory")]
    node.set_alarm("disk", False)
    await node.drain()
    assert len(receiver.heard) == 1
    node.purge("q")
    await eventually(lambda: receiver.heard[1:] == [("unblocked",)])


async def test_who_is_closed_while_blocked_hears_no_more(node: Node) -> None:
    channel, receiver = publisher(node)
    node.set_alarm("disk", True)
    node.commands.publish(channel, [a_message()])
    node.close_connection(node.engine.connections_to("/")[0])
    node.set_alarm("disk", False)
    await node.drain()
    assert receiver.heard == [("blocked", "low on disk")]
