"""Queries that are idle, drain, are full, share their queue, or whose spool was replaced."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.queues import Queues, numbered, sorted_ids, until
from tests.spark.source.test_receiver import HOSTILE, hostile
from tests.spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_idle_query_has_acked_everything_and_keeps_its_last_batch_only(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    queues.publish("in", numbered(50, "a"))
    stream = Stream(spark, queues, "in", tmp_path)
    query = stream.start()
    try:
        until(lambda: len(stream.rows()) == 50, "the first batch", 60)
        until(lambda: queues.unacked("in") == 0, "the acks")
        assert len(stream.segments()) == 1
        queues.publish("in", numbered(50, "b"))
        until(lambda: len(stream.rows()) == 100, "the second batch", 60)
        until(lambda: queues.unacked("in") == 0, "the acks")
        # The commit of the first batch came with the second; that of the second is still to come.
        assert [name.split("-")[0] for name in stream.segments()] == ["000000000002"]
    finally:
        query.stop()
    assert sorted_ids(stream.rows()) == sorted(numbered(50, "a") + numbered(50, "b"))


def test_available_now_ends_beside_a_publisher_that_does_not(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    first = numbered(200, "first")
    queues.publish("in", first)
    more: list[str] = []
    stop = threading.Event()

    def publish() -> None:
        while not stop.wait(0.01):
            more.append(f"more{len(more)}")
            queues.publish("in", more[-1:])

    stream = Stream(spark, queues, "in", tmp_path, maxRowsPerTrigger=100, segmentRows=50)
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        stream.run()
    finally:
        stop.set()
        publisher.join()
    seen = sorted_ids(stream.rows())
    assert set(first) <= set(seen)
    assert len(seen) == len(set(seen))
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(first + more)


def test_available_now_ends_when_another_consumer_took_what_was_counted(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    ids = numbered(1500)
    queues.publish("in", ids)
    stream = Stream(spark, queues, "in", tmp_path, exclusive=False, prefetch=20, segmentRows=10)
    stolen: list[str] = []
    stop = threading.Event()

    def steal() -> None:
        while not stop.is_set() and len(stolen) < 1300:
            stolen.extend(str(each.properties.message_id) for each in queues.take("in", 50))

    until(lambda: queues.depth("in") == 1500, "the messages")
    thief = threading.Thread(target=steal)
    query = stream.start(once=True)
    until(lambda: queues.consumers("in") == 1 or not query.isActive, "the consumer", 60)
    thief.start()
    try:
        assert query.awaitTermination(60)
    finally:
        stop.set()
        thief.join()
        query.stop()
    assert sorted(sorted_ids(stream.rows()) + stolen) == sorted(ids)
    assert stolen


def test_full_spool_cancels_the_consumer_and_takes_it_up_again(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    ids = numbered(1200)
    queues.publish("in", ids, body=lambda each: str(each).encode() * 300)
    gate = tmp_path / "gate"

    def hold(frame: DataFrame, batch: int) -> None:
        deadline = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        frame.select("message_id").write.mode("append").parquet(str(tmp_path / "held"))

    stream = Stream(
        spark,
        queues,
        "in",
        tmp_path,
        segmentRows=100,
        prefetch=200,
        spoolMaxBytes="600KiB",
        maxRowsPerTrigger=100,
    )
    writer = stream.frame().writeStream.foreachBatch(hold)
    query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
    try:
        until(lambda: len(stream.segments()) >= 2, "segments", 60)
        until(lambda: queues.consumers("in") == 0, "the consumer to go", 30)
        until(lambda: queues.unacked("in") == 0, "the acks")
        waiting = queues.depth("in")
        assert waiting > 0
        queues.publish("in", numbered(10, "late"))
        until(lambda: queues.depth("in") == waiting + 10, "the queue to grow")
        gate.touch()
        until(lambda: queues.depth("in") == 0, "the rest to be taken", 60)
        held = tmp_path / "held"

        def taken() -> list[str]:
            return sorted_ids(spark.read.parquet(str(held)).collect())

        until(lambda: len(taken()) >= 1210, "every batch", 60)
        assert taken() == sorted(ids + numbered(10, "late"))
    finally:
        gate.touch()
        query.stop()


def test_spool_that_one_batch_fills_does_not_wait_for_a_commit_that_never_comes(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    """Commits come with the next batch only, and the next batch with new messages only."""
    queues.declare("in")
    ids = numbered(600)
    queues.publish("in", ids, body=lambda each: str(each).encode() * 300)
    stream = Stream(
        spark, queues, "in", tmp_path, segmentRows=50, prefetch=100, spoolMaxBytes="200KiB"
    )
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(ids)


def test_second_query_on_a_spool_is_refused(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    stream = Stream(spark, queues, "in", tmp_path)
    query = stream.start()
    try:
        until(lambda: queues.consumers("in") == 1, "the consumer", 60)
        other = Stream(spark, queues, "in", tmp_path / "other", spool=str(stream.spool))
        text = other.failure(lockTimeout="100ms")
        assert "is in use by process" in text
        assert "give every query a spool folder of its own" in text
        assert query.isActive
    finally:
        query.stop()


def test_second_query_on_a_queue_is_told_of_the_first_consumer(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    stream = Stream(spark, queues, "in", tmp_path)
    query = stream.start()
    try:
        until(lambda: queues.consumers("in") == 1, "the consumer", 60)
        other = Stream(spark, queues, "in", tmp_path / "other").start(lockTimeout="100ms")
        until(lambda: not other.isActive, "the second query to fail", 60)
        assert "it has another consumer" in str(other.exception())
        assert query.isActive
    finally:
        query.stop()


def test_old_checkpoint_on_a_new_spool_is_an_error(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    queues.publish("in", numbered(10))
    stream = Stream(spark, queues, "in", tmp_path)
    stream.run()
    shutil.rmtree(stream.spool)
    assert "the folder was deleted or swapped" in stream.failure()


def test_lost_segment_fails_unless_data_loss_is_accepted(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    queues.publish("in", numbered(10, "a"))
    stream = Stream(spark, queues, "in", tmp_path, format="noop")
    stream.run()
    # The query ended without a commit of its last batch; make Spark plan that batch again.
    for entry in (stream.checkpoint / "commits").iterdir():
        entry.unlink()
    for segment in stream.spool.glob("*.arrow"):
        segment.unlink()
    assert "segments 1 to 1 are missing" in stream.failure()
    queues.publish("in", numbered(10, "b"))
    stream.format = "parquet"
    stream.run(failOnDataLoss=False)
    assert sorted_ids(stream.rows()) == sorted(numbered(10, "b"))


def test_missing_queue_fails_the_query_with_the_reason(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    text = Stream(spark, queues, "nowhere", tmp_path).failure()
    assert "nowhere" in text
    assert "declare it first" in text
    assert "guest:guest" not in text


def test_batch_read_gives_the_same_rows_until_they_are_released(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    from broker_client.spark import release

    queues.declare("in")
    queues.publish("in", numbered(30))
    reader = spark.read.format("broker").option("url", queues.url).option("queue", "in")
    reader = reader.option("spool", str(tmp_path / "spool")).option("maxRows", 20)
    first = numbered(30)[:20]
    assert sorted_ids(reader.load().collect()) == sorted(first)
    assert sorted_ids(reader.load().collect()) == sorted(first)
    assert queues.depth("in") == 10
    assert release(tmp_path / "spool") == 20
    assert sorted_ids(reader.load().collect()) == sorted(numbered(30)[20:])


def test_orphan_segments_come_first_with_a_new_checkpoint(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    queues.publish("in", numbered(10, "a"))
    stream = Stream(spark, queues, "in", tmp_path)
    stream.run()  # its batch is never committed: the segment stays
    shutil.rmtree(stream.checkpoint)
    shutil.rmtree(stream.output)
    queues.publish("in", numbered(10, "b"))
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(numbered(10, "a") + numbered(10, "b"))


def test_hostile_messages_arrive_marked_and_do_not_stop_a_query(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    queues.publish_all(hostile("in"))
    stream = Stream(spark, queues, "in", tmp_path)
    stream.run()
    rows = {row["message_id"]: row for row in stream.rows()}
    assert rows.keys() == {"first", *HOSTILE, "last"}
    assert rows["first"]["fault"] is None
    assert rows["last"]["fault"] is None
    assert "64 levels" in rows["deep headers"]["fault"]
    queues.publish("in", ["next"])
    stream.run()
    assert len(stream.rows()) == len(rows) + 1
