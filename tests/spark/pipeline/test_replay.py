"""Dead letters on RabbitMQ: archived, replayed, handled and audited, each once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker_client import AckOrNack, Broker, Message
from broker_client.spark import DriverPublisher
from broker_client.spark.event_log import read_events, whole
from spark import jobs
from spark.archiving import cause, read_archive
from spark.replaying import living_headers
from tests.spark.pipeline.command import parquet, run
from tests.spark.queues import Queues, numbered

COUNT = 60
IDS = numbered(COUNT)
BAD = IDS[::3]
URL_VARIABLE = "BROKER_CLIENT_TEST_URL"
_WAIT = 30.0  # seconds


def config_of(queues: Queues) -> dict[str, Any]:
    return {
        "vhosts": {
            queues.vhost: {
                "connection": f"${{{URL_VARIABLE}}}",
                "exchanges": ["orders", "graves"],
                "queues": {
                    "kitchen": {"options": {"dead_letter_exchange": "graves"}},
                    "cemetery": {},
                },
                "bindings": ["orders[order.#] -> kitchen", "graves -> cemetery"],
                "publications": {"orders": {"exchange": "orders"}},
                "subscriptions": {"kitchen": {"queue": "kitchen", "recovery": "refuse"}},
            }
        },
        "recovery": {"refuse": [{"strategy": "nack"}]},
    }


def body_of(name: str) -> bytes:
    return b"\x00\xff" + name.encode()


async def publish_all(broker: Broker) -> None:
    for number, name in enumerate(IDS):
        publication = await broker.publish(
            "orders",
            body_of(name),
            f"order.{number}",
            message_id=name,
            correlation_id=f"c-{name}",
            headers={"number": number, "urgent": number % 2 == 0, "who": "7"},
        )
        await publication


async def handle(broker: Broker, count: int, *refused: str) -> list[Message]:
    """The `count` messages that the kitchen gets; those of `refused` are nacked."""
    got: list[Message] = []
    done = asyncio.Event()

    async def cook(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack(ValueError("burnt") if message.message_id in refused else None)
        got.append(message)
        if len(got) >= count:
            done.set()

    subscription = await broker.subscribe("kitchen", cook)
    async with asyncio.timeout(_WAIT):
        await done.wait()
    await subscription.cancel()
    return got


def files_with(folder: Path, text: str) -> list[Path]:
    every = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in every if text.encode() in path.read_bytes()]


def test_dead_letters_are_archived_replayed_and_handled_once(
    spark: SparkSession, queues: Queues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, queues.url)
    config, events, out = config_of(queues), tmp_path / "events", tmp_path / "out"
    with DriverPublisher(config, event_log=events) as app:
        app.run(publish_all)
        app.run(lambda broker: handle(broker, COUNT, *BAD))
    assert queues.depth("cemetery") == len(BAD)

    archive: list[str | Path] = [
        "archive",
        "--url",
        queues.url,
        "--queue",
        "cemetery",
        "--out",
        out / "dead",
    ]
    status, said = run(*archive)
    assert status == 0, said
    assert queues.depth("cemetery") == 0
    archived = {row["message_id"]: row for row in read_archive(spark, str(out / "dead")).collect()}
    assert sorted(archived) == sorted(BAD)
    assert all(
        (row["queue"], row["reason"], row["exchange"]) == ("kitchen", "rejected", "orders")
        for row in archived.values()
    )
    assert archived["m3"]["routing_key"] == "order.3"

    file = tmp_path / "app.yaml"
    file.write_text(json.dumps(config))
    replay: list[str | Path] = [
        "replay",
        "--events",
        events,
        "--archive",
        out / "dead",
        "--out",
        out / "replay",
    ]
    replay += ["--request", "r1", "--config", file, "--publication", "orders"]
    status, dry = run(*replay)
    assert status == 0
    assert "replay-m3-r1" in dry
    assert queues.depth("kitchen") == 0

    status, done = run(*replay, "--execute")
    assert status == 0, done
    assert f"{len(BAD)} of {len(BAD)} published and confirmed" in done
    manifest = parquet(spark, out / "replay" / "manifest")
    assert sorted(row["message_id"] for row in manifest) == sorted(BAD)
    status, again = run(*replay, "--execute")
    assert status == 0
    assert "dead letters to replay: nothing" in again
    assert queues.depth("kitchen") == len(BAD)
    status, emptied = run(*archive)
    assert status == 0
    assert len(read_archive(spark, str(out / "dead")).collect()) == len(BAD)

    with DriverPublisher(config, event_log=events) as app:
        copies = {each.message_id: each for each in app.run(lambda b: handle(b, len(BAD)))}
    assert sorted(str(name) for name in copies) == sorted(f"replay-{name}-r1" for name in BAD)
    for name in BAD:
        copy, number = copies[f"replay-{name}-r1"], int(name[1:])
        assert copy.body == body_of(name)
        assert (copy.routing_key, copy.properties.correlation_id) == (
            f"order.{number}",
            f"c-{name}",
        )
        assert copy.delivery.properties.headers == {
            "number": number,
            "urgent": number % 2 == 0,
            "who": "7",
            "x-replay-of": name,
            "x-replay-request": "r1",
        }

    log = whole(read_events(spark, events))
    replayed = log.filter("event = 'replayed'").collect()
    assert sorted(row["message_id"] for row in replayed) == sorted(BAD)
    assert {(row["queue"], row["reason"]) for row in replayed} == {("kitchen", "r1")}
    problems = jobs.audit(log, settle=0.0)
    assert problems.collect() == []
    (summary,) = jobs.audit_summary(log, problems).collect()
    assert (summary["published"], summary["replayed"]) == (COUNT + len(BAD), len(BAD))
    assert summary["handled"] == COUNT
    by_queue = jobs.reliability(log).groupBy("queue").sum("replayed").collect()
    assert [tuple(row) for row in by_queue] == [("kitchen", len(BAD))]

    assert queues.url.split("/")[2].startswith("guest:guest@")
    assert not [text for text in (said, dry, done, again, emptied) if "guest:guest" in text]
    assert files_with(tmp_path, "guest:guest") == []


def test_a_failed_query_is_told_of_in_our_last_words() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated: Traceback (most recent call last):\n"
        "broker_client.errors.ChannelClosedError: 404\n"
        "  broker_client.spark.errors.SourceError: cannot read 'q': declare it SQLSTATE: 38000\n"
        "=== Streaming Query ===\n"
    )
    assert cause(text) == "cannot read 'q': declare it"
    assert cause("something of Spark's") == "something of Spark's"


def test_what_a_death_has_written_into_the_headers_is_not_replayed() -> None:
    headers = {
        "CC": ["elsewhere"],
        "x-death": [{"queue": "a"}],
        "x-first-death-queue": "a",
        "x-last-death-queue": "a",
        "x-delivery-count": 3,
        "rascal": {"originalQueue": "a", "recovery": {}, "encryption": {"name": "k"}},
        "mine": 1,
    }
    assert living_headers(headers) == {"mine": 1, "rascal": {"encryption": {"name": "k"}}}
    assert living_headers({"rascal": {"originalQueue": "a"}}) == {}
