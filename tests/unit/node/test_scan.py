"""The scan loop: awake only while something is due, and fair while much is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from broker_client.core.scan import ScanSettings
from broker_client.node.node import Node
from broker_client.runtime.clock import Clock
from tests.support.builders import a_message
from tests.support.receivers import RecordingReceiver
from tests.support.warp import WarpLoop
from tests.unit.node.test_node import publish

loop_factory = WarpLoop


class LoopClock:
    """The time of the event loop, in which nobody waits."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def a_clock() -> Clock:
    return LoopClock()


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    made: list[Node] = []
    yield made
    for node in made:
        node.stop()


def a_node(nodes: list[Node], **settings: Any) -> tuple[Node, int, RecordingReceiver]:
    node = Node("scanned", clock=a_clock(), scan=ScanSettings(**settings))
    nodes.append(node)
    receiver = RecordingReceiver()
    channel = node.open_channel(
        node.open_connection("/", RecordingReceiver()), receiver, confirm=False
    )
    return node, channel, receiver


def queues(node: Node, channel: int, count: int) -> None:
    for n in range(count):
        node.engine.topology.declare_queue(channel, f"q{n}", node.now())


async def test_an_idle_node_is_never_woken(nodes: list[Node]) -> None:
    """Ten minutes with queues, messages and consumers, and nothing due."""
    node, channel, _ = a_node(nodes)
    queues(node, channel, 50)
    publish(node, channel, b"1", routing_key="q1")
    node.engine.consuming.consume(channel, "q2", node.now())
    await asyncio.sleep(600.0)
    assert (node.scanner.looks, node.scanner.timer_at) == (0, None)


async def test_six_hundred_queues_with_one_due_time_are_all_served_at_once(
    nodes: list[Node],
) -> None:
    """Within 100 ms; here, at the very time."""
    node, channel, receiver = a_node(nodes)
    queues(node, channel, 600)
    for n in range(600):
        node.engine.consuming.consume(channel, f"q{n}", node.now())
        message = a_message(f"q{n}", headers={"x-delay": 1_000})
        node.engine.publishing.publish(channel, message, node.now())
    node.wake()
    await asyncio.sleep(0.999)
    assert receiver.heard == []
    await asyncio.sleep(0.002)
    assert len(receiver.heard) == 600
    assert node.scanner.looks == 1


async def test_between_two_slices_of_a_selection_the_loop_is_free(nodes: list[Node]) -> None:
    """as many queues a turn as there are workers."""
    node, channel, _ = a_node(nodes)
    queues(node, channel, 40)
    for n in range(40):
        message = a_message(f"q{n}", headers={"x-delay": 1_000})
        node.engine.publishing.publish(channel, message, node.now())
    node.wake()
    ready = []
    await asyncio.sleep(1.0)
    for _ in range(60):
        ready.append(sum(stats.ready for stats in node.stats().queues))
        await asyncio.sleep(0)
    steps = [after - before for before, after in pairwise(ready)]
    assert max(steps) == 4
    assert ready[-1] == 40


async def test_many_deadlines_in_one_interval_share_their_wake_ups(nodes: list[Node]) -> None:
    """a thousand deadlines a second, and no more than 21 looks in 100 ms."""
    node, channel, receiver = a_node(nodes)
    queues(node, channel, 1)
    node.engine.consuming.consume(channel, "q0", node.now())
    for n in range(1, 1_001):
        node.engine.publishing.publish(channel, a_message("q0", headers={"x-delay": n}), node.now())
    node.wake()
    began = node.now()
    late = []
    receiver.on_delivery = lambda delivery: late.append(
        node.now() - began + delivery.properties.headers["x-delay"] / 1000  # type: ignore[index]
    )
    await asyncio.sleep(1.2)
    assert len(late) == 1_000
    assert max(late) <= 0.1 + 1e-6
    assert node.scanner.looks <= 210


async def test_few_deadlines_are_met_exactly(nodes: list[Node]) -> None:
    node, channel, receiver = a_node(nodes)
    queues(node, channel, 1)
    node.engine.consuming.consume(channel, "q0", node.now())
    began = node.now()
    times = []
    receiver.on_delivery = lambda delivery: times.append(round(node.now() - began, 6))
    for delay in (13, 29, 31):
        node.engine.publishing.publish(
            channel, a_message("q0", headers={"x-delay": delay}), node.now()
        )
    node.wake()
    await asyncio.sleep(1.0)
    assert times == [0.013, 0.029, 0.031]


async def test_never_dirty_enough_waits_for_the_interval_between_selections(
    nodes: list[Node],
) -> None:
    """with dirty_percent 1.0 nothing is ever repeated at once."""
    node, channel, _ = a_node(nodes, dirty_percent=1.0, interval=0.5)
    queues(node, channel, 50)
    for n in range(50):
        message = a_message(f"q{n}", headers={"x-delay": 1_000})
        node.engine.publishing.publish(channel, message, node.now())
    node.wake()
    ready = []
    for wait in (1.1, 0.5, 0.5):
        await asyncio.sleep(wait)
        ready.append(sum(stats.ready for stats in node.stats().queues))
    assert ready == [20, 40, 50]


async def test_a_closed_node_scans_no_more(nodes: list[Node]) -> None:
    node, channel, _ = a_node(nodes)
    queues(node, channel, 1)
    node.engine.publishing.publish(channel, a_message("q0", headers={"x-delay": 1_000}), node.now())
    node.wake()
    await node.drain()
    assert node.scanner.timer_at is not None
    node.stop()
    assert node.scanner.timer_at is None
    await asyncio.sleep(5.0)
    assert node.scanner.looks == 0


async def test_what_came_due_while_the_machine_was_suspended_is_done_soon_after(
    nodes: list[Node],
) -> None:
    """The event loop's clock stood still meanwhile, and its timer has an hour to go."""

    class Resumed(LoopClock):
        suspended = 0.0

        def now(self) -> float:
            return super().now() + self.suspended

    clock = Resumed()
    node = Node("suspended", clock=clock)
    nodes.append(node)
    receiver = RecordingReceiver()
    connection = node.open_connection("/", RecordingReceiver())
    channel = node.open_channel(connection, receiver, confirm=False)
    queues(node, channel, 1)
    node.commands.consume(channel, "q0")
    node.commands.publish(channel, [a_message("q0", headers={"x-delay": 3_600_000})])
    await asyncio.sleep(1.0)
    clock.suspended = 7_200.0
    await asyncio.sleep(5.1)
    assert [kind for kind, *_ in receiver.heard] == ["deliver"]
