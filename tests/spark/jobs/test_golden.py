"""The jobs on a few events each, with results worked out by hand."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark import jobs
from tests.spark.jobs.builders import Lines, frame, rows


def minute(number: int) -> datetime:
    return datetime(2026, 1, 1, 0, number)  # noqa: DTZ001 - Spark gives naive times in UTC


def test_latency_of_five_messages_has_their_median_and_maximum(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for number, wait in enumerate((0.010, 0.020, 0.030, 0.040, 1.000)):
        log.stay(f"m{number}", "a", float(number), wait=wait, handle=0.5)
    log.add("enqueued", 1.0, "m9", queue="b", enqueued_at=1.0)
    found = rows(jobs.latency(frame(spark, tmp_path, log.lines), exact=True))
    by_phase = {row["phase"]: row for row in found}
    assert {row["queue"] for row in found} == {"a"}
    assert by_phase["wait"]["n"] == 5
    assert by_phase["wait"]["p50_ms"] == pytest.approx(30)
    assert by_phase["wait"]["max_ms"] == pytest.approx(1000)
    assert by_phase["handle"]["p50_ms"] == by_phase["handle"]["max_ms"] == pytest.approx(500)
    assert by_phase["total"]["p50_ms"] == pytest.approx(530)
    assert by_phase["total"]["window"] == minute(0)


def test_latency_of_a_redelivery_counts_as_handling_not_as_waiting(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    at: dict[str, Any] = {"queue": "a", "enqueued_at": 0.0, "published_at": 0.0}
    log.add("delivered", 0.1, attempt=1, delivered_at=0.1, **at)
    log.add("timed_out", 5.0, attempt=1, delivered_at=0.1, **at)
    log.add("delivered", 5.0, attempt=2, delivered_at=5.0, **at)
    log.add("acked", 5.2, attempt=2, delivered_at=5.0, **at)
    found = {row["phase"]: row for row in rows(jobs.latency(frame(spark, tmp_path, log.lines)))}
    assert (found["wait"]["n"], found["wait"]["max_ms"]) == (1, pytest.approx(100))
    assert found["handle"]["max_ms"] == pytest.approx(200)
    assert found["total"]["max_ms"] == pytest.approx(5200)


def test_throughput_counts_by_minute(spark: SparkSession, tmp_path: Path) -> None:
    log = Lines()
    for second in (5, 65, 70, 125):
        log.add("acked", second, f"m{second}", queue="a", size=100)
    log.add("published", 5, "m5", size=100)
    found = rows(jobs.throughput(frame(spark, tmp_path, log.lines)))
    assert sorted((row["window"], row["n"], row["bytes"]) for row in found if row["queue"]) == [
        (minute(0), 1, 100),
        (minute(1), 2, 200),
        (minute(2), 1, 100),
    ]
    assert [row["event"] for row in found if row["queue"] is None] == ["published"]


def test_backlog_is_what_came_less_what_left_and_knows_the_oldest(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for number, second in enumerate((10, 20, 30)):
        log.add("enqueued", second, f"m{number}", queue="a", enqueued_at=second)
    log.add("acked", 40, "m0", queue="a", enqueued_at=10.0)
    log.add("dead_lettered", 70, "m2", queue="a", enqueued_at=30.0, reason="rejected")
    log.add("enqueued", 70, "m2", queue="dead", enqueued_at=70.0)
    found = rows(jobs.backlog(frame(spark, tmp_path, log.lines)))
    assert [
        (row["queue"], row["window"], row["entered"], row["left"], row["backlog"]) for row in found
    ] == [("a", minute(0), 3, 1, 2), ("a", minute(1), 0, 1, 1), ("dead", minute(1), 1, 0, 1)]
    assert [row["oldest_age_s"] for row in found] == [40, 100, 50]


def test_backlog_that_is_gone_has_no_oldest(spark: SparkSession, tmp_path: Path) -> None:
    log = Lines()
    log.stay("m1", "a", 10.0, wait=1.0, handle=60.0)
    found = rows(jobs.backlog(frame(spark, tmp_path, log.lines)))
    assert [(row["backlog"], row["oldest_age_s"]) for row in found] == [(1, 50), (0, None)]


def test_reliability_rates_are_shares_of_the_deliveries(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for number in range(4):
        log.add("delivered", number, f"m{number}", queue="a", redelivered=number == 3)
    log.add("timed_out", 5, "m3", queue="a", reason="timeout")
    log.add("nacked", 5, "m1", queue="a", reason="rejected")
    log.add("dead_lettered", 5, "m1", queue="a", reason="rejected")
    log.add("expired", 6, "m7", queue="b", reason="expired")
    found = {row["queue"]: row for row in rows(jobs.reliability(frame(spark, tmp_path, log.lines)))}
    assert found["a"]["redelivered_rate"] == 0.25
    assert found["a"]["timed_out_rate"] == 0.25
    assert found["a"]["nacked_rate"] == found["a"]["dead_lettered_rate"] == 0.25
    assert found["b"]["delivered"] == 0
    assert found["b"]["expired"] == 1
    assert found["b"]["redelivered_rate"] is None


def test_causes_count_by_reason_and_class_of_error(spark: SparkSession, tmp_path: Path) -> None:
    log = Lines()
    for number in range(3):
        log.add("nacked", number, f"m{number}", queue="a", error_class="KeyError", error="'id'")
    log.add("dead_lettered", 4, "m1", queue="a", reason="maxlen")
    found = rows(jobs.causes(frame(spark, tmp_path, log.lines)))
    assert {(row["event"], row["reason"], row["error_class"], row["n"]) for row in found} == {
        ("nacked", None, "KeyError", 3),
        ("dead_lettered", "maxlen", None, 1),
    }


def test_poison_is_what_was_tried_often_and_never_acked(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for attempt in (1, 2, 3):
        for key in ("x", "y"):
            log.add("delivered", attempt, key, queue="a", attempt=attempt, consumer="c1")
            log.add(
                "nacked",
                attempt + 0.5,
                key,
                queue="a",
                attempt=attempt,
                error_class="ValueError",
                error=f"order 4711-{attempt} at 0x7f{attempt} is bad",
            )
    log.add("acked", 9, "y", queue="a", attempt=3)
    log.add("dead_lettered", 4, "x", queue="a", reason="rejected")
    for consumer in ("c1", "c2", "c3"):
        log.add("delivered", 1, "z", queue="a", attempt=1, consumer=consumer)
    log.add("delivered", 1, "once", queue="a", attempt=1, consumer="c1")
    found = jobs.poison(frame(spark, tmp_path, log.lines), attempts=4, consumers=3)
    assert [row["message_id"] for row in rows(found)] == ["z"]
    found = jobs.poison(frame(spark, tmp_path, log.lines), attempts=3, consumers=9)
    x = next(row for row in rows(found) if row["message_id"] == "x")
    assert x["error"] == "order 4711-3 at 0x7f3 is bad"
    assert x["reason"] == "rejected"
    assert x["fingerprint"] == "ValueError: order #-# at # is bad"
    assert {row["message_id"] for row in rows(found)} == {"x", "z"}
    groups = {row["fingerprint"]: row["messages"] for row in rows(jobs.poison_groups(found))}
    assert groups["ValueError: order #-# at # is bad"] == 1


def audited(log: Lines) -> Lines:
    """Messages that are lost, acked twice, too recent to be lost, never enqueued, and good."""
    log.stay("good", "a", 0.0, wait=0.1, handle=0.1)
    log.add("published", 1.0, "lost", published_at=1.0)
    log.add("enqueued", 1.0, "lost", queue="a", published_at=1.0, enqueued_at=1.0)
    log.add("confirmed", 1.0, "lost", published_at=1.0)
    log.add("published", 1.0, "nowhere", published_at=1.0)
    log.add("confirmed", 1.0, "nowhere", published_at=1.0)
    log.add("published", 1.0, "unconfirmed", published_at=1.0)
    log.add("enqueued", 1.0, "unconfirmed", queue="a", published_at=1.0, enqueued_at=1.0)
    log.stay("twice", "a", 2.0, wait=0.1, handle=0.1)
    log.add("acked", 3.0, "twice", queue="a", published_at=2.0, enqueued_at=2.0)
    log.stay("resent", "a", 4.0, wait=0.1, handle=0.1)
    log.stay("resent", "a", 5.0, wait=0.1, handle=0.1)
    log.add("delivered", 6.0, "unseen", queue="a", enqueued_at=5.5, published_at=5.5)
    log.add("acked", 6.1, "unseen", queue="a", enqueued_at=5.5, published_at=5.5)
    log.add("published", 95.0, "young", published_at=95.0)
    log.add("enqueued", 95.0, "young", queue="a", published_at=95.0, enqueued_at=95.0)
    log.add("confirmed", 95.0, "young", published_at=95.0)
    log.add("published", 7.0, "dead", published_at=7.0)
    log.add("confirmed", 7.0, "dead", published_at=7.0)
    log.add("dead_lettered", 7.5, "dead", queue="a", published_at=7.0, enqueued_at=7.0)
    log.add("enqueued", 7.5, "dead", queue="cemetery", published_at=7.0, enqueued_at=7.5)
    log.add("published", 100.0, None, published_at=100.0)
    return log


def test_audit_names_what_is_lost_and_what_was_acked_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = frame(spark, tmp_path, audited(Lines()).lines)
    problems = jobs.audit(events, settle=60.0)
    found = {
        (row["problem"], row["message_id"], row["queue"], row["explained"], row["last_event"])
        for row in rows(problems)
    }
    assert found == {
        ("lost", "lost", "a", False, "enqueued"),
        ("lost", "nowhere", None, False, "confirmed"),
        ("waiting", "dead", "cemetery", True, "enqueued"),
        ("duplicate", "twice", "a", False, "acked"),
        ("duplicate", "resent", "a", True, "acked"),
        ("never_enqueued", "unseen", "a", False, "acked"),
    }
    (summary,) = rows(jobs.audit_summary(events, problems))
    assert summary == {
        "published": 8,
        "confirmed": 7,
        "returned": 0,
        "publish_failed": 0,
        "delivered": 4,
        "handled": 4,
        "dead_lettered": 1,
        "dropped": 0,
        "replayed": 0,
        "events_without_id": 1,
        "lost": 2,
        "dead_letters_waiting": 1,
        "duplicates_explained": 1,
        "duplicates_unexplained": 1,
        "never_enqueued": 1,
        "events_missing": 0,
    }


def test_audit_of_a_clients_log_takes_a_refused_message_as_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines("client")
    for key in ("refused", "stuck"):
        log.add("published", 0.0, key, publication="p", published_at=0.0)
        log.add("confirmed", 0.1, key, publication="p", published_at=0.0)
        log.add("delivered", 0.2, key, queue="a", subscription="s", redelivered=False)
    log.add("nacked", 0.3, "refused", queue="a", subscription="s", reason="handler_error")
    log.add("requeued", 0.3, "stuck", queue="a", subscription="s", reason="connection_lost")
    log.add("published", 200.0, "later", published_at=200.0)
    found = rows(jobs.audit(frame(spark, tmp_path, log.lines)))
    assert [(row["message_id"], row["last_event"]) for row in found] == [("stuck", "requeued")]


def test_gaps_are_the_numbers_that_a_writer_gave_and_the_log_has_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for number in range(10):
        log.add("acked", number, f"m{number}", queue="a")
    del log.lines[4:7]
    (found,) = rows(jobs.gaps(frame(spark, tmp_path, log.lines)))
    assert (found["writer"], found["n"], found["missing"]) == ("n1-b1", 7, 3)


def test_replay_takes_dead_letters_that_were_neither_acked_later_nor_replayed(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = Lines()
    for number in (1, 2, 3):
        log.add("dead_lettered", number, f"m{number}", queue="a", reason="rejected", exchange="x")
        log.add("acked", number + 0.5, f"m{number}", queue="cemetery")
    log.add("acked", 9.0, "m1", queue="a")
    log.add("dead_lettered", 4.0, "m4", queue="a", reason="expired", exchange="x")
    events = frame(spark, tmp_path / "log", log.lines)

    def chosen(*replayed: str) -> list[dict[str, object]]:
        manifest = spark.createDataFrame(pa.table({"message_id": replayed}))
        return rows(jobs.replay(events, request="r1", manifest=manifest, reasons=["rejected"]))

    (one,) = chosen("m2")
    assert (one["message_id"], one["replay_id"], one["exchange"]) == ("m3", "replay-m3-r1", "x")
    assert not chosen("m2", "m3")


def test_replay_choices_narrow_it(spark: SparkSession, tmp_path: Path) -> None:
    log = Lines()
    for number, queue in enumerate("abab"):
        log.add("dead_lettered", number, f"m{number}", queue=queue, routing_key=f"k.{number}")
    events = frame(spark, tmp_path, log.lines)

    def ids(**choices: object) -> list[str]:
        table = jobs.replay(events, request="r", **choices)  # type: ignore[arg-type]
        return [row["message_id"] for row in rows(table)]

    assert ids(queues=["b"]) == ["m1", "m3"]
    assert ids(routing_key="k.2") == ["m2"]
    assert ids(limit=2) == ["m0", "m1"]
    assert ids(since="2026-01-01 00:00:01", until="2026-01-01 00:00:03") == ["m1", "m2"]
