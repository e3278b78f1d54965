"""``mode=stream``: RabbitMQ streams by offset, replayable without a spool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from broker_client.spark.reading.rows import STREAM_DDL
from tests.spark.queues import Queues, numbered, sorted_ids
from tests.spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = {"x-queue-type": "stream"}


def test_stream_is_read_in_batches_and_again_from_its_first_message(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("log", arguments=STREAM)
    queues.publish("log", numbered(300))
    stream = Stream(
        spark, queues, "log", tmp_path, mode="stream", maxRowsPerTrigger=120, minPartitions=2
    )
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(numbered(300))
    queues.publish("log", numbered(50, "more"))
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(numbered(300) + numbered(50, "more"))
    rows = spark.read.schema(STREAM_DDL).parquet(str(stream.output)).collect()
    assert sorted(row["stream_offset"] for row in rows) == list(range(350))
    batches = {path.name for path in (stream.checkpoint / "offsets").glob("[0-9]*")}
    assert batches == {"0", "1", "2", "3"}

    reader = spark.read.format("broker").option("url", queues.url).option("queue", "log")
    part = reader.option("mode", "stream").option("startingOffset", 300).load()
    assert sorted_ids(part.collect()) == sorted(numbered(50, "more"))


def test_missing_stream_fails_with_the_reason(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    text = Stream(spark, queues, "nowhere", tmp_path, mode="stream").failure()
    assert "nowhere" in text
