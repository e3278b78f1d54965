"""How many messages are handled between two turns of the event loop, counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_client.core.settings import EngineSettings
from broker_client.message import PERSISTENT
from broker_client.node.node import Node
from broker_client.store.base import Store
from broker_client.store.memory import MemoryStore
from broker_client.store.writer import SqliteStore
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.eventually import eventually
from tests.support.receivers import RecordingReceiver

MANY = 3_000
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


class Place:
    """A node with a queue of many messages, and a channel that may have them in flight."""

    def __init__(self, node: Node, clock: ManualClock) -> None:
        self.node, self.clock = node, clock
        receiver = RecordingReceiver()
        self.connection = node.open_connection("/", receiver)
        self.channel = node.open_channel(self.connection, receiver, confirm=False)
        self.other = node.open_connection("/", receiver)
        self.publisher = node.open_channel(self.other, receiver, confirm=False)

    async def fill(self, *, taken: bool, delay: int | None, arguments: dict[str, object]) -> None:
        commands = self.node.commands
        commands.declare_queue(self.publisher, "dead", durable=True)
        commands.declare_queue(self.publisher, "q", durable=True, arguments=arguments)
        headers = None if delay is None else {"x-delay": delay}
        message = a_message(delivery_mode=PERSISTENT, headers=headers)
        commands.publish(self.publisher, [message] * MANY)
        if taken:
            commands.consume(self.channel, "q", consumer_tag="c")
            await eventually(lambda: self.figure("in_flight") == MANY)
            commands.cancel(self.channel, "c")
        await self.node.drain()

    def figure(self, name: str) -> int:
        found = [queue for queue in self.node.engine.stats() if queue.name == "q"]
        return int(getattr(found[0], name)) if found else 0

    def handled(self) -> int:
        """A number that rises with each step in the life of a message."""
        vhost = self.node.engine.state.vhosts["/"]
        done = 0
        for queue in vhost.queues.values():
            done += queue.delivered + queue.acked + 2 * queue.requeued + queue.dropped
            done += queue.dead_lettered + queue.purged + queue.enqueued - len(queue.deferred)
        return done


def nack(place: Place, *, requeue: bool, delay: float | None = None) -> None:
    place.node.commands.nack(place.channel, 0, requeue=requeue, multiple=True, delay=delay)


def commit(place: Place) -> None:
    commands = place.node.commands
    commands.tx_select(place.channel)
    commands.publish(place.channel, [a_message(delivery_mode=PERSISTENT)] * MANY)
    commands.ack(place.channel, 0, multiple=True)
    commands.tx_commit(place.channel)


def pass_time(place: Place) -> None:
    place.clock.advance(60.0)


def shorten(place: Place) -> None:
    place.node.administration.set_policy("short", "^q$", {"max-length": 10})


Act = Callable[[Place], object]
ACTS: dict[str, tuple[Act, int]] = {
    "ack": (lambda place: place.node.commands.ack(place.channel, 0, multiple=True), 600),
    "requeue": (lambda place: nack(place, requeue=True), 1_500),
    "defer": (lambda place: nack(place, requeue=True, delay=9.0), 600),
    "reject": (lambda place: nack(place, requeue=False), 600),
    "recover": (
        lambda place: place.node.commands.basic_recover(place.channel, requeue=True),
        1_500,
    ),
    "close": (lambda place: place.node.close_channel(place.channel), 1_500),
    "disconnect": (lambda place: place.node.close_connection(place.connection), 1_500),
    "commit": (commit, 600),
    "purge in flight": (lambda place: place.node.purge("q", in_flight=True), 1_500),
    "reject, dead letters": (lambda place: nack(place, requeue=False), 100),
    "shorten": (shorten, 300),
    "shorten, dead letters": (shorten, 100),
    "expire": (pass_time, 300),
    "expire, dead letters": (pass_time, 100),
    "become due": (pass_time, 600),
    "run deferred": (lambda place: place.node.run_deferred("q"), 600),
}
NOT_TAKEN = ("shorten", "expire", "become due", "run deferred")


@pytest.mark.parametrize("keeps", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("name", ACTS)
async def test_few_messages_are_handled_between_two_turns(
    name: str, keeps: bool, tmp_path: Path
) -> None:
    act, most = ACTS[name]
    clock = ManualClock(1_000.0)
    store: Store = SqliteStore(str(tmp_path / "node.db"), clock) if keeps else MemoryStore()
    node = Node(store=store, clock=clock, settings=EngineSettings(message_timeout=0.0))
    await node.recover()
    try:
        place = Place(node, clock)
        arguments: dict[str, object] = dict(DEAD) if "dead letters" in name else {}
        if name.startswith("expire"):
            arguments["x-message-ttl"] = 50_000
        deferred = {"become due": 50_000, "run deferred": 900_000}.get(name)
        taken = not name.startswith(NOT_TAKEN)
        await place.fill(taken=taken, delay=deferred, arguments=arguments)
        steps = await handled_in_each_turn(place, lambda: act(place))
        assert sum(steps) >= MANY - 10
        assert max(steps) <= most, steps
        node.engine.check_conservation()
    finally:
        await node.close()


async def handled_in_each_turn(place: Place, act: Callable[[], object]) -> list[int]:
    """What `act` brings about, by the callbacks of the event loop in which it happens."""
    loop, steps, last = asyncio.get_running_loop(), [0], place.handled()

    def turn() -> None:
        nonlocal last
        now = place.handled()
        steps.append(now - last)
        last = now
        if going:
            loop.call_soon(turn)

    going = True
    act()
    loop.call_soon(turn)
    engine, now = place.node.engine, place.clock.now()
    while engine.has_more_to_do or engine.scan(now, 1)[1]:  # as the node's scanner does
        place.node.wake()
        await asyncio.sleep(0)
    await place.node.drain()
    going = False
    await asyncio.sleep(0)
    return steps
