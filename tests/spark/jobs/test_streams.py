"""Batch and stream agree for any split into files; invalid lines are skipped."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker_client.spark.event_log import (
    ARROW_SCHEMA,
    EVENT_SCHEMA,
    corrupt_lines,
    deduplicated,
    read_events,
    whole,
)
from spark import jobs
from spark.logs import compact_to
from tests.spark.jobs.builders import Line, Lines, rows, split_log, write_log

SENTINEL = 100_000.0
"""Second of an event so late that it pushes the watermark past all others. It stays inside."""


def random_events(rng: random.Random, *, messages: int) -> list[Line]:
    log = Lines()
    for number in range(messages):
        queue, key, at = rng.choice("ab"), f"m{number}", rng.uniform(0, 200)
        log.stay(key, queue, at, wait=rng.uniform(0, 2), handle=rng.uniform(0, 0.2))
        if rng.random() < 0.3:
            log.add("delivered", at, key, queue=queue, redelivered=True, attempt=2)
            log.add("nacked", at, key, queue=queue, reason="rejected")
    return log.lines


def streamed(frame: DataFrame, folder: Path, *, mode: str = "append") -> list[dict[str, Any]]:
    """The rows of a streaming frame once it has read everything."""
    spark = frame.sparkSession
    name = f"out_{abs(hash(folder))}"
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    try:
        return rows(spark.table(name))
    finally:
        spark.catalog.dropTempView(name)


def as_set(table: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    found = {tuple(sorted(row.items())) for row in table}
    assert len(found) == len(table), "a row came out twice"
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_stream_and_batch_agree_on_random_files(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    lines = random_events(rng, messages=60)
    folder = split_log(tmp_path / "log", lines, rng, files=3)
    batch = whole(read_events(spark, folder))
    wanted = as_set(rows(jobs.throughput(batch)))
    wanted_buckets = as_set(rows(jobs.latency_histogram(batch)))

    late = Lines("late")
    late.add("delivered", SENTINEL, "end", queue="z", enqueued_at=SENTINEL - 1, attempt=1)
    write_log(folder, late.lines, name="9-9")
    # All files in one batch, so that none is behind the watermark; the sentinel comes later.
    stream = whole(read_events(spark, folder, stream=True))
    counted = streamed(jobs.throughput(stream, watermark="5 minutes"), tmp_path / "t")
    buckets = streamed(jobs.latency_histogram(stream, watermark="5 minutes"), tmp_path / "l")
    assert as_set(counted) == wanted
    assert as_set(buckets) == wanted_buckets


def test_reliability_of_a_stream_is_that_of_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(7)
    folder = split_log(tmp_path / "log", random_events(rng, messages=40), rng, files=3)
    wanted = as_set(rows(jobs.reliability(whole(read_events(spark, folder)))))
    stream = whole(read_events(spark, folder, stream=True, max_files_per_trigger=1))
    assert as_set(streamed(jobs.reliability(stream), tmp_path, mode="complete")) == wanted


TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


def test_compacting_files_that_came_twice_gives_each_event_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(3)
    lines = random_events(rng, messages=30)
    folder = split_log(tmp_path / "log", lines, rng, files=2)
    for number, file in enumerate(sorted(folder.rglob("*.jsonl"))):
        file.with_name(f"2-{number}.jsonl").write_bytes(file.read_bytes())
    once = rows(deduplicated(whole(read_events(spark, folder))))
    assert sorted(row["event_id"] for row in once) == sorted(line["event_id"] for line in lines)

    compact_to(spark, folder, tmp_path / "parquet")
    compacted = rows(read_events(spark, tmp_path / "parquet"))
    assert sorted(row["event_id"] for row in compacted) == sorted(
        line["event_id"] for line in lines
    )
    key = lambda row: row["event_id"]  # noqa: E731 - said once, used twice
    for got, wanted in zip(sorted(compacted, key=key), sorted(once, key=key), strict=True):
        got.pop("_corrupt_record")
        assert got == wanted

    # Integers have statistics for skipping. The session's own setting is kept.
    some = next((tmp_path / "parquet").rglob("*.parquet"))
    column = parquet.ParquetFile(some).metadata.row_group(0).column(3)
    assert (column.path_in_schema, column.physical_type) == ("ts", "INT64")
    assert column.is_stats_set
    assert spark.conf.get(TIMESTAMPS) == "INT96"

    # A second run has nothing to do, and one after new files takes only those.
    more = Lines("n2")
    more.add("acked", 10.0, "later", queue="a")
    write_log(folder, more.lines, name="3-0")
    compact_to(spark, folder, tmp_path / "parquet")
    assert read_events(spark, tmp_path / "parquet").count() == len(lines) + 1


def test_histogram_percentiles_are_near_the_exact_ones(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(11)
    folder = write_log(tmp_path, random_events(rng, messages=200))
    events = whole(read_events(spark, folder))
    whole_day = "1 day"
    exact = {
        (row["queue"], row["phase"]): row
        for row in rows(jobs.latency(events, window=whole_day, exact=True))
    }
    # Merged from minutes: the histogram is stored, not the percentiles.
    minutes = jobs.latency_histogram(events)
    merged = minutes.withColumn("window", minutes["window"].cast("date"))
    found = rows(jobs.from_histogram(merged))
    assert len(found) == len(exact) == 6
    for row in found:
        truth = exact[row["queue"], row["phase"]]
        assert row["n"] == truth["n"]
        assert row["p50_ms"] == pytest.approx(truth["p50_ms"], rel=0.2)
        assert row["p95_ms"] == pytest.approx(truth["p95_ms"], rel=0.2)


def test_odd_lines_are_counted_and_the_rest_is_read(spark: SparkSession, tmp_path: Path) -> None:
    log = Lines()
    log.add("acked", 1.0, "unknown field", queue="a", colour="green")
    file = write_log(tmp_path, log.lines) / "dt=2026-01-01" / "node=n1" / "1-1.jsonl"
    with file.open("a") as lines:
        lines.write('{"v":1,"event_id":"n1-b1-2","event":"acked"}\n')
        lines.write('{"v":1,"event_id":"n1-b1-3","event":"acked","size":"many"}\n')
        lines.write('{"v":1,"event_id":"n1-b1-4","ev')
    # Files that are being written have names that begin with a dot.
    (file.parent / ".2-1.jsonl.open").write_text(json.dumps(log.lines[0]))
    events = read_events(spark, tmp_path)
    assert corrupt_lines(events) == 2
    found = rows(whole(events).orderBy("event_id"))
    assert [row["event_id"] for row in found] == ["n1-b1-1", "n1-b1-2"]
    assert found[0]["message_id"] == "unknown field"
    assert found[1]["ts"] is None
    assert found[1]["queue"] is None


def test_both_schemas_have_the_same_fields() -> None:
    assert EVENT_SCHEMA.names == ARROW_SCHEMA.names
