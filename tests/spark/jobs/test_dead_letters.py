"""Archiving and replaying dead letters, on a few of each kind."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker_client.message import Delivery, Properties
from broker_client.spark.event_log import ARCHIVE_SCHEMA
from broker_client.spark.reading.rows import Row, to_batch
from spark import jobs
from tests.spark.jobs.builders import T0, Line, Lines, frame, micros, rows

ARCHIVED_AT = micros(100)


def death(queue: str, reason: str, second: float, *, exchange: str = "x", key: str = "k") -> Any:
    """An entry of x-death."""
    time = datetime.fromtimestamp(T0 + second, UTC)
    return {
        "count": 1,
        "queue": queue,
        "reason": reason,
        "exchange": exchange,
        "routing-keys": [key],
        "time": time,
    }


def archived(spark: SparkSession, *letters: Properties) -> list[dict[str, Any]]:
    """The job's result for `letters` of the queue `cemetery`."""
    batch = to_batch(
        [
            Row(Delivery("c", 1, False, "graves", "dead", b"\x00body", each), ARCHIVED_AT)
            for each in letters
        ],
        "cemetery",
        "json",
    )
    return rows(jobs.archive(spark.createDataFrame(pa.Table.from_batches([batch]))))


def archive_of(spark: SparkSession, *letters: Line) -> DataFrame:
    """An archive; missing fields are null."""
    kinds = {"timestamp": pa.timestamp("us", "UTC"), "integer": pa.int32(), "string": pa.string()}
    columns = {
        field.name: pa.array(
            [letter.get(field.name) for letter in letters], kinds[field.dataType.typeName()]
        )
        for field in ARCHIVE_SCHEMA
    }
    return spark.createDataFrame(pa.table(columns))


def at(second: float) -> datetime:
    return datetime.fromtimestamp(T0 + second, UTC)


def test_archive_tells_where_and_why_a_message_died_first_and_last(spark: SparkSession) -> None:
    deaths = [
        death("kitchen", "rejected", 7, exchange="later"),
        death("hall", "expired", 3, exchange="orders", key="order.1"),
    ]
    headers = {"x-death": deaths, 'odd "name"': "7", "number": 7, "none": None, "deep": {"a": [1]}}
    (row,) = archived(spark, Properties(message_id="m1", headers=headers, type="t", priority=3))
    assert (row["queue"], row["reason"]) == ("kitchen", "rejected")
    assert (row["exchange"], row["routing_key"]) == ("orders", "order.1")
    assert row["died_at"] == at(7).replace(tzinfo=None)
    assert row["archived_at"] == at(100).replace(tzinfo=None)
    assert (row["message_id"], row["type"], row["priority"], row["error"]) == ("m1", "t", 3, None)
    assert base64.b64decode(row["body"]) == b"\x00body"
    kept = json.loads(row["headers"])
    assert kept.pop("x-death")[0]["queue"] == "kitchen"
    assert kept == {'odd "name"': "7", "number": 7, "none": None, "deep": {"a": [1]}}


def test_archive_of_what_recovery_forwarded_tells_its_queue_and_error(spark: SparkSession) -> None:
    history = {
        "originalQueue": "kitchen",
        "originalExchange": "orders",
        "originalRoutingKey": "order.2",
        "error": {"message": "burnt"},
    }
    delayed = {"rascal": history, "x-death": [death("delay.1s", "expired", 5)]}
    for headers in ({"rascal": history}, delayed):
        (row,) = archived(spark, Properties(message_id="m2", headers=headers))
        assert (row["queue"], row["reason"], row["error"]) == ("kitchen", "handler_error", "burnt")
        assert (row["exchange"], row["routing_key"]) == ("orders", "order.2")
        assert row["died_at"] is not None


def test_archive_gives_an_id_to_a_message_without_and_no_death_to_one_that_did_not_die(
    spark: SparkSession,
) -> None:
    one, other = archived(spark, Properties(), Properties())
    assert one["message_id"].startswith("archive-")
    assert one["message_id"] != other["message_id"]
    assert (one["queue"], one["died_at"], one["headers"]) == (None, None, None)
    assert (one["exchange"], one["routing_key"]) == ("graves", "dead")


