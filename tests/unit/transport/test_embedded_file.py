"""The embedded transport with a file: sharing, locking and restoring."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from broker_client.errors import (
    ChannelClosedError,
    ConnectFailedError,
    InvalidMessageError,
    StoreError,
    StoreLockedError,
)
from broker_client.message import PERSISTENT
from broker_client.store.batch import Batch
from broker_client.store.writer import SqliteStore
from broker_client.transport.base import Channel
from broker_client.transport.embedded.link import EmbeddedLink
from broker_client.transport.embedded.nodes import EmbeddedNodes
from tests.support.builders import a_message
from tests.support.eventually import eventually
from tests.support.files import rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.db"


@pytest.fixture
async def nodes() -> AsyncIterator[EmbeddedNodes]:
    nodes = EmbeddedNodes()
    yield nodes
    for link in links:
        await link.close()
    links.clear()
    await nodes.close()


links: list[EmbeddedLink] = []


async def linked(nodes: EmbeddedNodes, path: Path | str) -> EmbeddedLink:
    link = await nodes.connector(f"embedded://{path}", "/").connect(timeout=5.0)
    links.append(link)
    return link


async def bodies(channel: Channel, queue: str = "q") -> list[bytes]:
    got = []
    while (delivery := await channel.get(queue, no_ack=True)) is not None:
        got.append(delivery.body)
    return got


async def keep(path: Path | str, *texts: bytes) -> None:
    """Store messages with another node, and close it."""
    nodes = EmbeddedNodes()
    link = await linked(nodes, path)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue("q")
    await channel.publish([a_message(body=text, delivery_mode=PERSISTENT) for text in texts])
    await link.close()
    await nodes.close()


async def test_messages_and_topology_come_back_with_the_file(
    path: Path, nodes: EmbeddedNodes
) -> None:
    await keep(path, b"1", b"2", b"3")
    channel = await (await linked(nodes, path)).open_channel()
    assert (await channel.check_queue("q")).message_count == 3
    assert await bodies(channel) == [b"1", b"2", b"3"]


async def test_a_relative_address_is_a_file_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: EmbeddedNodes
) -> None:
    monkeypatch.chdir(tmp_path)
    await keep("./here.db", b"1")
    assert (tmp_path / "here.db").exists()
    channel = await (await linked(nodes, tmp_path / "here.db")).open_channel()
    assert await bodies(channel) == [b"1"]


async def test_two_owners_of_one_file_share_its_node_until_both_have_gone(path: Path) -> None:
    one, two = EmbeddedNodes(), EmbeddedNodes()
    first = await linked(one, path)
    second = await linked(two, path.parent / "." / path.name)
    channel = await first.open_channel(confirm=True)
    await channel.declare_queue("q")
    await channel.publish([a_message(body=b"1", delivery_mode=PERSISTENT)])
    await first.close()
    await one.close()
    assert second.is_open
    assert await bodies(await second.open_channel()) == [b"1"]
    await second.close()
    await two.close()
    await keep(path)  # and now another may open it


async def test_two_links_opened_at_once_read_the_file_once(path: Path) -> None:
    await keep(path, b"1")
    nodes = EmbeddedNodes()
    one, two = await asyncio.gather(linked(nodes, path), linked(nodes, path))
    assert await bodies(await two.open_channel()) == [b"1"]
    await one.close()
    await two.close()
    await nodes.close()


async def test_a_cancelled_opening_leaves_the_file_free(path: Path) -> None:
    nodes = EmbeddedNodes()
    opening = asyncio.create_task(linked(nodes, path))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await nodes.close()
    await keep(path, b"1")


async def test_a_link_that_outlives_its_owner_ends_the_node_and_frees_the_file(
    path: Path,
) -> None:
    nodes = EmbeddedNodes()
    link = await linked(nodes, path)
    await nodes.close()
    assert link.is_open
    link.abort()
    await keep(path, b"1")


async def test_another_process_is_reported_who_has_the_file(
    path: Path, nodes: EmbeddedNodes
) -> None:
    await linked(nodes, path)
    program = (
        "import asyncio, sys\n"
        "from broker_client.transport.embedded.nodes import EmbeddedNodes\n"
        "connect = EmbeddedNodes().connector(sys.argv[1], '/').connect(timeout=5)\n"
        "asyncio.run(connect)\n"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, f"embedded://{path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"in use by process {os.getpid()} on " in done.stderr


async def test_another_loop_of_this_process_is_told_so(path: Path, nodes: EmbeddedNodes) -> None:
    await linked(nodes, path)

    def elsewhere() -> None:
        with pytest.raises(ConnectFailedError, match="another event loop of this process") as no:
            asyncio.run(linked(EmbeddedNodes(), path))
        assert isinstance(no.value.__cause__, StoreLockedError)

    await asyncio.to_thread(elsewhere)


async def test_what_cannot_be_kept_is_refused_before_anything_is_sent(
    path: Path, nodes: EmbeddedNodes
) -> None:
    channel = await (await linked(nodes, path)).open_channel(confirm=True)
    await channel.declare_queue("q")
    good = a_message(delivery_mode=PERSISTENT)
    bad = a_message(delivery_mode=PERSISTENT, headers={"set": {1}})
    with pytest.raises(InvalidMessageError):
        await channel.publish([good, bad])
    assert channel.next_publish_seq == 1


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b"no database" * 1000), "store check"),
        (lambda path: None, "no folder"),
    ],
)
async def test_a_file_that_cannot_be_used_is_refused_with_what_to_do(
    tmp_path: Path,
    nodes: EmbeddedNodes,
    make: object,
    told: str,
) -> None:
    path = tmp_path / ("missing/x.db" if told == "no folder" else "x.db")
    make(path)  # type: ignore[operator]
    with pytest.raises(ConnectFailedError, match=told):
        await linked(nodes, path)
    with pytest.raises(ConnectFailedError, match=told):
        await linked(nodes, path)


async def test_a_publisher_without_confirms_waits_while_the_disk_is_behind(
    path: Path, nodes: EmbeddedNodes
) -> None:
    link = await linked(nodes, path)
    channel = await link.open_channel()
    await channel.declare_queue("q")
    most = 0
    for _ in range(40):
        await channel.publish([a_message(body=b"x" * (1 << 20), delivery_mode=PERSISTENT)])
        store = link._node.store
        assert isinstance(store, SqliteStore)
        most = max(most, store._batch.body_bytes)
    assert most <= 10 << 20


async def test_a_file_has_one_lock_by_whatever_name_it_is_opened(
    path: Path, nodes: EmbeddedNodes, tmp_path: Path
) -> None:
    await linked(nodes, path)
    (tmp_path / "alias.db").symlink_to(path)

    def elsewhere() -> None:
        with pytest.raises(ConnectFailedError, match="in use by"):
            asyncio.run(linked(EmbeddedNodes(), tmp_path / "alias.db"))

    await asyncio.to_thread(elsewhere)


class HeldCommits:
    """Holds back a store's commits until it is opened, or fails them."""

    def __init__(self, store: SqliteStore) -> None:
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.error: StoreError | None = None
        self._apply = store._file.apply
        store._file.apply = self.apply  # type: ignore[method-assign]

    def apply(self, batch: Batch) -> None:
        self.waiting.set()
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        self._apply(batch)


