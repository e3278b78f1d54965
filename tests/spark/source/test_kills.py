"""The planner is killed at critical moments; no message may be lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import faulty
from tests.spark.queues import Queues, numbered, sorted_ids, until
from tests.spark.streams import WAIT, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("place", ["in write", "before ack", "after ack"])
def test_planner_killed_around_a_segment_loses_nothing(
    spark: SparkSession, queues: Queues, tmp_path: Path, place: str
) -> None:
    faulty.register(spark)
    queues.declare("in")
    ids = numbered(300)
    queues.publish("in", ids)
    stream = Stream(spark, queues, "in", tmp_path, segmentRows=100)
    mark = tmp_path / "mark"

    stream.failure("faulty", fault=place, mark=str(mark))
    assert mark.exists(), "it was not killed where it should"
    left = [path.name for path in stream.spool.iterdir() if path.name.endswith(".tmp")]
    assert bool(left) == (place == "in write")
    assert stream.rows() == []

    stream.run()
    # Ids distinguish redeliveries of spooled messages from new ones: there are no duplicates.
    assert sorted_ids(stream.rows()) == sorted(ids)
    assert queues.depth("in") == 0
    assert not list(stream.spool.glob(".*.tmp"))


def test_messages_without_id_that_came_twice_are_flagged_redelivered(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    faulty.register(spark)
    queues.declare("in")
    queues.publish("in", [None] * 50, body=lambda _: b"same")
    stream = Stream(spark, queues, "in", tmp_path)
    stream.failure("faulty", fault="before ack", mark=str(tmp_path / "mark"))
    stream.run()
    rows = stream.rows()
    assert sorted(row["redelivered"] for row in rows) == [False] * 50 + [True] * 50


def test_planner_killed_by_its_pid_in_full_flow_loses_nothing(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    queues.declare("in")
    first, second = numbered(1500, "a"), numbered(1500, "b")
    queues.publish("in", first)
    stream = Stream(spark, queues, "in", tmp_path, segmentRows=100, maxRowsPerTrigger=200)
    query = stream.start()
    try:
        until(lambda: len(stream.segments()) > 2, "segments")
        os.kill(stream.planner(), signal.SIGKILL)
        until(lambda: not query.isActive, "the query to fail", WAIT)
    finally:
        query.stop()
    assert query.exception() is not None
    queues.publish("in", second)
    stream.run()
    assert sorted_ids(stream.rows()) == sorted(first + second)
