"""A node with a file: what is there after it was closed, died, or lost its disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_client.amqp.properties import encode_properties
from broker_client.core.exchange import Destination
from broker_client.core.settings import EngineSettings
from broker_client.core.settle_results import Done, NodeClosed
from broker_client.errors import (
    InvalidNameError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from broker_client.message import PERSISTENT, TRANSIENT, Delivery
from broker_client.node.node import Node
from broker_client.store.maintenance import check, compact
from broker_client.store.statistics import read_stats
from broker_client.store.writer import SqliteStore
from broker_client.transport.embedded.channel import EmbeddedChannel
from broker_client.transport.embedded.nodes import EmbeddedNodes
from tests.support.builders import a_message
from tests.support.clock import ManualClock
from tests.support.eventually import eventually
from tests.support.files import rows
from tests.support.receivers import RecordingReceiver


class FileNode:
    """A node, and a channel on it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.receiver = RecordingReceiver()
        self.channel = node.open_channel(
            node.open_connection("/", self.receiver), self.receiver, confirm=True
        )
        self.published = 0

    def queue(self, name: str = "q", **arguments: object) -> None:
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.node.engine.topology.declare_queue(
            self.channel, name, self.node.now(), arguments=named
        )

    def publish(self, *bodies: bytes, to: str = "q", **properties: Any) -> None:
        properties = {"delivery_mode": PERSISTENT, **properties}
        for body in bodies:
            message = a_message(to, body, **properties)
            self.node.engine.publishing.publish(self.channel, message, self.node.now())
            self.published += 1
        self.node.wake()

    def take(self, queue: str = "q") -> Delivery | None:
        got = self.node.engine.consuming.get(self.channel, queue, self.node.now())
        self.node.wake()
        return None if got is None else got[0]

    def drain(self, queue: str = "q") -> list[tuple[bytes, bool]]:
        """Body and redelivered flag of all that is ready."""
        taken = []
        while (delivery := self.take(queue)) is not None:
            taken.append((delivery.body, delivery.redelivered))
        return taken


