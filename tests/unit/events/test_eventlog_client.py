"""The event log of a client of a remote broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message, Nack, PublishError, Republish

CONFIG: dict[str, Any] = {
    "vhosts": {
        "/": {
            "queues": ["q", "other"],
            "publications": {"p": {"queue": "q"}, "fast": {"queue": "q", "confirm": False}},
            "subscriptions": {"s": {"queue": "q", "prefetch": 10}},
        }
    }
}


def written(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted(folder.rglob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def told(folder: Path) -> list[tuple[str, str | None]]:
    """(event, reason) of each line."""
    return [(line["event"], line.get("reason")) for line in written(folder)]


async def handle_one(folder: Path, *answers: Any, expect: int = 1) -> None:
    """Publish one message and answer its deliveries in turn: None acks, the rest is recovery."""
    done = asyncio.Event()
    deliveries = 0

    async def handler(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        nonlocal deliveries
        answer = answers[deliveries]
        deliveries += 1
        if answer is None:
            await ack_or_nack()
        else:
            await ack_or_nack(*answer)
        if deliveries == expect:
            done.set()

    async with Broker.create(CONFIG, event_log=folder) as broker:
        await broker.subscribe("s", handler)
        await (await broker.publish("p", b"hello", message_id="m1"))
        async with asyncio.timeout(30):
            await done.wait()


async def test_a_message_that_succeeds_tells_names_and_times(tmp_path: Path) -> None:
    await handle_one(tmp_path, None)
    lines = {line["event"]: line for line in written(tmp_path)}
    assert set(lines) == {"published", "confirmed", "delivered", "acked"}
    assert {line["message_id"] for line in lines.values()} == {"m1"}
    assert lines["confirmed"]["publication"] == "p"
    assert lines["confirmed"]["published_at"] <= lines["confirmed"]["ts"]
    acked = lines["acked"]
    assert (acked["queue"], acked["subscription"], acked["attempt"]) == ("q", "s", 1)
    assert acked["delivered_at"] == lines["delivered"]["ts"] <= acked["ts"]
    assert "enqueued_at" not in acked
    assert acked["node"].endswith("-client")


async def test_a_refused_message_tells_why(tmp_path: Path) -> None:
    await handle_one(tmp_path, (ValueError("bad id"), Nack()))
    line = next(line for line in written(tmp_path) if line["event"] == "nacked")
    assert (line["reason"], line["error_class"], line["error"]) == (
        "handler_error",
        "ValueError",
        "bad id",
    )
    assert "requeued" not in [event for event, _ in told(tmp_path)]


async def test_a_requeued_message_is_nacked_requeued_and_delivered_again(tmp_path: Path) -> None:
    await handle_one(tmp_path, ("later", Nack(requeue=True)), None, expect=2)
    events = [each for each in told(tmp_path) if each[0] not in ("published", "confirmed")]
    assert events == [
        ("delivered", None),
        ("nacked", "rejected"),
        ("requeued", "rejected"),
        ("delivered", None),
        ("acked", None),
    ]


async def test_a_republished_message_counts_as_requeued_not_as_acked(tmp_path: Path) -> None:
    await handle_one(tmp_path, (KeyError("id"), Republish(attempts=1)), None, expect=2)
    events = [each for each in told(tmp_path) if each[0] not in ("published", "confirmed")]
    assert events.count(("acked", None)) == 1
    assert ("requeued", "handler_error") in events


async def test_what_is_unsettled_when_its_subscription_ends_is_requeued(tmp_path: Path) -> None:
    arrived = asyncio.Event()

    async def handler(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        arrived.set()

    config = json.loads(json.dumps(CONFIG))
    config["vhosts"]["/"]["subscriptions"]["s"]["close_timeout"] = "10ms"
    async with Broker.create(config, event_log=tmp_path) as broker:
        await broker.subscribe("s", handler)
        await broker.publish("p", b"hello", message_id="m1")
        async with asyncio.timeout(30):
            await arrived.wait()
    assert told(tmp_path)[-1] == ("requeued", "consumer_cancelled")


async def test_a_returned_message_is_no_failed_one(tmp_path: Path) -> None:
    async with Broker.create(CONFIG, event_log=tmp_path) as broker:
        with pytest.raises(PublishError):
            await (await broker.publish("/", b"x", routing_key="nowhere", mandatory=True))
    assert told(tmp_path) == [("published", None), ("returned", "unroutable")]


async def test_a_publish_without_confirms_is_never_called_confirmed(tmp_path: Path) -> None:
    async with Broker.create(CONFIG, event_log=tmp_path) as broker:
        await (await broker.publish("fast", b"x"))
    assert told(tmp_path) == [("published", None)]


async def test_a_publish_that_is_aborted_failed(tmp_path: Path) -> None:
    async with Broker.create(CONFIG, event_log=tmp_path) as broker:
        publication = await broker.publish("p", b"x")
        assert publication.abort()
        with pytest.raises(PublishError):
            await publication
    assert told(tmp_path) == [("published", None), ("publish_failed", None)]
    assert written(tmp_path)[1]["error_class"] == "PublishAbortedError"


async def test_acking_all_is_an_ack_for_each(tmp_path: Path) -> None:
    done = asyncio.Event()

    async def handler(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        if message.message_id == "m2":
            await ack_or_nack(all=True)
            done.set()

    async with Broker.create(CONFIG, event_log=tmp_path) as broker:
        await broker.subscribe("s", handler)
        for number in range(3):
            await broker.publish("p", b"x", message_id=f"m{number}")
        async with asyncio.timeout(30):
            await done.wait()
    acked = [line["message_id"] for line in written(tmp_path) if line["event"] == "acked"]
    assert acked == ["m0", "m1", "m2"]


async def test_a_message_that_no_handler_began_is_requeued_and_not_nacked(tmp_path: Path) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handler(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        started.set()
        await go_on.wait()
        await ack_or_nack()

    config = {"vhosts": {"/": {**CONFIG["vhosts"]["/"], "subscriptions": {}}}}
    config["vhosts"]["/"]["subscriptions"] = {"s": {"queue": "q", "concurrency": 1}}
    async with Broker.create(config, event_log=tmp_path) as broker:
        await (await broker.publish("p", b"1", message_id="m1"))
        await (await broker.publish("p", b"2", message_id="m2"))
        subscription = await broker.subscribe("s", handler)
        await started.wait()
        cancelling = asyncio.create_task(subscription.cancel())
        await asyncio.sleep(0.05)
        go_on.set()
        await cancelling
    ends = {line["message_id"]: line for line in written(tmp_path) if line["event"] != "delivered"}
    assert (ends["m1"]["event"], ends["m1"].get("reason")) == ("acked", None)
    assert (ends["m2"]["event"], ends["m2"]["reason"]) == ("requeued", "consumer_cancelled")


async def test_a_duplicate_is_acked_and_told(tmp_path: Path) -> None:
    handled: list[Any] = []

    async def handler(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        handled.append(content)
        await ack_or_nack()

    config = {"vhosts": {"/": {**CONFIG["vhosts"]["/"], "subscriptions": {}}}}
    config["vhosts"]["/"]["subscriptions"] = {"s": {"queue": "q", "deduplicate": {}}}
    async with Broker.create(config, event_log=tmp_path) as broker:
        subscription = await broker.subscribe("s", handler)
        duplicate = asyncio.Event()
        subscription.on("duplicate", lambda message: duplicate.set())
        for _ in range(2):
            await (await broker.publish("p", b"1", message_id="m1"))
        async with asyncio.timeout(30):
            await duplicate.wait()
    assert handled == [b"1"]
    assert [each for each in told(tmp_path) if each[0] == "acked"] == [
        ("acked", None),
        ("acked", "duplicate"),
    ]
