"""Data sources that die or fail once, at a chosen moment, and then work.

They run in Spark's Python processes, which import this module. Options: ``fault`` says where,
``mark`` names a file that is created when it has happened.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from broker_client.spark.datasource import BrokerDataSource
from broker_client.spark.endpoints import connectors, queue_of
from broker_client.spark.options import SinkOptions, SourceOptions, parse
from broker_client.spark.reading.queue_receiver import QueueReceiver
from broker_client.spark.reading.queue_source import QueueStreamReader
from broker_client.spark.reading.segment_store import SegmentStore
from broker_client.spark.reading.spool import Spool
from broker_client.spark.writing.sink import BrokerBatchWriter, BrokerStreamWriter, TaskReport
from broker_client.transport.base import Channel


class Fault:
    """A fault that happens once, at one place."""

    def __init__(self, place: str, mark: str) -> None:
        self.place, self.mark = place, Path(mark)

    def due(self, place: str) -> bool:
        if place != self.place or self.mark.exists():
            return False
        self.mark.write_text(f"{place} in process {os.getpid()}")
        return True

    def kill(self, place: str) -> None:
        if self.due(place):
            os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, place: str) -> None:
        if self.due(place):
            raise RuntimeError(f"fault {place}")


class FaultyDataSource(BrokerDataSource):
    """``format("faulty")``."""

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def _fault(self) -> Fault:
        return Fault(self.options["fault"], self.options["mark"])

    def _rest(self) -> dict[str, str]:
        return {key: value for key, value in self.options.items() if key not in ("fault", "mark")}

    def _source(self) -> SourceOptions:
        return parse(SourceOptions, self._rest())

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        return _Reader(self._source(), self._fault())

    def writer(self, schema: StructType, overwrite: bool) -> BrokerBatchWriter:
        return _BatchWriter(parse(SinkOptions, self._rest()), schema, overwrite, self._fault())

    def streamWriter(self, schema: StructType, overwrite: bool) -> BrokerStreamWriter:  # noqa: N802
        return _StreamWriter(parse(SinkOptions, self._rest()), schema, overwrite, self._fault())


# --------------------------------------------------------------------------- reading


class _Reader(QueueStreamReader):
    def __init__(self, options: SourceOptions, fault: Fault) -> None:
        super().__init__(options)
        self._fault = fault

    def make_spool(self) -> Spool:
        spool = super().make_spool()
        spool.__class__ = _Spool
        spool.fault = self._fault  # type: ignore[attr-defined] # it is a _Spool now
        return spool

    def make_receiver(self, spool: Spool, *, limit: int | None) -> QueueReceiver:
        store = _SegmentStore(spool, queue_of(self._options), self._options)
        store.fault = self._fault
        return QueueReceiver(store, connectors(self._options), limit=limit)


class _Spool(Spool):
    fault: Fault

    def _write(self, path: Path, data: pa.Buffer) -> None:
        if self.fault.due("in write"):
            path.write_bytes(memoryview(data)[: data.size // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super()._write(path, data)


class _SegmentStore(SegmentStore):
    fault: Fault

    async def acknowledge(self, channel: Channel, tag: int) -> None:
        self.fault.kill("before ack")
        await super().acknowledge(channel, tag)
        self.fault.kill("after ack")


# --------------------------------------------------------------------------- writing


def _half(batches: Iterator[pa.RecordBatch], fault: Fault) -> Iterator[pa.RecordBatch]:
    """`batches`, with the fault behind the first one, which is published by then."""
    for batch in batches:
        yield batch
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0:
            fault.kill("in task")
            fault.fail("task raises")


class _BatchWriter(BrokerBatchWriter):
    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, fault: Fault
    ) -> None:
        super().__init__(options, schema, overwrite)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return super().write(_half(iterator, self._fault))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._fault.fail("commit")
        super().commit(messages)


class _StreamWriter(BrokerStreamWriter):
    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, fault: Fault
    ) -> None:
        super().__init__(options, schema, overwrite)
        self._fault = fault

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return super().write(_half(iterator, self._fault))

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._fault.fail("commit")
        super().commit(messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._fault.mark.with_suffix(".aborted").write_text(str(batchId))
        super().abort(messages, batchId)


def register(session: Any) -> None:
    """Make ``format("faulty")`` known."""
    session.dataSource.register(FaultyDataSource)