Open = Callable[..., AbstractAsyncContextManager[FileNode]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(path: Path, clock: ManualClock) -> Open:
    @asynccontextmanager
    async def open_node(**settings: Any) -> AsyncIterator[FileNode]:
        store = SqliteStore(str(path))
        node = Node("n", store=store, clock=clock, settings=EngineSettings(**settings))
        await node.recover()
        try:
            yield FileNode(node)
        finally:
            await node.close()

    return open_node


# --------------------------------------------------------------------- restart


async def test_ready_in_flight_and_deferred_come_back_in_their_places(
    opened: Open, clock: ManualClock
) -> None:
    """nsq loses the due time; here it is kept, and so are the attempts."""
    async with opened() as harness:
        harness.queue()
        harness.publish(b"1", b"2", b"3", b"4")
        first, second = harness.take(), harness.take()
        assert first is not None
        assert second is not None
        harness.node.requeue(harness.channel, first.delivery_tag, delay=30.0)
    async with opened() as harness:
        stats = harness.node.stats().queues[0]
        assert (stats.ready, stats.in_flight, stats.deferred) == (3, 0, 1)
        assert harness.drain() == [(b"2", True), (b"3", False), (b"4", False)]
        clock.advance(29.9)
        harness.node.tick()
        assert harness.take() is None
        clock.advance(0.2)
        harness.node.tick()
        assert harness.drain() == [(b"1", True)]


async def test_what_was_due_while_it_was_away_is_done_at_the_start(
    opened: Open, clock: ManualClock
) -> None:
    """due times are times of the clock, not of the process."""
    async with opened() as harness:
        harness.queue("dead")
        harness.queue(
            "timed", message_ttl=5000, dead_letter_exchange="", dead_letter_routing_key="dead"
        )
        harness.queue()
        harness.publish(b"old", to="timed")
        harness.publish(b"later", headers={"x-delay": 5000})
    clock.advance(60.0)
    async with opened() as harness:
        assert harness.drain() == [(b"later", False)]
        assert harness.drain("dead") == [(b"old", False)]


async def test_transient_messages_and_exclusive_queues_do_not_come_back(opened: Open) -> None:
    """what is not meant to stay is never on disk."""
    async with opened() as harness:
        harness.queue()
        harness.node.engine.topology.declare_queue(
            harness.channel, "mine", harness.node.now(), exclusive=True
        )
        harness.node.engine.topology.declare_queue(
            harness.channel, "brief", harness.node.now(), durable=False
        )
        harness.publish(b"1", delivery_mode=1)
        harness.publish(b"2")
        harness.publish(b"3", to="mine")
        harness.publish(b"4", to="brief")
    async with opened() as harness:
        assert [queue.name for queue in harness.node.stats().queues] == ["q"]
        assert harness.drain() == [(b"2", False)]


async def test_the_delivery_limit_counts_over_a_restart(opened: Open) -> None:
    """The counter is kept; a first delivery has no count; death comes with the failure."""
    async with opened() as harness:
        harness.queue("dead")
        harness.queue(delivery_limit=1, dead_letter_exchange="", dead_letter_routing_key="dead")
        harness.publish(b"1")
        first = harness.take()
        assert first is not None
        assert "x-delivery-count" not in (first.properties.headers or {})
        harness.node.requeue(harness.channel, first.delivery_tag)
    async with opened() as harness:
        second = harness.take()
        assert second is not None
        assert second.attempts == 2
        harness.node.requeue(harness.channel, second.delivery_tag)
        assert harness.take() is None
        assert harness.drain("dead") == [(b"1", False)]


async def test_a_paused_queue_is_paused_after_a_restart_until_it_is_resumed(opened: Open) -> None:
    async with opened() as harness:
        harness.queue("q")
        harness.queue("other")
        harness.publish(b"1")
        harness.node.pause_queue("q")
    for _ in range(2):  # also when nothing was said about it meanwhile
        async with opened() as harness:
            paused = {queue.name: queue.paused for queue in harness.node.stats().queues}
            assert paused == {"q": True, "other": False}
    async with opened() as harness:
        harness.node.resume_queue("q")
    async with opened() as harness:
        assert not any(queue.paused for queue in harness.node.stats().queues)
        assert harness.drain() == [(b"1", False)]


async def test_a_queue_declared_anew_is_not_paused(opened: Open) -> None:
    async with opened() as harness:
        harness.queue("q")
        harness.node.pause_queue("q")
        harness.node.engine.topology.delete_queue(harness.channel, "q")
        harness.queue("q")
    async with opened() as harness:
        assert not any(queue.paused for queue in harness.node.stats().queues)


async def test_a_name_the_broker_gave_is_not_given_again_after_a_restart(opened: Open) -> None:
    async with opened() as harness:
        first = harness.node.engine.topology.declare_queue(
            harness.channel, "", harness.node.now()
        ).name
    async with opened() as harness:
        second = harness.node.engine.topology.declare_queue(
            harness.channel, "", harness.node.now()
        ).name
        assert first != second
        assert {queue.name for queue in harness.node.stats().queues} == {first, second}


async def test_close_during_settlements_keeps_exactly_what_was_not_finished(
    opened: Open,
) -> None:
    """Ready, in flight and deferred; fifty tasks finish and requeue while it closes."""
    finished = 0
    async with opened() as harness:
        harness.queue()
        harness.publish(*(b"%d" % number for number in range(30)))
        tags = [delivery.delivery_tag for _ in range(20) if (delivery := harness.take())]
        for tag in tags[:10]:
            assert harness.node.requeue(harness.channel, tag, delay=60.0)

        async def settle(number: int) -> None:
            nonlocal finished
            for _ in range(number % 5):
                await asyncio.sleep(0)
            tag = tags[10 + number % 10]
            if number % 2:
                outcome = harness.node.finish(harness.channel, tag)
                finished += isinstance(outcome, Done)
            else:
                outcome = harness.node.requeue(harness.channel, tag)
            refused.append(isinstance(outcome, NodeClosed))

        refused: list[bool] = []
        tasks = [asyncio.create_task(settle(number)) for number in range(50)]
        await asyncio.sleep(0)
        await harness.node.close()
        await asyncio.gather(*tasks)
        assert any(refused)
    async with opened() as harness:
        harness.node.run_deferred("q")
        bodies = [body for body, _ in harness.drain()]
        assert len(bodies) == len(set(bodies)) == 30 - finished


async def test_what_was_delivered_and_not_finished_is_redelivered_after_a_death(
    path: Path, opened: Open
) -> None:
    """Five delivered, two finished, the process is gone."""
    program = """
import asyncio, os, sys
from broker_client.node.node import Node
from broker_client.store.maintenance import check, compact
from broker_client.store.statistics import read_stats
from broker_client.store.writer import SqliteStore
from tests.unit.node.test_node_file import FileNode

async def main():
    node = Node(store=SqliteStore(sys.argv[1]))
    await node.recover()
    harness = FileNode(node)
    harness.queue()
    harness.publish(*(b"%d" % number for number in range(6)))
    taken = [harness.take() for _ in range(5)]
    for delivery in taken[:2]:
        node.finish(harness.channel, delivery.delivery_tag)
    await node.drain()
    os._exit(0)

asyncio.run(main())
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(path)], check=True)
    async with opened() as harness:
        assert harness.drain() == [(b"2", True), (b"3", True), (b"4", True), (b"5", False)]


async def test_a_queue_that_is_deleted_or_purged_leaves_nothing_in_the_file(
    opened: Open, path: Path
) -> None:
    """closing keeps, deleting and purging do not."""
    async with opened() as harness:
        for name in ("deleted", "purged", "kept"):
            harness.queue(name)
            harness.publish(b"1", b"2", b"3", to=name)
        for name in ("deleted", "purged"):
            delivery = harness.take(name)
            assert delivery is not None
            assert harness.node.requeue(harness.channel, delivery.delivery_tag, delay=60.0)
        harness.node.engine.topology.delete_queue(harness.channel, "deleted")
        harness.node.purge("purged", deferred=True)
        harness.node.wake()
    assert rows(path, "SELECT name FROM queues ORDER BY name") == [("kept",), ("purged",)]
    assert rows(path, "SELECT count(*) FROM entries") == [(3,)]
    assert rows(path, "SELECT count(*) FROM messages") == [(3,)]


async def test_a_message_that_is_published_again_is_another_and_each_is_kept(opened: Open) -> None:
    """The very object: so it is when a channel dies before the confirm."""
    again = a_message("q", b"again", delivery_mode=PERSISTENT)
    async with opened() as harness:
        harness.queue()
        for times in (1, 2, 1):  # in one commit as well as in several
            for _ in range(times):
                harness.node.engine.publishing.publish(harness.channel, again, harness.node.now())
            harness.node.wake()
            await harness.node.drain()
        delivery = harness.take()
        assert delivery is not None
        harness.node.finish(harness.channel, delivery.delivery_tag)
        assert (harness.node.failure, harness.receiver.confirmed) == (None, 4)
    async with opened() as harness:
        assert harness.drain() == [(b"again", False)] * 3


# --------------------------------------------------------------------- memory


async def test_past_the_memory_limit_messages_are_on_disk_only_and_come_in_order(
    opened: Open,
) -> None:
    """never refused for their number, and still first in, first out."""
    bodies = [b"%04d" % number * 100 for number in range(2_000)]
    async with opened(memory_limit=20_000) as harness:
        harness.queue()
        for start in range(0, len(bodies), 100):
            harness.publish(*bodies[start : start + 100])
            await harness.node.drain()
        keeper = harness.node.engine.state.paging
        assert keeper.resident_bytes <= 20_000
        taken = []
        while (delivery := harness.take()) is not None:
            taken.append(delivery.body)
            harness.node.finish(harness.channel, delivery.delivery_tag)
            assert keeper.resident_bytes <= 20_000 + 300 * 400
        assert taken == bodies
        assert keeper.resident_bytes == 0


@pytest.mark.parametrize("durable", [True, False])
async def test_past_the_memory_limit_transient_messages_too_are_on_disk_until_the_restart(
    path: Path, opened: Open, durable: bool
) -> None:
    bodies = [b"%04d" % number * 100 for number in range(500)]
    async with opened(memory_limit=20_000) as harness:
        harness.node.engine.topology.declare_queue(
            harness.channel, "q", harness.node.now(), durable=durable
        )
        harness.publish(*bodies, delivery_mode=TRANSIENT)
        await harness.node.drain()
        keeper = harness.node.engine.state.paging
        assert keeper.resident_bytes <= 20_000
        assert rows(path, "SELECT count(*) FROM messages WHERE id < 0") == [(450,)]
        assert [body for body, _ in harness.drain()] == bodies
        harness.node.engine.close_channel(harness.channel, harness.node.now())  # all back, and lost
    async with opened() as harness:
        harness.queue()
        assert harness.drain() == []
        await harness.node.drain()
        assert rows(path, "SELECT count(*) FROM messages") == [(0,)]


@pytest.mark.parametrize("mode", [TRANSIENT, PERSISTENT])
async def test_a_length_limit_counts_what_is_on_disk_only_and_its_dead_letters_have_their_bodies(
    opened: Open, mode: int
) -> None:
    """first spilled, then too many."""
    async with opened(memory_limit=0) as harness:
        harness.queue("dead")
        harness.queue(max_length=2, dead_letter_exchange="", dead_letter_routing_key="dead")
        for body in (b"1", b"2", b"3", b"4"):
            harness.publish(body, delivery_mode=mode)
            await harness.node.drain()
        assert harness.node.engine.state.paging.resident_bytes == 0
        assert harness.drain() == [(b"3", False), (b"4", False)]
        assert harness.drain("dead") == [(b"1", False), (b"2", False)]


async def test_what_is_spilled_goes_from_the_disk_copy_by_copy_as_it_is_settled(
    path: Path, opened: Open
) -> None:
    async with opened(memory_limit=0) as harness:
        for name in ("a", "b", "gone"):
            harness.queue(name)
            harness.node.engine.topology.bind(
                harness.channel, Destination("queue", name), "amq.fanout", "", {}
            )
        message = a_message("", b"body", exchange="amq.fanout", delivery_mode=TRANSIENT)
        harness.node.engine.publishing.publish(harness.channel, message, harness.node.now())
        harness.node.wake()
        await harness.node.drain()
        assert rows(path, "SELECT count(*) FROM messages") == [(3,)]
        harness.node.engine.topology.delete_queue(harness.channel, "gone")
        delivery = harness.take("a")
        assert delivery is not None
        harness.node.finish(harness.channel, delivery.delivery_tag)
        await harness.node.drain()
        assert rows(path, "SELECT count(*) FROM messages") == [(1,)]
        assert harness.drain("b") == [(b"body", False)]


async def test_a_spilled_message_that_expires_is_a_dead_letter_with_its_body(
    opened: Open, clock: ManualClock
) -> None:
    async with opened(memory_limit=0) as harness:
        harness.queue("dead")
        harness.queue(message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
        harness.publish(b"1", b"2", delivery_mode=TRANSIENT, message_id="m")
        await harness.node.drain()
        clock.advance(2.0)
        harness.node.tick()
        await harness.node.drain()
        assert harness.drain("dead") == [(b"1", False), (b"2", False)]


async def test_check_and_statistics_count_what_is_kept_and_not_what_is_spilled(
    path: Path, opened: Open, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    async with opened(memory_limit=0) as harness:
        harness.queue()
        harness.publish(b"kept")
        harness.publish(b"spilled", delivery_mode=TRANSIENT)
        await harness.node.drain()
        assert read_stats(str(path)).messages == 1
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))  # as a crash would leave it
    report = check(str(copy))
    assert (report.problems, report.messages) == ((), 1)
    saved = compact(str(copy), drop_damaged=True)
    assert (saved.messages, saved.lost) == (1, 0)


async def test_a_message_left_to_the_store_is_there_before_its_commit(opened: Open) -> None:
    async with opened(memory_limit=0) as harness:
        harness.queue()
        await harness.node.drain()
        harness.publish(b"1", b"2")
        harness.node.call_after_effects(lambda: None)
        assert harness.drain() == [(b"1", False), (b"2", False)]


# --------------------------------------------------------------------- faults


async def test_a_full_disk_stops_the_node_and_what_was_confirmed_is_there(
    path: Path, opened: Open
) -> None:
    """no confirm without its commit."""
    program = """
import asyncio, json, resource, sys
from broker_client.node.node import Node
from broker_client.store.maintenance import check, compact
from broker_client.store.statistics import read_stats
from broker_client.store.writer import SqliteStore
from tests.unit.node.test_node_file import FileNode

async def main():
    node = Node(store=SqliteStore(sys.argv[1]))
    await node.recover()
    harness = FileNode(node)
    harness.queue()
    await node.drain()
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    for _ in range(1000):
        harness.publish(b"x" * 1000, b"y" * 1000)
        await node.drain()
        if node.failure:
            break
    error = node.failure
    told = [type(error).__name__, str(error), harness.receiver.confirmed, harness.published]
    await node.close()
    print(json.dumps([*told, harness.receiver.closed_with]))

asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kind, text, confirmed, published, closed_with = json.loads(done.stdout)
    assert kind in ("StoreFullError", "StoreError")
    assert str(path) in text
    assert 0 < confirmed < published
    assert [code for code, _ in closed_with][:1] == [541]
    assert "stops: store" in done.stderr
    async with opened() as harness:
        assert len(harness.drain()) == confirmed


async def test_a_full_file_is_reported_as_such_and_nothing_more_is_confirmed(opened: Open) -> None:
    async with opened() as harness:
        harness.queue()
        harness.publish(b"1")
        await harness.node.drain()
        store = harness.node.store
        assert isinstance(store, SqliteStore)
        connection = store._file.connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        harness.publish(b"x" * 100_000)
        await harness.node.drain()
        assert isinstance(harness.node.failure, StoreFullError)
        assert harness.receiver.confirmed == 1
        with pytest.raises(StoreFullError):
            harness.node.open_connection("/", harness.receiver)
        assert not harness.node.finish(harness.channel, 1)
    async with opened() as harness:
        assert harness.drain() == [(b"1", False)]


async def test_a_file_that_becomes_read_only_stops_the_node(opened: Open) -> None:
    async with opened() as harness:
        harness.queue()
        await harness.node.drain()
        store = harness.node.store
        assert isinstance(store, SqliteStore)
        store._file.connection.execute("PRAGMA query_only = 1")
        harness.publish(b"1")
        await harness.node.drain()
        assert isinstance(harness.node.failure, StoreReadOnlyError)
        assert harness.receiver.confirmed == 0


async def test_a_damaged_message_stops_the_node_when_its_turn_comes(
    path: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """told by its number, never given out, never silently skipped."""
    async with opened() as harness:
        harness.queue()
        harness.publish(*(b"%d" % number * 3000 for number in range(6)))
    rows(path, "UPDATE messages SET body = zeroblob(3000) WHERE id = 4")
    caplog.set_level(logging.CRITICAL)
    async with opened() as harness:
        engine, receiver = harness.node.engine, harness.receiver
        engine.consuming.consume(harness.channel, "q", harness.node.now())
        harness.node.wake()
        await eventually(lambda: receiver.closed_with)
        assert isinstance(harness.node.failure, StoreCorruptError)
        assert all(delivery.body for delivery in receiver.deliveries)
        assert receiver.closed_with[0][0] == 541
        assert "message 4 is damaged" in receiver.closed_with[0][1]
        assert "store check" in caplog.text
    left = rows(path, "SELECT count(*) FROM entries")
    assert left == [(6,)]


def torn(path: Path, page: int) -> None:
    """Spoil one page of the file."""
    data = bytearray(path.read_bytes())
    data[4096 * page : 4096 * (page + 1)] = b"\xff" * 4096
    path.write_bytes(data)


@pytest.mark.parametrize("page", [3, 8])
async def test_a_torn_page_is_an_error_at_the_start_or_at_the_message(
    path: Path, opened: Open, page: int
) -> None:
    async with opened() as harness:
        harness.queue()
        harness.publish(*(b"%d" % number * 3000 for number in range(9)))
    torn(path, page)

    async def use() -> None:
        async with opened() as harness:
            harness.drain()
            if harness.node.failure is not None:
                raise harness.node.failure

    with pytest.raises(StoreError, match=r"store .*node\.db"):
        await use()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM queues",
        "DELETE FROM vhosts",
        "UPDATE exchanges SET type = 'nonsense'",
        "UPDATE queues SET arguments = x'ffff'",
    ],
)
async def test_a_file_that_does_not_fit_together_is_refused(
    path: Path, opened: Open, statement: str
) -> None:
    async with opened() as harness:
        harness.queue()
        engine = harness.node.engine
        engine.topology.declare_exchange(harness.channel, "e", "topic")
        engine.topology.bind(harness.channel, Destination("queue", "q"), "e", "#", {})
        harness.publish(b"1")
    rows(path, statement)
    with pytest.raises(StoreCorruptError, match="store check"):
        async with opened():
            pass


