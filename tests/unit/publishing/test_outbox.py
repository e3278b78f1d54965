"""The outbox at its end, or its file's; see also `tests/faults/test_outbox.py`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from broker_client.broker import Broker
from broker_client.errors import PublishAbortedError, PublishUnconfirmedError
from broker_client.node.node import Node
from broker_client.publishing import outbox as outbox_module
from broker_client.publishing.queue import PublishQueue
from broker_client.store.writer import SqliteStore
from tests.support.eventually import eventually


def a_config(folder: Path) -> dict[str, Any]:
    vhost = {
        "queues": ["q"],
        "publications": {"p": {"queue": "q"}},
        "publish_queue": {"outbox": str(folder / "outbox.db"), "max_queued": 2},
    }
    return {"vhosts": {"/": vhost}}


async def test_end_while_more_waits_than_the_publish_queue_takes_complains_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        queue = broker._publishers["/"].queue
        queue.pause()
        for number in range(5):
            await broker.publish("p", number)
        await eventually(lambda: queue.stats().waiting == 2)
        with caplog.at_level(logging.ERROR):
            await broker.shutdown(timeout=0.0)
    assert caplog.records == []
    async with Broker.create(a_config(tmp_path)) as broker:
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.succeeded == 5)


async def test_end_ends_every_publication_and_keeps_its_message(tmp_path: Path) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        broker._publishers["/"].queue.pause()
        publications = [await broker.publish("p", number) for number in range(5)]
        await broker.shutdown(timeout=0.0)
        for publication in publications:
            with pytest.raises(PublishAbortedError):
                await publication
    async with Broker.create(a_config(tmp_path)) as broker:
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.succeeded == 5)


async def test_shutdown_waits_for_what_only_the_outbox_has_so_far(tmp_path: Path) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        publications = [await broker.publish("p", number) for number in range(50)]
    outcomes = [await publication for publication in publications]
    assert len({outcome.message_id for outcome in outcomes}) == 50


async def test_messages_of_an_earlier_process_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that nobody has taken out yet, and whose numbers are the same."""
    monkeypatch.setattr(outbox_module, "_PREFETCH", 3)
    config = a_config(tmp_path)
    config["vhosts"]["/"]["connection"] = f"embedded://{tmp_path / 'node.db'}"
    async with Broker.create(config) as broker:
        broker._publishers["/"].queue.pause()
        for number in range(6):
            await broker.publish("p", f"old {number}")
        await broker.shutdown(timeout=0.0)
    resume = PublishQueue.resume
    monkeypatch.setattr(PublishQueue, "resume", lambda queue: None)
    async with Broker.create(config) as broker:
        publications = [await broker.publish("p", f"new {number}") for number in range(6)]
        resume(broker._publishers["/"].queue)
        for publication in publications:
            await publication
        link = await broker.connect()
        channel = await link.open_channel()
        arrived = []
        while (delivery := await channel.get("q", no_ack=True)) is not None:
            arrived.append(delivery.body.decode())
        await link.close()
    assert arrived == [f"{age} {number}" for age in ("old", "new") for number in range(6)]


def the_file_fails(broker: Broker) -> Node:
    """The outbox's refuses to be written from now on."""
    [node] = [node for node in broker.nodes.all() if node.keeps]
    assert isinstance(node.store, SqliteStore)
    node.store._file.connection.execute("PRAGMA query_only = 1")
    return node


async def test_file_that_fails_refuses_what_comes_and_ends_what_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_PREFETCH", 3)
    async with Broker.create(a_config(tmp_path)) as broker:
        queue = broker._publishers["/"].queue
        queue.pause()
        accepted = [await broker.publish("p", number) for number in range(6)]
        await eventually(lambda: queue.stats().waiting == 2)
        the_file_fails(broker)
        with pytest.raises(PublishUnconfirmedError, match="may or may not have it"):
            await broker.publish("p", "while it fails")
        with pytest.raises(PublishAbortedError, match="has failed"):
            await broker.publish("p", "after it has failed")
        assert not broker.health().live
        for publication in accepted[3:]:
            with pytest.raises(PublishAbortedError, match="stays in the outbox"):
                await publication
        queue.resume()
        for publication in accepted[:3]:  # taken out of the file before
            await publication
    async with Broker.create(a_config(tmp_path)) as broker:
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.succeeded >= 6)


async def test_file_that_fails_ends_publish_many_too(tmp_path: Path) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        queue = broker._publishers["/"].queue
        queue.pause()
        many = asyncio.create_task(broker.publish_many("p", iter(range(100)), window=10))
        await eventually(lambda: queue.stats().waiting == 2)
        the_file_fails(broker)
        queue.resume()
        with pytest.raises((PublishUnconfirmedError, PublishAbortedError)):
            await many


async def test_publish_that_is_being_stored_as_the_broker_ends_is_stored(tmp_path: Path) -> None:
    async with Broker.create(a_config(tmp_path)) as broker:
        broker._publishers["/"].queue.pause()
        publish = asyncio.ensure_future(broker.publish("p", "x"))
        await asyncio.sleep(0)
        await broker.shutdown(timeout=0.0)
        with pytest.raises(PublishAbortedError, match="shut down"):
            await (await publish)
    async with Broker.create(a_config(tmp_path)) as broker:
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.succeeded == 1)
