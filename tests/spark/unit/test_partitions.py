"""Segments as tasks."""

from __future__ import annotations

from pathlib import Path

from broker_client.spark.reading.queue_source import SegmentsPartition, _partitions
from broker_client.spark.reading.spool import Segment


def tasks(*rows: int) -> list[list[int]]:
    """Numbers of the segments of each task, for segments of so many rows."""
    segments = [Segment(seq, count, 1, Path(str(seq))) for seq, count in enumerate(rows, start=1)]
    made = []
    for each in _partitions(segments, missing_ok=False):
        assert isinstance(each, SegmentsPartition)
        made.append(list(each.paths))
    return made


def test_large_segments_have_a_task_each() -> None:
    assert tasks(5000, 5000, 1000) == [[1], [2], [3]]


def test_small_segments_go_together_until_they_make_a_task() -> None:
    assert tasks(400, 400, 400, 10, 990, 5) == [[1, 2, 3], [4, 5], [6]]


def test_no_segments_make_no_task() -> None:
    assert tasks() == []
