"""The readers of ``format("broker")`` with ``mode=stream``: RabbitMQ streams, by offset.

A stream keeps what was read, so nothing is spooled: a batch is a range of offsets, which any
executor can read, again and again with the same result, as long as the stream's retention lasts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker_client.spark.endpoints import connectors, queue_of
from broker_client.spark.options import SourceOptions
from broker_client.spark.reading.rows import to_stream_batch
from broker_client.spark.reading.stream_offsets import StreamEnd, read_range


class OffsetPartition(InputPartition):
    """Offsets from `start` up to, not including, `end`."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(start)
        self.start: int = start
        self.end: int = end


def split(start: int, end: int, parts: int) -> list[InputPartition]:
    """`parts` ranges of about the same size, fewer where there are fewer messages."""
    parts = max(1, min(parts, end - start))
    bounds = [start + (end - start) * number // parts for number in range(parts + 1)]
    pairs = itertools.pairwise(bounds)
    return [OffsetPartition(low, high) for low, high in pairs if low < high]


class _StreamQueue:
    """Base of the batch and streaming readers."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def _end(self) -> StreamEnd:
        options = self._options
        return StreamEnd(connectors(options), queue_of(options), timeout=options.connect_timeout)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one range; runs on an executor."""
        assert isinstance(partition, OffsetPartition)
        options = self._options
        queue = queue_of(options)
        # "first" is wherever the stream begins now: retention may have moved it on from 0.
        gap_ok = partition.start == 0 or not options.fail_on_data_loss
        for rows in read_range(
            connectors(options),
            queue,
            partition.start,
            partition.end,
            timeout=options.connect_timeout,
            gap_ok=gap_ok,
        ):
            yield to_stream_batch(rows, queue, options.headers)


class StreamQueueStreamReader(_StreamQueue, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``readStream.format("broker")`` with ``mode=stream``."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._finder: StreamEnd | None = None
        self._known_end = 0
        self._drains = False
        self._target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """`startingOffset`, which is the same however often it is asked for."""
        return {"offset": self._options.starting_offset}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Rows of one batch."""
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of a batch that begins at `start`."""
        begin = int(start["offset"])
        most = self._options.max_rows_per_trigger
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        end = self._end_for(begin, most)
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, begin + most)
        return {"offset": max(begin, end)}

    def _end_for(self, begin: int, most: int) -> int:
        if self._target is not None:
            return self._target
        if self._drains or self._known_end < begin + most:
            if self._finder is None:
                self._finder = self._end()
            self._known_end = max(self._known_end, self._finder.find())
        if self._drains:
            self._target = self._known_end
        return self._known_end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where the stream ends when it is first asked."""
        self._drains = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """`minPartitions` ranges."""
        return split(int(start["offset"]), int(end["offset"]), self._options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the stream keeps its messages, and the checkpoint the offset."""


class StreamQueueReader(_StreamQueue, DataSourceReader):
    """``spark.read.format("broker")`` with ``mode=stream``: from `startingOffset` to the end."""

    def partitions(self) -> Sequence[InputPartition]:
        """`minPartitions` ranges, `maxRows` messages at most."""
        finder = self._end()
        try:
            start = self._options.starting_offset
            end = min(finder.find(), start + self._options.max_rows)
        finally:
            finder.stop()
        return split(start, max(start, end), self._options.min_partitions)
