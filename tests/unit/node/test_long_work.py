"""Long commands of a node: others get their turns, and the answer comes when all is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.eventually import eventually
from tests.support.policies import effective_policy
from tests.support.receivers import RecordingReceiver


class Filled:
    """A node and a channel of it, with messages in one queue or one each in many."""

    def __init__(self, node: Node) -> None:
        self.node = node
        receiver = RecordingReceiver()
        self.connection = node.open_connection("/", receiver)
        self.channel = node.open_channel(self.connection, receiver, confirm=False)

    def fill(self, messages: int) -> None:
        self.node.commands.declare_queue(self.channel, "q")
        batch = [a_message(delivery_mode=PERSISTENT) for _ in range(messages)]
        self.node.commands.publish(self.channel, batch)

    def declare(self, queues: int) -> None:
        for number in range(queues):
            self.node.commands.declare_queue(self.channel, f"q{number}")


@pytest.fixture
async def filled() -> AsyncIterator[Filled]:
    node = Node()
    yield Filled(node)
    await node.close()


async def turns_until_answered(node: Node) -> int:
    """How often another callback of the loop ran before everything was carried out."""
    loop, turns, counts = asyncio.get_running_loop(), 0, True

    def turn() -> None:
        nonlocal turns
        if counts:
            turns += 1
            loop.call_soon(turn)

    loop.call_soon(turn)
    await node.drain()
    counts = False
    return turns


def _delete_vhost(each: Filled) -> None:
    each.node.close_connection(each.connection)
    each.node.administration.delete_vhost("/")


LONG: dict[str, Callable[[Filled], object]] = {
    "purge": lambda each: each.node.commands.purge_queue(each.channel, "q"),
    "purge by state": lambda each: each.node.purge("q", deferred=True, in_flight=True),
    "delete queue": lambda each: each.node.commands.delete_queue(
        each.channel, "q", if_unused=False, if_empty=False
    ),
    "delete vhost": _delete_vhost,
}


@pytest.mark.parametrize("name", LONG)
async def test_others_have_their_turns_while_many_messages_are_dropped(
    filled: Filled, name: str
) -> None:
    filled.fill(6_000)
    await filled.node.drain()
    LONG[name](filled)
    assert await turns_until_answered(filled.node) >= 5
    assert filled.node.engine.state.paging.resident_bytes == 0


async def test_others_have_their_turns_while_a_policy_changes_many_queues(filled: Filled) -> None:
    filled.declare(600)
    await filled.node.drain()
    filled.node.administration.set_policy("all", ".*", {"max-length": 5})
    assert await turns_until_answered(filled.node) >= 5
    assert effective_policy(filled.node, "q599").policy == "all"
    assert filled.node.administration.delete_policy("all")
    assert await turns_until_answered(filled.node) >= 5
    assert effective_policy(filled.node, "q599").policy is None


async def test_answers_keep_their_order_behind_long_work(filled: Filled) -> None:
    """What is asked when the work has ended must not be answered before what waits for it."""
    filled.fill(3_000)
    await filled.node.drain()
    answered: list[str] = []
    node, loop = filled.node, asyncio.get_running_loop()

    def ask_when_done() -> None:
        if node.engine.long_work.is_pending:
            loop.call_soon(ask_when_done)
        else:
            node.call_after_effects(lambda: answered.append("second"))

    node.commands.purge_queue(filled.channel, "q")
    node.call_after_effects(lambda: answered.append("first"))
    ask_when_done()
    await eventually(lambda: len(answered) == 2)
    assert answered == ["first", "second"]


async def test_a_purge_that_was_answered_stays_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "node.db")
    node = Node(store=SqliteStore(path))
    await node.recover()
    filled = Filled(node)
    filled.fill(3_000)
    await node.drain()
    node.commands.purge_queue(filled.channel, "q")
    await node.drain()
    node.stop()  # nothing more is written
    await node.store.close()
    node = Node(store=SqliteStore(path))
    await node.recover()
    try:
        assert node.stats().queues[0].ready == 0
    finally:
        await node.close()


async def test_a_node_that_is_stopped_meanwhile_calls_who_waits(filled: Filled) -> None:
    filled.fill(5_000)
    await filled.node.drain()
    filled.node.commands.purge_queue(filled.channel, "q")
    waiting = asyncio.create_task(filled.node.drain())
    await asyncio.sleep(0)
    filled.node.stop()
    async with asyncio.timeout(5.0):
        await waiting
