"""What waits for its time waits on through a restart."""

from __future__ import annotations

from pathlib import Path

from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.receivers import RecordingReceiver
from tests.unit.node.test_node import opened


async def started(path: Path, clock: ManualClock) -> Node:
    node = Node("durable", store=SqliteStore(str(path)), clock=clock)
    await node.recover()
    return node


async def test_delayed_publishes_and_deferred_requeues_keep_their_time_and_id(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    node = await started(tmp_path / "node.db", clock)
    channel, _ = opened(node)
    for message_id, headers in (("delayed", {"x-delay": 60_000}), ("requeued", None)):
        message = a_message(headers=headers, message_id=message_id, delivery_mode=PERSISTENT)
        node.engine.publishing.publish(channel, message, node.now())
    node.engine.consuming.get(channel, "q", node.now())
    assert node.requeue(channel, 1, delay=90.0)
    before = node.deferred("q")
    await node.close()

    clock.advance(30.0)
    node = await started(tmp_path / "node.db", clock)
    assert node.deferred("q") == before
    assert [(each.message_id, each.attempts) for each in before] == [
        ("delayed", 0),
        ("requeued", 1),
    ]
    receiver = RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), receiver, confirm=False
    )
    seen: list[tuple[str | None, int | None, bool]] = []
    receiver.on_delivery = lambda delivery: seen.append(
        (delivery.properties.message_id, delivery.attempts, delivery.redelivered)
    )
    node.engine.consuming.consume(channel, "q", node.now())
    clock.advance(29.9)
    node.tick()
    await node.drain()
    assert seen == []
    clock.advance(30.1)
    node.tick()
    await node.drain()
    assert seen == [("delayed", 1, False), ("requeued", 2, True)]
    await node.close()