CHANGES: dict[str, Callable[[Channel], Awaitable[object]]] = {
    "declare a queue": lambda channel: channel.declare_queue("new"),
    "declare an exchange": lambda channel: channel.declare_exchange("new"),
    "bind a queue": lambda channel: channel.bind_queue("q", "amq.direct", "k"),
    "unbind a queue": lambda channel: channel.unbind_queue("q", "amq.direct", "old"),
    "bind an exchange": lambda channel: channel.bind_exchange("x", "amq.topic", "k"),
    "unbind an exchange": lambda channel: channel.unbind_exchange("x", "amq.topic", "old"),
    "purge a queue": lambda channel: channel.purge_queue("q"),
    "delete a queue": lambda channel: channel.delete_queue("q"),
    "delete an exchange": lambda channel: channel.delete_exchange("x"),
}


async def prepared(channel: Channel) -> None:
    """What `CHANGES` change."""
    await channel.declare_queue("q")
    await channel.declare_exchange("x")
    await channel.bind_queue("q", "amq.direct", "old")
    await channel.bind_exchange("x", "amq.topic", "old")
    await channel.publish([a_message(body=b"1", delivery_mode=PERSISTENT)])


def everything(path: Path) -> list[list[tuple[object, ...]]]:
    tables = ("queues", "exchanges", "bindings", "entries")
    return [rows(path, f"SELECT * FROM {table}") for table in tables]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_change_of_topology_is_answered_only_once_it_is_on_the_disk(
    path: Path, nodes: EmbeddedNodes, change: Callable[[Channel], Awaitable[object]]
) -> None:
    link = await linked(nodes, path)
    channel = await link.open_channel(confirm=True)
    await prepared(channel)
    await link._node.drain()
    store = link._node.store
    assert isinstance(store, SqliteStore)
    before, held = everything(path), HeldCommits(store)
    asking = asyncio.ensure_future(change(channel))
    await eventually(held.waiting.is_set)
    other = await link.open_channel()
    again = asyncio.ensure_future(
        change(other)
    )  # changes nothing, and yet may not be answered first
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asking.done()
    assert not again.done()
    assert everything(path) == before
    held.open.set()
    await asking
    assert everything(path) != before
    await asyncio.wait([again])
    if again.exception() is not None:  # there is nothing left to purge or delete
        assert isinstance(again.exception(), ChannelClosedError)


async def test_a_change_that_cannot_be_kept_raises_and_is_not_there_afterwards(
    path: Path, nodes: EmbeddedNodes
) -> None:
    link = await linked(nodes, path)
    channel = await link.open_channel(confirm=True)
    store = link._node.store
    assert isinstance(store, SqliteStore)
    held = HeldCommits(store)
    held.error = StoreError(str(path), "out of luck")
    held.open.set()
    with pytest.raises(ChannelClosedError, match=r"541.*out of luck"):
        await channel.declare_queue("q")
    assert rows(path, "SELECT name FROM queues") == []