def test_replay_without_a_log_takes_the_letters_of_the_archive(spark: SparkSession) -> None:
    archive = archive_of(
        spark,
        {"message_id": "m1", "body": "aGk=", "queue": "a", "died_at": at(1), "archived_at": at(9)},
        {"message_id": "m1", "body": "bmV3", "queue": "a", "died_at": at(5), "archived_at": at(10)},
        {"message_id": "m2", "body": "aGk=", "queue": "b", "died_at": at(2), "archived_at": at(9)},
        {"message_id": "alive", "body": "aGk=", "archived_at": at(9)},
    )
    found = rows(jobs.replay(None, request="r", archive=archive))
    assert [(row["message_id"], row["body"], row["size"]) for row in found] == [
        ("m2", "aGk=", 2),
        ("m1", "bmV3", 3),
    ]
    (one,) = rows(jobs.replay(None, request="r", archive=archive, queues=["b"]))
    assert one["message_id"] == "m2"
    with pytest.raises(ValueError, match="a log, an archive, or both"):
        jobs.replay(None, request="r")


def test_replay_leaves_out_what_the_log_says_was_acked_or_replayed_since(
    spark: SparkSession, tmp_path: Path
) -> None:
    letters = [
        {"message_id": name, "body": "aGk=", "queue": "a", "died_at": at(1), "archived_at": at(9)}
        for name in ("acked", "replayed", "waiting")
    ]
    log = Lines()
    log.add("acked", 2, "acked", queue="a")
    log.add("replayed", 2, "replayed", queue="a", reason="r0")
    log.add("replayed", 0.5, "waiting", queue="a", reason="r0")
    events = frame(spark, tmp_path, log.lines)
    found = rows(jobs.replay(events, request="r", archive=archive_of(spark, *letters)))
    assert [row["message_id"] for row in found] == ["waiting"]


def test_audit_and_reliability_count_what_was_replayed_and_miss_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines("client")
    for name in ("m1", "replay-m1-r"):
        log.add("published", 0.0, name, published_at=0.0)
        log.add("confirmed", 0.1, name, published_at=0.0)
        log.add("delivered", 0.2, name, queue="a", subscription="s", redelivered=False)
        log.add("nacked" if name == "m1" else "acked", 0.3, name, queue="a", subscription="s")
    log.add("replayed", 0.4, "m1", queue="a", reason="r")
    node = Lines("node")
    node.add("published", 0.0, "dead", published_at=0.0)
    node.add("confirmed", 0.0, "dead", published_at=0.0)
    node.add("enqueued", 0.0, "dead", queue="b", published_at=0.0, enqueued_at=0.0)
    node.add("dead_lettered", 0.5, "dead", queue="b", published_at=0.0, enqueued_at=0.0)
    node.add("enqueued", 0.5, "dead", queue="cemetery", published_at=0.0, enqueued_at=0.5)
    before = frame(spark, tmp_path / "before", log.lines + node.lines)
    assert [
        (row["problem"], row["message_id"]) for row in rows(jobs.audit(before, settle=0.0))
    ] == [("waiting", "dead")]
    node.add("replayed", 0.6, "dead", queue="b", reason="r")
    events = frame(spark, tmp_path / "after", log.lines + node.lines)
    problems = jobs.audit(events, settle=0.0)
    assert rows(problems) == []
    (summary,) = rows(jobs.audit_summary(events, problems))
    assert (summary["replayed"], summary["lost"], summary["dead_letters_waiting"]) == (2, 0, 0)
    counted = {row["queue"]: 0 for row in rows(jobs.reliability(events))}
    for row in rows(jobs.reliability(events)):
        counted[row["queue"]] += row["replayed"]
    assert counted == {"a": 1, "b": 1, "cemetery": 0}
