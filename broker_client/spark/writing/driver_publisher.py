"""Publishing from the driver: one Broker on a loop of its own, behind plain functions.

Rows come out of Spark on the caller's thread and go to the loop in chunks, one chunk ahead of
`publish_many`, which keeps a window of them unconfirmed. So the memory needed does not depend on
the size of the DataFrame.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar

from broker_client.broker import Broker
from broker_client.config.loader import Source, load_config
from broker_client.errors import BrokerClosedError, UnknownNameError
from broker_client.spark.errors import DriverMisuseError, FramePublishError, OptionError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.writing.frame_report import FrameReport
from broker_client.spark.writing.frame_rows import (
    ARROW_MAX_BYTES,
    FrameRow,
    arrow_rows,
    projected,
)
from broker_client.spark.writing.frame_run import FrameRun
from broker_client.spark.writing.message_ids import ContentIds, streaming_scope

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log: logging.Logger = logging.getLogger("broker_client.spark.driver")

T = TypeVar("T")
Mode = Literal["iterator", "arrow"]

_CHUNK = 2_000  # rows handed to the loop at a time: each time, both threads stop for the other
_START_TIMEOUT = 60.0
_PROGRESS_EVERY = 1.0  # seconds
_QUERY_ID = "sql.streaming.queryId"
_INSTEAD = 'write with format("broker"), which publishes from the executors'


class DriverPublisher:
    """Publishes DataFrames from the driver through the publications of a configuration.

    Use it as a context manager, or call `close`. It works on every broker a configuration can
    name, the built-in one (``embedded://``) included, which then runs in the driver's process.

    Args:
        config: path of a YAML file, a mapping of the same shape, or a `BrokerConfig`.
        event_log: as for `Broker.create`.

    Raises:
        ConfigError: the configuration is wrong.
        TransportError: no broker answered.
        DriverMisuseError: an event loop runs on this thread.
    """

    def __init__(self, config: Source, *, event_log: str | Path | None = None) -> None:
        _refuse_running_loop()
        self._config = load_config(config)
        self._thread = LoopThread("broker-loop")
        self._closed = False

        async def create() -> Broker:
            return await Broker.create(self._config, event_log=event_log)

        try:
            self._broker = self._thread.call(create(), _START_TIMEOUT)
        except BaseException:
            self._thread.stop()
            raise
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"<DriverPublisher {'closed' if self._closed else repr(self._broker)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise DriverMisuseError(
            "a DriverPublisher cannot be sent to executors: its connection lives in the driver; a "
            "function that Spark runs there has captured it",
            _INSTEAD,
        )

    def close(self) -> None:
        """Wait for publishes under way, close the Broker and end the loop.

        May be called more than once.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._thread.call(self._broker.shutdown(), _START_TIMEOUT)
        finally:
            self._thread.stop()

    def run(self, work: Callable[[Broker], Coroutine[Any, Any, T]], timeout: float = 60.0) -> T:
        """Run ``work(broker)``, a coroutine function, on the Broker's loop; returns its result.

        For what is not publishing: to subscribe, to purge, to look at `stats`.
        """
        self._check_usable()
        return self._thread.call(work(self._broker), timeout)

    # ------------------------------------------------------------------ publishing

    def publish_frame(
        self,
        df: DataFrame,
        publication: str,
        *,
        mode: Mode = "iterator",
        routing_key: str | Column | None = None,
        body: str | Column | None = None,
        message_id: str | Column | None = None,
        headers: str | Column | None = None,
        window: int = 1024,
        progress: bool | Callable[[FrameReport], None] = True,
        write_id: str | None = None,
        arrow_max_bytes: int = ARROW_MAX_BYTES,
        check: bool = True,
    ) -> FrameReport:
        """Publish every row of `df` and wait for the confirms.

        Args:
            df: a DataFrame of a classic session, not of Spark Connect.
            publication: a name of the configuration.
            mode: ``iterator`` needs memory for two partitions at most; ``arrow`` is faster and
                collects the frame, so it must be small.
            routing_key: a column, or a name: of a column where there is one, otherwise the key
                itself; the publication's when left out.
            body: column of the content; the column `body` when left out, and where there is none
                the whole row as JSON: null fields too, times with microseconds, binary in base64,
                decimals as numbers with all their digits, NaN, infinity and intervals as text.
            message_id: column of the id; the column `message_id` when left out, and where there
                is none a fresh id, or one made of the content when `write_id` is given.
            headers: column of headers, a map; the column `headers` when left out, if there is one.
            window: unconfirmed publishes at a time.
            progress: True draws a line on a terminal; a function is called with the counts so far.
            write_id: names this write: the same frame with the same name gets the same ids.
            arrow_max_bytes: limit of ``arrow``.
            check: raise when a row was not confirmed; otherwise the report tells.

        Raises:
            FramePublishError: a row was not confirmed; its `report` has the counts.
            DriverMisuseError: an event loop runs on this thread, or `df` is of Spark Connect.
            UnknownNameError: no such publication.
            OptionError: `df` is too large for ``arrow``.
        """
        self._check_usable()
        _refuse_connect(df)
        if self._config.find_publication(publication) is None:
            raise UnknownNameError("publication", publication, list(self._config.publications))
        frame, content_type = projected(df, body, routing_key, message_id, headers)
        rows: Iterator[FrameRow] = (
            arrow_rows(frame, arrow_max_bytes)
            if mode == "arrow"
            else frame.toLocalIterator(prefetchPartitions=True)
        )
        ids = ContentIds(write_id, "frame", publication) if write_id is not None else None
        run = FrameRun(self._broker, publication, window, ids, content_type)
        report = self._feed(run, rows, _shown(progress))
        if check and report.confirmed != report.published:
            raise FramePublishError(report)
        return report

    def foreach_batch(
        self, publication: str, *, scope: str | None = None, **how: Any
    ) -> Callable[[DataFrame, int], None]:
        """A function for ``writeStream.foreachBatch`` that publishes every micro-batch.

        Ids are made of query, batch and content unless there is a column for them, so a batch that
        Spark runs again publishes the same ids.

        Args:
            publication: a name of the configuration.
            scope: instead of the query's id, which is the same as long as its checkpoint is.
            how: as `publish_frame`.
        """

        def publish(df: DataFrame, batch_id: int) -> None:
            query = scope or df.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            if query is None:
                raise OptionError("scope", "is needed: this version of Spark does not provide it")
            given = {"progress": False, **how}
            self.publish_frame(
                df, publication, write_id=streaming_scope(query, str(batch_id)), **given
            )

        return publish

    def _feed(
        self, run: FrameRun, rows: Iterator[FrameRow], show: Callable[[FrameReport], None] | None
    ) -> FrameReport:
        """Hand `rows` over in chunks, one ahead of what the loop is busy with."""
        publishing = self._thread.start(run.publish())
        work = [publishing]
        shown_at = time.monotonic()
        try:
            while not publishing.done():
                chunk = list(itertools.islice(rows, _CHUNK))
                work[1:] = [self._thread.start(run.chunks.put(chunk))]
                concurrent.futures.wait(work, return_when=concurrent.futures.FIRST_COMPLETED)
                if not chunk:
                    break
                if show is not None and time.monotonic() - shown_at >= _PROGRESS_EVERY:
                    shown_at = time.monotonic()
                    show(run.report())
            publishing.result()
        finally:
            for each in work:
                each.cancel()
        report = run.report()
        if show is not None:
            show(report)
        return report

    def _check_usable(self) -> None:
        _refuse_running_loop()
        if self._closed:
            raise BrokerClosedError("DriverPublisher")


def _refuse_running_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise DriverMisuseError(
        "an event loop runs on this thread, and DriverPublisher would block it",
        "call it with `await asyncio.to_thread(...)`, or publish with a Broker of your own",
    )


def _refuse_connect(df: DataFrame) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise DriverMisuseError(
            "this DataFrame is of a Spark Connect session, whose driver is another process",
            _INSTEAD,
        )


def _shown(
    progress: bool | Callable[[FrameReport], None],
) -> Callable[[FrameReport], None] | None:
    if callable(progress):
        return progress
    return _draw if progress and sys.stderr.isatty() else None


def _draw(report: FrameReport) -> None:
    rate = report.confirmed / report.seconds if report.seconds else 0.0
    wrong = {
        name: count
        for name, count in asdict(report).items()
        if name in ("returned", "nacked", "failed") and count
    }
    tail = "".join(f", {count} {name}" for name, count in wrong.items())
    sys.stderr.write(f"\r{report.confirmed:,} rows confirmed, {rate:,.0f}/s{tail}   ")
    sys.stderr.flush()
