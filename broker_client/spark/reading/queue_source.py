"""The readers of ``format("broker")`` on a queue: spool, then ack.

Where each method runs decides what it may hold: `__init__` runs in two processes and the object is
pickled to the executors, so connections and locks are made on the first call of a method that only
the planner's process makes. That process is killed without `stop`, so nothing relies on it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker_client.spark.endpoints import connectors, queue_of
from broker_client.spark.errors import SpoolSegmentMissingError
from broker_client.spark.options import SourceOptions
from broker_client.spark.reading.queue_receiver import QueueReceiver
from broker_client.spark.reading.rows import of_present_schema
from broker_client.spark.reading.segment_store import SegmentStore
from broker_client.spark.reading.spool import Segment, Spool, read_segment

log: logging.Logger = logging.getLogger("broker_client.spark.source")

_EVERYTHING = 2**62  # rows: no limit
_ROWS_OF_A_TASK = 1_000  # at which segments are no more put together
_POLL = 0.05  # seconds between two looks at a spool that fills


class SegmentsPartition(InputPartition):
    """Some segments in a row, read by one task."""

    def __init__(self, segments: Sequence[Segment], missing_ok: bool) -> None:
        super().__init__(segments[0].seq)
        self.paths: dict[int, str] = {segment.seq: str(segment.path) for segment in segments}
        self.missing_ok = missing_ok

    def read(self) -> Iterator[pa.RecordBatch]:
        """Their rows.

        Raises:
            SpoolSegmentMissingError: a file is not there: deleted, or on another host.
        """
        for seq, path in self.paths.items():
            try:
                yield from map(of_present_schema, read_segment(path))
            except FileNotFoundError:
                if not self.missing_ok:
                    folder = os.path.dirname(path)
                    raise SpoolSegmentMissingError(folder, seq, seq) from None


def _partitions(segments: Sequence[Segment], missing_ok: bool) -> list[InputPartition]:
    """One for each segment, except that small ones are joined: a trickle that waited for a trigger
    of ten minutes would have hundreds of tasks otherwise.

    The same for the same segments, whatever the options: content ids count on it.
    """
    groups: list[list[Segment]] = []
    rows = _ROWS_OF_A_TASK
    for segment in segments:
        if rows >= _ROWS_OF_A_TASK:
            groups.append([])
            rows = 0
        groups[-1].append(segment)
        rows += segment.rows
    return [SegmentsPartition(group, missing_ok) for group in groups]


def _spool_of(options: SourceOptions, owner: str) -> Spool:
    assert options.spool is not None
    return Spool(
        os.path.abspath(options.spool),
        max_bytes=options.spool_max_bytes,
        retain=options.spool_retain,
        owner=f"{owner} {options.queue or options.subscription}",
    )


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``readStream.format("broker")``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._spool: Spool | None = None
        self._receiver: QueueReceiver | None = None
        self._drains = False

    def make_receiver(self, spool: Spool, *, limit: int | None) -> QueueReceiver:
        """The consumer, not yet started."""
        store = SegmentStore(spool, queue_of(self._options), self._options)
        return QueueReceiver(store, connectors(self._options), limit=limit)

    def make_spool(self) -> Spool:
        """The spool, not yet opened."""
        return _spool_of(self._options, "stream from")

    # ------------------------------------------------------------------ offsets

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new checkpoint begins: behind what other checkpoints have committed.

        Spark asks several times, and again after a restart when the first batch failed; the floor
        of the spool does not move before a first batch has ended.
        """
        spool = self._opened()
        return dict(spool.offset(spool.floor))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Rows of one batch; bytes where only they are limited."""
        return ReadMaxRows(self._options.max_rows_per_trigger)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """The end of a batch that begins at `start`: as many whole segments as `limit` allows.

        Raises:
            SpoolEpochError: the checkpoint belongs to another spool.
            SourceError: the queue cannot be consumed.
        """
        spool = self._opened()
        spool.check_epoch(start["epoch"])
        seq = int(start["seq"])
        spool.continue_after(seq)
        receiver = self._consuming()
        receiver.check()
        max_rows, max_bytes = self._limits(limit)
        self._wait_for_rows(spool, receiver, seq, max_rows)
        self._make_room(spool, receiver, seq)
        end = spool.end_of_batch(seq, max_rows=max_rows, max_bytes=max_bytes)
        return dict(spool.offset(end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest segment, for the query's progress."""
        spool = self._spool
        return dict(spool.offset(spool.last_seq)) if spool is not None else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at what is in the queue now.

        Spark also calls this before it runs a failed batch again, so nothing is done but noted.
        """
        self._drains = True

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        match limit:
            case ReadAllAvailable():
                return None, None
            case ReadMaxRows(max_rows=rows):
                return rows, self._options.max_bytes_per_trigger
            case ReadMaxBytes(max_bytes=size):
                return None, size
        return self._options.max_rows_per_trigger, self._options.max_bytes_per_trigger

    def _wait_for_rows(
        self, spool: Spool, receiver: QueueReceiver, start: int, max_rows: int | None
    ) -> None:
        """AvailableNow ends with the first batch that has nothing new: wait for it, or the end."""
        while self._drains and not receiver.is_finished:
            ready = spool.after(start)
            enough = max_rows is not None and sum(each.rows for each in ready) >= max_rows
            if enough or (ready and receiver.is_waiting_for_room):
                return
            self._make_room(spool, receiver, start)
            receiver.wait(_POLL)
        receiver.check()

    def _make_room(self, spool: Spool, receiver: QueueReceiver, start: int) -> None:
        """A full spool with nothing new would never see another commit: commits come with the
        next batch only. What is before `start` has ended, or Spark would not ask from there."""
        if receiver.is_waiting_for_room and not spool.after(start):
            spool.release(start)
            receiver.room_made()

    # ------------------------------------------------------------------ batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The segments of the batch, each a partition, small ones together.

        After a failed batch this is the first call of all.

        Raises:
            SpoolSegmentMissingError: a segment is gone.
        """
        spool = self._opened()
        spool.check_epoch(start["epoch"])
        spool.check_epoch(end["epoch"])
        missing_ok = not self._options.fail_on_data_loss
        segments = spool.between(int(start["seq"]), int(end["seq"]), missing_ok=missing_ok)
        return _partitions(segments, missing_ok)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on an executor."""
        assert isinstance(partition, SegmentsPartition)
        return partition.read()

    def commit(self, end: dict[str, Any]) -> None:
        """The batch up to `end` is done: its segments go. Its messages were acked long ago."""
        spool = self._opened()
        spool.check_epoch(end["epoch"])
        spool.release(int(end["seq"]))
        if self._receiver is not None:
            self._receiver.room_made()

    def stop(self) -> None:
        """Release queue and spool, if it is called."""
        if self._receiver is not None:
            self._receiver.stop()
            self._receiver = None
        if self._spool is not None:
            self._spool.close()
            self._spool = None

    # ------------------------------------------------------------------ made when first needed

    def _opened(self) -> Spool:
        if self._spool is None:
            spool = self.make_spool()
            spool.open(lock_timeout=self._options.lock_timeout)
            self._spool = spool
        return self._spool

    def _consuming(self) -> QueueReceiver:
        if self._receiver is None:
            receiver = self.make_receiver(
                self._opened(), limit=_EVERYTHING if self._drains else None
            )
            receiver.start()
            self._receiver = receiver
        return self._receiver


class QueueReader(DataSourceReader):
    """``spark.read.format("broker")``: what is in the queue now, `maxRows` at most.

    The rows stay in the spool, and are what every further read gives, until `release` is called:
    Spark plans a read once for every action, and rows that were acked must not differ or vanish
    between two of them.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Drain the queue into the spool, unless there is something in it."""
        options = self._options
        spool = _spool_of(options, "read from")
        spool.open(lock_timeout=options.lock_timeout)
        try:
            if not spool.after(spool.floor):
                store = SegmentStore(spool, queue_of(options), options)
                receiver = QueueReceiver(store, connectors(options), limit=options.max_rows)
                receiver.start()
                try:
                    while not receiver.is_finished and not receiver.is_waiting_for_room:
                        receiver.wait(_POLL)
                    receiver.check()
                finally:
                    receiver.stop()
            return _partitions(spool.after(spool.floor), not options.fail_on_data_loss)
        finally:
            spool.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs on an executor."""
        assert isinstance(partition, SegmentsPartition)
        return partition.read()
