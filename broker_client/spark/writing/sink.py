"""The writers of ``format("broker")``: Arrow batches in, confirmed messages out.

`write` runs in a worker process that Spark keeps for the next task and ends by SIGKILL: a link is
cached there, nothing else is, and `write` returns after the last confirm. So a commit message in
the driver's hands proves that all rows of its task are at the broker. `commit` has nothing left to
make visible, and `abort` cannot take back what is published.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from broker_client.spark.endpoints import connectors, target_of
from broker_client.spark.errors import OptionError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.options import SinkOptions
from broker_client.spark.writing.message_ids import (
    ContentIds,
    MessageIds,
    PositionIds,
    streaming_scope,
)
from broker_client.spark.writing.messages import MessageMaker, check_columns
from broker_client.spark.writing.publish_job import (
    PublishCounts,
    PublishJob,
    PublishLimits,
)
from broker_client.spark.writing.publishing_link import PublishingLink, close_quietly

log: logging.Logger = logging.getLogger("broker_client.spark.sink")

# Local properties Spark sets on the tasks of a streaming query; no documented contract, so a test
# holds them, and their absence is an error.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"

_LINKS_KEPT = 4  # a worker process that writes to more brokers closes the oldest


class PositionalIdsWarning(UserWarning):
    """``ids=position`` is right only where the order of rows is the same on every attempt."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """What one task published."""

    scope: str
    partition: int
    counts: PublishCounts


class _Writer:
    """Base of the batch and streaming writers."""

    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, *, speculates: bool
    ) -> None:
        if overwrite and not isinstance(self, DataSourceStreamArrowWriter):
            raise OptionError("mode", 'overwrite is impossible: a queue is appended to ("append")')
        columns = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(columns, options)
        if options.ids == "position":
            _warn_of_positions(speculates)
        self._options = options

    def _publish(self, batches: Iterator[pa.RecordBatch], scope: str, partition: int) -> TaskReport:
        options = self._options
        maker = MessageMaker(options, target_of(options), self._ids(scope, partition))
        thread, link = _cached(options)

        async def begin() -> PublishJob:
            return PublishJob(link, limits_of(options))

        job = thread.call(begin())
        for batch in batches:
            for messages in maker.messages(batch):
                thread.call(job.send(messages))
        thread.call(job.finish())
        return TaskReport(scope, partition, job.counts)

    def _ids(self, scope: str, partition: int) -> MessageIds:
        if self._options.ids == "position":
            return PositionIds(scope, partition)
        return ContentIds(scope, partition, self._options.publication or "")

    def _report(self, messages: list[WriterCommitMessage | None], batch: int | None) -> None:
        done = [each for each in messages if isinstance(each, TaskReport)]
        path = self._options.report
        if path is None or not done:
            return
        line: dict[str, object] = {"scope": done[0].scope, "batch": batch}
        for name in asdict(PublishCounts()):
            values = [getattr(each.counts, name) for each in done]
            line[name] = max(values) if name == "max_in_flight" else sum(values)
        _append_once(path, line)


class BrokerBatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write.format("broker")``."""

    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, *, speculates: bool = False
    ) -> None:
        super().__init__(options, schema, overwrite, speculates=speculates)
        # Pickled to all tasks: retries of a task share it, another save() does not.
        self._scope = options.write_id or uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Publish the rows of one task and wait for their confirms.

        Raises:
            SinkError: some are not confirmed.
        """
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        return self._publish(iterator, self._scope, context.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have published all their rows."""
        self._report(messages, None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task failed for good; what others published stays published."""
        log.error("a write was aborted; %d tasks had published", _published(messages))


class BrokerStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream.format("broker")``."""

    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, *, speculates: bool = False
    ) -> None:
        super().__init__(options, schema, overwrite, speculates=speculates)
        if options.write_id is not None:
            raise OptionError("writeId", "is for batch writes; a stream has its query and batch")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Publish the rows of one task of one batch and wait for their confirms.

        Raises:
            SinkError: some are not confirmed.
        """
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise OptionError(
                "ids", "cannot be made: this version of Spark does not tell tasks their batch"
            )
        return self._publish(iterator, streaming_scope(query, batch), context.partitionId())

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's name
    ) -> None:
        """All rows of the batch are published; may be called twice for one batch."""
        self._report(messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """The batch failed. Spark will run it again, and its messages get the same ids."""
        log.error("batch %d was aborted; %d tasks had published", batchId, _published(messages))


def limits_of(options: SinkOptions) -> PublishLimits:
    """How tasks publish with `options`."""
    return PublishLimits(
        window=options.window,
        confirm_timeout=options.confirm_timeout,
        retries=options.retries,
        connect_timeout=options.connect_timeout,
        unroutable=options.unroutable,
        invalid=options.invalid,
        dead_queue=options.dead_queue,
    )


def _published(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message is not None for message in messages)


def _warn_of_positions(speculates: bool) -> None:
    if speculates:
        raise OptionError(
            "ids",
            "position cannot be used with spark.speculation: two attempts of one task run side by "
            "side; use content or column",
        )
    warnings.warn(
        "ids=position gives row 7 of a partition the id 7: behind a shuffle a retry may have "
        "another row there, and a broker that deduplicates drops it. Use ids=content or ids=column "
        "unless the plan has no shuffle",
        PositionalIdsWarning,
        stacklevel=3,
    )


def _append_once(path: str, line: dict[str, object]) -> None:
    """Append `line` unless the file has one for the same scope: commit may run twice."""
    try:
        with open(path, encoding="utf-8") as file:
            if any(json.loads(text).get("scope") == line["scope"] for text in file):
                return
    except FileNotFoundError:
        pass
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


# --------------------------------------------------------------------------- the worker process

_links: dict[tuple[int, str], tuple[LoopThread, PublishingLink]] = {}
"""By process, since workers are forked, and broker. Filled by the first task, never on import."""


def _cached(options: SinkOptions) -> tuple[LoopThread, PublishingLink]:
    """The link of this process to the broker of `options`."""
    address = options.url or os.environ.get(options.url_env or "") or options.config_file
    key = (os.getpid(), f"{address} {options.vhost} {options.publication}")
    found = _links.get(key)
    if found is not None and found[0].is_running:
        return found
    for stale in [each for each in _links if each[0] != os.getpid()]:
        del _links[stale]  # a parent's: its sockets are not ours to touch
    while len(_links) >= _LINKS_KEPT:
        thread, link = _links.pop(next(iter(_links)))
        thread.call(close_quietly(link))
        thread.stop()
    made = LoopThread("broker sink"), PublishingLink(connectors(options))
    _links[key] = made
    return made