async def test_message_that_cannot_be_decoded_is_delivered_as_such_and_blocks_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is right: it was written by a version that took what this one does not."""
    nested = b"\x01kF\x00\x00\x00\x00"
    for _ in range(490):
        nested = b"\x01kF" + len(nested).to_bytes(4, "big") + nested
    header = (60).to_bytes(2, "big") + bytes(10) + (0x2080).to_bytes(2, "big")
    bad = header + len(nested).to_bytes(4, "big") + nested + b"\x02id"
    encode = encode_properties
    monkeypatch.setattr(
        "broker_client.store.batch.encode_properties",
        lambda properties: bad if properties.message_id == "bad" else encode(properties),
    )
    async with opened() as harness:
        harness.queue()
        harness.publish(b"1", message_id="bad")
        harness.publish(b"2", message_id="good")
        await harness.node.drain()
    async with opened() as harness:
        assert harness.node.stats().queues[0].ready == 2
        first, second = harness.take(), harness.take()
        assert first is not None
        assert "nested" in first.fault
        assert (first.body, first.properties.message_id) == (b"1", "id")
        assert second is not None
        assert (second.body, second.fault) == (b"2", "")
        assert harness.node.failure is None


@pytest.mark.parametrize(
    "change",
    [
        lambda channel: channel.declare_queue("\ud800"),
        lambda channel: channel.declare_exchange("\ud800"),
        lambda channel: channel.bind_queue("q", "amq.topic", "\ud800"),
        lambda channel: channel.bind_queue("q", "amq.topic", "k" * 256),
    ],
    ids=["queue", "exchange", "binding key", "long binding key"],
)
async def test_name_that_amqp_cannot_carry_is_refused_and_costs_nothing(
    path: Path, change: Callable[[EmbeddedChannel], Awaitable[object]]
) -> None:
    nodes = EmbeddedNodes()
    link = await nodes.connector(f"embedded://{path}", "/").connect(timeout=30)
    await (await link.open_channel()).declare_queue("q")
    channel = await link.open_channel()
    with pytest.raises(InvalidNameError):
        await change(channel)
    assert (await channel.check_queue("q")).message_count == 0
    assert not nodes.have_failed
    await link.close()
    await nodes.close()
