"""What an application asks of its node: outcomes, views, and the gate at the close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from broker_client.core.records import Append, Record, Settled
from broker_client.core.settle_results import Done, NodeClosed, NotInFlight, NotOwner, SettleResult
from broker_client.core.snapshots import Purged
from broker_client.errors import ReplyError
from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.base import Committed
from broker_client.store.memory import MemoryStore
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.receivers import RecordingReceiver
from tests.unit.node.test_node import opened, publish


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(clock: ManualClock) -> AsyncIterator[Node]:
    node = Node("test", clock=clock)
    yield node
    await node.close()


async def test_outcomes_come_from_the_node(node: Node, clock: ManualClock) -> None:
    """G3 at the node's door."""
    first, _ = opened(node)
    second, _ = opened(node)
    publish(node, first, b"1")
    node.engine.consuming.get(first, "q", node.now())
    assert node.touch(first, 1) == Done(60.0)
    clock.advance(60.0)
    node.tick()
    node.engine.consuming.get(second, "q", node.now())
    assert node.finish(first, 1) == NotOwner(1)
    assert node.requeue(second, 1, delay=9_999.0)
    assert node.requeue(second, 1) == NotInFlight(1)
    (waiting,) = node.deferred("q")
    assert waiting.due_at == clock.now() + 3_600.0


async def test_queues_are_seen_and_emptied(node: Node) -> None:
    channel, receiver = opened(node)
    publish(node, channel, b"0", headers={"x-delay": 1_000})
    publish(node, channel, b"1", b"2", b"3")
    node.engine.consuming.get(channel, "q", node.now())
    assert [each.channel for each in node.in_flight("q")] == [channel]
    assert node.run_deferred("q") == 1
    assert node.cancel_deferred("q") == 0
    node.pause_queue("q")
    node.engine.consuming.consume(channel, "q", node.now())
    await node.drain()
    assert ("deliver", b"2") not in receiver.heard
    node.resume_queue("q")
    await node.drain()
    assert ("deliver", b"2") in receiver.heard
    assert node.purge("q", in_flight=True, deferred=True) == Purged(0, 0, 4)
    with pytest.raises(ReplyError):
        node.purge("none")


async def test_stats_have_consumers_and_latency(node: Node, clock: ManualClock) -> None:
    channel, _ = opened(node)
    tag = node.engine.consuming.consume(channel, "q", node.now())
    publish(node, channel, b"1")
    clock.advance(0.25)
    assert node.finish(channel, 1)
    (queue,) = node.stats().queues
    assert queue.consumer_stats[0].consumer_tag == tag
    assert queue.latency.at(0.99) == pytest.approx(0.25, rel=0.01)


class Ledger(MemoryStore):
    """Keeps records, and knows which messages are in it."""

    keeps = True

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Append):
                assert record.record_id not in self.records
                self.records[record.record_id] = record.message.body
            elif isinstance(record, Settled):
                del self.records[record.record_id]

    def commit(self, committed: Committed) -> None:
        asyncio.get_running_loop().call_soon(committed, None)


async def test_finishes_and_requeues_that_race_with_the_close_lose_and_double_nothing() -> None:
    """What was answered `Done` counts; what was answered `NodeClosed` changed nothing."""
    store = Ledger()
    node = Node("closing", store=store)
    channel, _ = opened(node)
    for n in range(30):
        message = a_message(body=b"%d" % n, delivery_mode=PERSISTENT)
        node.engine.publishing.publish(channel, message, node.now())
    for tag in range(1, 21):
        node.engine.consuming.get(channel, "q", node.now())
        if tag > 10:
            assert node.requeue(channel, tag, delay=100.0)
    outcomes: dict[int, list[SettleResult]] = {}

    async def settle(n: int) -> None:
        for _ in range(n % 5):
            await asyncio.sleep(0)
        tag = n % 10 + 1
        outcome = node.requeue(channel, tag) if n % 3 == 0 else node.finish(channel, tag)
        outcomes.setdefault(n, []).append(outcome)

    await asyncio.gather(node.close(), *(settle(n) for n in range(50)))
    finished = sum(isinstance(outcomes[n][0], Done) for n in outcomes if n % 3)
    assert len(store.records) == 30 - finished
    assert any(isinstance(each[0], NodeClosed) for each in outcomes.values())
    assert not node.accepts
    assert node.finish(channel, 1) == NodeClosed(1)


async def test_a_closing_node_takes_no_more_settlements(node: Node) -> None:
    channel, _ = opened(node)
    publish(node, channel, b"1")
    node.engine.consuming.get(channel, "q", node.now())
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    assert node.finish(channel, 1) == NodeClosed(1)
    assert node.touch(channel, 1) == NodeClosed(1)
    await closing


async def test_a_consumer_without_limit_leaves_the_loop_free(node: Node) -> None:
    """Another consumer's message does not wait behind a long queue."""
    channel, receiver = opened(node)
    publish(node, channel, *[b"x"] * 5_000)
    await node.drain()
    quick = RecordingReceiver()
    other = node.open_channel(node.open_connection("/", RecordingReceiver()), quick, confirm=False)
    node.engine.topology.declare_queue(other, "other", node.now())
    node.engine.consuming.consume(other, "other", node.now())
    receiver.heard.clear()
    node.engine.consuming.consume(channel, "q", node.now())
    node.wake()
    await asyncio.sleep(0)
    publish(node, other, b"quick", routing_key="other")
    for _ in range(4):
        await asyncio.sleep(0)
    assert ("deliver", b"quick") in quick.heard
    assert len(receiver.heard) < 3_000
