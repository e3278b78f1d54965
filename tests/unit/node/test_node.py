"""The node: effects carried out in order, in batches, at the right time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from broker_client.core.records import COPY_BITS, Append, Delivered, Record, Recovered, Settled
from broker_client.core.settings import EngineSettings
from broker_client.errors import BrokerClosedError, ReplyError, StoreError
from broker_client.message import PERSISTENT, Delivery, Outgoing
from broker_client.node.node import Node
from broker_client.store.base import Committed
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.eventually import eventually
from tests.support.receivers import RecordingReceiver


class SlowStore:
    """Keeps records in a list; commits when the test says so."""

    keeps = True
    is_behind = False

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.waiting: list[Committed] = []
        self.is_closed = False

    def write(self, records: Sequence[Record]) -> None:
        self.records.extend(records)

    def commit(self, committed: Committed) -> None:
        self.waiting.append(committed)

    async def settle(self, node: Node) -> None:
        """Commit what has been written so far, and forget it."""
        node.wake()
        await eventually(lambda: self.waiting)
        self.finish()
        self.records.clear()

    def finish(self, error: StoreError | None = None) -> None:
        waiting, self.waiting = self.waiting, []
        for committed in waiting:
            committed(error)

    async def start(self, target: Recovered) -> None:
        pass

    def load(self, record_ids: Sequence[int]) -> list[Outgoing]:
        kept = {r.record_id: r.message for r in self.records if isinstance(r, Append)}
        return [kept[record_id] for record_id in record_ids]

    async def close(self) -> None:
        self.is_closed = True

    def release(self) -> None:
        self.is_closed = True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def node(clock: ManualClock) -> AsyncIterator[Node]:
    node = Node("test", clock=clock)
    yield node
    await node.close()


def opened(node: Node, *, queue: str = "q") -> tuple[int, RecordingReceiver]:
    """A channel with confirms on a connection of its own, and a queue."""
    receiver = RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), receiver, confirm=True
    )
    node.engine.topology.declare_queue(channel, queue, node.now())
    return channel, receiver


def publish(node: Node, channel: int, *bodies: bytes, **options: Any) -> None:
    for body in bodies:
        node.engine.publishing.publish(channel, a_message(body=body, **options), node.now())
    node.wake()


async def test_confirms_of_a_batch_come_as_one_range_behind_its_deliveries(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.consuming.consume(channel, "q", node.now())
    publish(node, channel, b"1", b"2", b"3")
    assert receiver.heard == []
    await node.drain()
    assert receiver.heard == [
        ("deliver", b"1"),
        ("deliver", b"2"),
        ("deliver", b"3"),
        ("confirm", 1, 3, True),
    ]


async def test_a_refused_publish_between_splits_the_range_in_order(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.topology.declare_queue(
        channel, "full", node.now(), arguments={"x-max-length": 0, "x-overflow": "reject-publish"}
    )
    for key in ("q", "full", "q", "q"):
        node.engine.publishing.publish(channel, a_message(key), node.now())
    node.wake()
    await node.drain()
    assert receiver.heard == [
        ("confirm", 1, 1, True),
        ("confirm", 2, 2, False),
        ("confirm", 3, 4, True),
    ]


async def test_a_return_comes_before_its_confirm(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.publishing.publish(channel, a_message("nowhere", mandatory=True), node.now())
    node.wake()
    await node.drain()
    assert receiver.heard == [("returned", 312), ("confirm", 1, 1, True)]


async def test_a_callback_may_give_commands_without_recursion(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.consuming.qos(channel, 1)
    node.engine.consuming.consume(channel, "q", node.now())
    depth = deepest = 0

    def ack_and_publish(delivery: Delivery) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        node.engine.consuming.ack(channel, delivery.delivery_tag, node.now())
        if len(receiver.heard) < 3_000:
            publish(node, channel, b"again")
        node.wake()
        depth -= 1

    receiver.on_delivery = ack_and_publish
    publish(node, channel, b"first")
    await eventually(lambda: node.stats().queues[0].ack_count >= 1_000)
    receiver.on_delivery = lambda delivery: None
    assert deepest == 1


async def test_a_large_backlog_leaves_the_loop_free_between_batches(node: Node) -> None:
    channel, receiver = opened(node)
    publish(node, channel, *[b"x"] * 2_000)
    await node.drain()
    node.engine.consuming.consume(channel, "q", node.now(), no_ack=True)
    node.wake()
    receiver.heard.clear()
    await asyncio.sleep(0)
    assert 0 < len(receiver.heard) < 2_000
    await eventually(lambda: len(receiver.heard) == 2_000)


async def test_a_receiver_that_raises_is_logged_and_the_next_is_served(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    channel, receiver = opened(node)
    node.engine.consuming.consume(channel, "q", node.now())

    def fail(delivery: Delivery) -> None:
        raise ZeroDivisionError

    receiver.on_delivery = fail
    publish(node, channel, b"1", b"2")
    await node.drain()
    assert [kind for kind, *_ in receiver.heard] == ["deliver", "deliver", "confirm"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


async def test_a_receiver_that_raises_what_is_no_exception_holds_nothing_up(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.consuming.consume(channel, "q", node.now())
    raised: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: raised.append(context["exception"]))

    def cancel(delivery: Delivery) -> None:
        raise asyncio.CancelledError

    receiver.on_delivery = cancel
    publish(node, channel, b"1", b"2")
    async with asyncio.timeout(10.0):
        await node.drain()
    assert [kind for kind, *_ in receiver.heard] == ["deliver", "deliver", "confirm"]
    assert [type(error) for error in raised] == [asyncio.CancelledError] * 2


async def test_a_closed_channel_hears_nothing_of_what_was_under_way(node: Node) -> None:
    channel, receiver = opened(node)
    node.engine.consuming.consume(channel, "q", node.now())
    publish(node, channel, b"1")
    node.close_channel(channel)
    await node.drain()
    assert receiver.heard == []
    assert node.stats().queues[0].ready == 1


async def test_a_delivery_times_out_by_the_nodes_own_timer() -> None:
    node = Node(settings=EngineSettings(message_timeout=0.02))
    channel, receiver = opened(node)
    tag = node.engine.consuming.consume(channel, "q", node.now())
    publish(node, channel, b"1")
    await eventually(lambda: receiver.heard.count(("deliver", b"1")) >= 2)
    assert ("timed out", tag, 1) in receiver.heard
    await node.close()


async def test_the_timer_is_set_only_while_something_is_due(node: Node, clock: ManualClock) -> None:
    channel, _ = opened(node)
    publish(node, channel, b"1")
    await node.drain()
    assert node.scanner.timer_at is None
    node.engine.consuming.get(channel, "q", node.now())
    node.wake()
    await node.drain()
    assert node.scanner.timer_at is not None
    node.engine.consuming.ack(channel, 1, node.now())
    node.wake()
    await node.drain()
    assert node.scanner.timer_at is None


async def test_an_earlier_deadline_moves_the_timer(node: Node, clock: ManualClock) -> None:
    channel, _ = opened(node)
    publish(node, channel, b"1")
    node.engine.consuming.get(channel, "q", node.now())
    await node.drain()
    assert node.scanner.timer_at == clock.now() + 60.0
    publish(node, channel, b"2", expiration="1000")
    await node.drain()
    assert node.scanner.timer_at == clock.now() + 1.0
    clock.advance(1.0)
    node.tick()
    assert node.stats().queues[0].drop_count == 1


# --------------------------------------------------------------------- the store


async def test_a_persistent_message_is_confirmed_only_after_its_commit() -> None:
    store = SlowStore()
    node = Node(store=store)
    channel, receiver = opened(node)
    await store.settle(node)
    node.engine.consuming.consume(channel, "q", node.now())
    message = a_message(delivery_mode=PERSISTENT)
    node.engine.publishing.publish(channel, message, node.now())
    node.wake()
    await eventually(lambda: store.waiting)
    assert store.records == [
        Append("/", "q", 1 << COPY_BITS, message, 1),
        Delivered(1 << COPY_BITS, 1),
    ]
    assert receiver.heard == [("deliver", b"hello")]
    store.finish()
    assert receiver.heard[1:] == [("confirm", 1, 1, True)]
    node.engine.consuming.ack(channel, 1, node.now())
    node.wake()
    await eventually(lambda: store.waiting)
    assert store.records[-1:] == [Settled("/", "q", 1 << COPY_BITS)]
    store.finish()
    await node.close()
    assert store.is_closed


async def test_what_was_delivered_is_sent_before_its_commit_begins() -> None:
    store = SlowStore()
    node = Node(store=store)
    channel, receiver = opened(node)
    await store.settle(node)
    node.engine.consuming.consume(channel, "q", node.now())
    begun: list[int] = []
    sent = lambda: begun.append(len(store.waiting))  # noqa: E731
    receiver.on_delivery = lambda delivery: node.call_after_run(sent)
    publish(node, channel, b"x", delivery_mode=PERSISTENT)
    await eventually(lambda: store.waiting)
    assert begun == [0]
    receiver.on_delivery = lambda delivery: None
    node.call_after_run(sent)
    await eventually(lambda: len(begun) == 2)
    store.finish()
    await node.close()


async def test_single_acks_that_nobody_waits_for_are_committed_together() -> None:
    store = SlowStore()
    node = Node(store=store)
    channel, _ = opened(node)
    publish(node, channel, *[b"x"] * 20, delivery_mode=PERSISTENT)
    node.engine.consuming.consume(channel, "q", node.now())
    await store.settle(node)
    for tag in range(1, 21):
        node.commands.ack(channel, tag)
        await asyncio.sleep(0)  # another turn of the event loop
    settled = [record for record in store.records if isinstance(record, Settled)]
    assert len(settled) >= 19, "written at once"
    await eventually(lambda: store.waiting)
    assert len(store.waiting) < 5
    store.finish()
    await node.close()


async def test_confirms_stay_in_order_behind_a_commit_under_way() -> None:
    store = SlowStore()
    node = Node(store=store)
    channel, receiver = opened(node)
    publish(node, channel, b"persistent", delivery_mode=PERSISTENT)
    await eventually(lambda: len(store.waiting) == 1)
    publish(node, channel, b"transient")
    await eventually(lambda: len(store.waiting) == 2)
    assert receiver.heard == []
    store.finish()
    assert receiver.heard == [("confirm", 1, 1, True), ("confirm", 2, 2, True)]
    await node.close()


async def test_transient_messages_and_transient_queues_make_no_records() -> None:
    store = SlowStore()
    node = Node(store=store)
    channel, receiver = opened(node)
    node.engine.topology.declare_queue(channel, "t", node.now(), durable=False)
    await store.settle(node)
    publish(node, channel, b"1")
    publish(node, channel, b"2", routing_key="t", delivery_mode=PERSISTENT)
    await node.drain()
    assert (store.records, receiver.heard) == ([], [("confirm", 1, 2, True)])
    await node.close()


async def test_a_failing_store_stops_the_node_loudly_and_confirms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SlowStore()
    node = Node(store=store)
    receiver, connection_ear = RecordingReceiver(), RecordingReceiver()
    channel = node.open_channel(node.open_connection("/", connection_ear), receiver, confirm=True)
    node.engine.topology.declare_queue(channel, "q", node.now())
    publish(node, channel, b"1", delivery_mode=PERSISTENT)
    await eventually(lambda: store.waiting)
    store.finish(StoreError("x.db", "disk full"))
    assert receiver.heard == []
    assert connection_ear.heard == [("closed", 541)]
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    assert "failed" in repr(node)
    with pytest.raises(StoreError, match="disk full"):
        node.open_connection("/", RecordingReceiver())
    await node.close()


# --------------------------------------------------------------------- the end


async def test_close_finishes_what_is_due_and_closes_every_connection() -> None:
    node = Node("n")
    receiver, connection_ear = RecordingReceiver(), RecordingReceiver()
    channel = node.open_channel(node.open_connection("/", connection_ear), receiver, confirm=True)
    node.engine.topology.declare_queue(channel, "q", node.now())
    publish(node, channel, b"1")
    await node.close()
    await node.close()
    assert (receiver.heard, connection_ear.heard) == ([("confirm", 1, 1, True)], [("closed", 320)])
    assert not node.is_open
    assert repr(node).startswith("<Node 'n' closed ")
    with pytest.raises(BrokerClosedError):
        node.open_connection("/", RecordingReceiver())


async def test_stats_are_a_snapshot(node: Node) -> None:
    channel, _ = opened(node)
    before = node.stats()
    publish(node, channel, b"1")
    assert (before.queues[0].ready, node.stats().queues[0].ready) == (0, 1)
    assert (before.connections, before.channels, before.late_settles) == (1, 1, 0)


async def test_get_tells_how_many_are_left_ready(node: Node) -> None:
    channel, _ = opened(node)
    publish(node, channel, b"1", b"2", b"3")
    counts = []
    while (got := node.commands.get(channel, "q", no_ack=True)) is not None:
        counts.append((got[0].body, got[1]))
    assert counts == [(b"1", 2), (b"2", 1), (b"3", 0)]


async def test_basic_recover_gives_back_all_that_the_channel_has_in_flight(node: Node) -> None:
    channel, _ = opened(node)
    publish(node, channel, b"1", b"2")
    for _ in range(2):
        node.commands.get(channel, "q", no_ack=False)
    node.commands.basic_recover(channel, requeue=True)
    got = node.commands.get(channel, "q", no_ack=True)
    assert got is not None
    assert (got[0].body, got[0].redelivered, got[1]) == (b"1", True, 1)


async def test_a_rolled_back_publish_is_forgotten_and_a_committed_one_arrives(node: Node) -> None:
    channel, _ = opened(node)
    other = node.open_channel(
        node.open_connection("/", RecordingReceiver()), RecordingReceiver(), confirm=False
    )
    node.commands.tx_select(other)
    publish(node, other, b"forgotten")
    node.commands.tx_rollback(other)
    publish(node, other, b"kept")
    assert node.commands.check_queue(channel, "q").message_count == 0
    node.commands.tx_commit(other)
    got = node.commands.get(channel, "q", no_ack=True)
    assert got is not None
    assert (got[0].body, got[1]) == (b"kept", 0)


async def test_a_servers_own_refusal_is_reported_behind_the_confirms_before_it(node: Node) -> None:
    channel, receiver = opened(node)
    publish(node, channel, b"1")
    node.commands.refuse(channel, ReplyError(404, "NOT_FOUND - no previously declared queue"))
    await node.drain()
    assert receiver.heard == [("confirm", 1, 1, True), ("closed", 404)]


async def test_nothing_is_delivered_to_a_channel_whose_flow_is_stopped(node: Node) -> None:
    channel, receiver = opened(node)
    other, other_receiver = opened(node)
    for each in (channel, other):
        node.commands.consume(each, "q", no_ack=True)
    node.commands.flow(channel, active=False)
    publish(node, other, b"1", b"2")
    await node.drain()
    assert [delivery.body for delivery in other_receiver.deliveries] == [b"1", b"2"]
    node.commands.flow(other, active=False)
    publish(node, other, b"3")
    await node.drain()
    assert not receiver.deliveries
    node.commands.flow(channel, active=True)
    await node.drain()
    assert [delivery.body for delivery in receiver.deliveries] == [b"3"]


async def test_a_consumer_started_while_the_flow_is_stopped_waits_too(node: Node) -> None:
    channel, receiver = opened(node)
    node.commands.flow(channel, active=False)
    node.commands.consume(channel, "q", no_ack=False)
    publish(node, channel, b"1")
    await node.drain()
    assert not receiver.deliveries
    node.commands.flow(channel, active=True)
    await node.drain()
    assert [delivery.body for delivery in receiver.deliveries] == [b"1"]


async def test_large_messages_are_delivered_in_steps_that_a_stop_may_come_between(
    node: Node,
) -> None:
    channel, receiver = opened(node)
    publish(node, channel, *[bytes(1024 * 1024)] * 100)
    node.commands.consume(channel, "q", no_ack=True)
    receiver.on_delivery = lambda _: node.commands.flow(channel, active=False)
    await node.drain()
    await node.drain()
    assert 0 < len(receiver.deliveries) < 30


async def test_publishers_are_blocked_until_the_last_alarm_is_over(node: Node) -> None:
    connection = RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", connection), RecordingReceiver(), confirm=False
    )
    node.commands.declare_queue(channel, "q")
    node.set_alarm("disk", True)
    node.set_alarm("file descriptors", True)
    assert not connection.heard
    for _ in range(2):
        node.commands.publish(channel, [a_message()])
    assert connection.heard == [("blocked", "low on disk & file descriptors")]
    node.set_alarm("disk", False)
    await node.drain()
    assert len(connection.heard) == 1
    node.set_alarm("file descriptors", False)
    await eventually(lambda: connection.heard[1:] == [("unblocked",)])


async def test_a_vhost_that_is_not_there_is_refused_unless_it_may_be_created(node: Node) -> None:
    with pytest.raises(ReplyError, match="530 NOT_ALLOWED - vhost v not found"):
        node.open_connection("v", RecordingReceiver(), create=False)
    node.administration.add_vhost("v")
    assert node.open_connection("v", RecordingReceiver(), create=False)
