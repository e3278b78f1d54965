"""Publishing from the driver: one Broker on a loop of its own, behind plain functions.

Rows come out of Spark on the caller's thread and go to the loop in chunks, one chunk ahead, while
the loop keeps a window of unconfirmed publishes. So the memory needed does not depend on the size
of the DataFrame.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self, TypeVar

from broker_client.broker import Broker
from broker_client.codec.content import JSON, encode
from broker_client.config.loader import Source, load_config
from broker_client.errors import (
    BrokerClientError,
    BrokerClosedError,
    MessageReturnedError,
    PublishNackedError,
    UnknownNameError,
)
from broker_client.publication import Publication
from broker_client.publishing.template import PublishOverrides
from broker_client.spark.errors import DriverMisuseError, FramePublishError, OptionError
from broker_client.spark.loop_thread import LoopThread
from broker_client.spark.writing.frame_report import FrameReport
from broker_client.spark.writing.message_ids import ContentIds, streaming_scope

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

log: logging.Logger = logging.getLogger("broker_client.spark.driver")

T = TypeVar("T")
Mode = Literal["iterator", "arrow"]

_CHUNK = 1_000  # rows handed to the loop at a time
_ARROW_BATCH = 2_000
_ARROW_MAX_BYTES = 64 * 2**20
_START_TIMEOUT = 60.0
_PROGRESS_EVERY = 1.0  # seconds
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of `to_json`: by default Spark leaves null fields out, and cuts times to milliseconds and zones
to minutes."""
_QUERY_ID = "sql.streaming.queryId"
_INSTEAD = 'write with format("broker"), which publishes from the executors'


class _Message(NamedTuple):
    content: Any
    routing_key: str | None
    message_id: str | None
    headers: dict[str, Any] | None


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        arrow_max_bytes: int = _ARROW_MAX_BYTES,
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
        frame, content_type = _projected(df, body, routing_key, message_id, headers)
        rows = _arrow_rows(frame, arrow_max_bytes) if mode == "arrow" else _iterator_rows(frame)
        ids = ContentIds(write_id, "frame", publication) if write_id is not None else None
        run = _Run(self._broker, publication, window, ids, content_type)
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
                raise OptionError("scope", "is needed: this version of Spark does not tell it")
            given = {"progress": False, **how}
            self.publish_frame(
                df, publication, write_id=streaming_scope(query, str(batch_id)), **given
            )

        return publish

    def _feed(
        self, run: _Run, rows: Iterator[_Message], show: Callable[[FrameReport], None] | None
    ) -> FrameReport:
        """Hand `rows` over in chunks, one ahead of what the loop is busy with."""
        ahead: concurrent.futures.Future[None] | None = None
        shown_at = time.monotonic()
        while not run.is_hopeless and (chunk := list(itertools.islice(rows, _CHUNK))):
            if ahead is not None:
                ahead.result()
            ahead = self._thread.start(run.publish(chunk))
            if show is not None and time.monotonic() - shown_at >= _PROGRESS_EVERY:
                shown_at = time.monotonic()
                show(run.report())
        if ahead is not None:
            ahead.result()
        self._thread.call(run.finish())
        report = run.report()
        if show is not None:
            show(report)
        return report

    def _check_usable(self) -> None:
        _refuse_running_loop()
        if self._closed:
            raise BrokerClosedError("DriverPublisher")


class _Run:
    """One frame on its way; its coroutines run on the Broker's loop, one at a time."""

    def __init__(
        self,
        broker: Broker,
        publication: str,
        window: int,
        ids: ContentIds | None,
        content_type: str | None,
    ) -> None:
        self._broker = broker
        self._content_type = content_type
        self._publication = publication
        self._window = window
        self._ids = ids
        self._open: deque[Publication] = deque()
        self._counts: dict[str, int] = dict.fromkeys(
            ("published", "confirmed", "returned", "nacked", "failed", "retried", "max_in_flight"),
            0,
        )
        self._first_error: str | None = None
        self._started = time.monotonic()

    def report(self) -> FrameReport:
        """The counts so far."""
        return FrameReport(
            **self._counts,
            seconds=time.monotonic() - self._started,
            first_error=self._first_error,
        )

    @property
    def is_hopeless(self) -> bool:
        """Something other than single messages is wrong: more rows would only take longer."""
        return bool(self._counts["failed"])

    async def publish(self, chunk: list[_Message]) -> None:
        """Publish `chunk`; returns with at most a window of it unconfirmed."""
        for message in chunk:
            while len(self._open) >= self._window:
                await self._settle_oldest()
            if self.is_hopeless:
                return
            overrides: PublishOverrides = {}
            if self._content_type is not None:
                overrides["content_type"] = self._content_type
            if message.headers:
                overrides["headers"] = message.headers
            message_id = message.message_id or self._made_id(message)
            if message_id is not None:
                overrides["message_id"] = message_id
            self._counts["published"] += 1
            try:
                publication = await self._broker.publish(
                    self._publication, message.content, message.routing_key, **overrides
                )
            except BrokerClientError as error:
                self._failed("failed", error)
                continue
            self._open.append(publication)
            self._counts["max_in_flight"] = max(self._counts["max_in_flight"], len(self._open))

    async def finish(self) -> None:
        """Wait for all that is open."""
        while self._open:
            await self._settle_oldest()

    def _made_id(self, message: _Message) -> str | None:
        if self._ids is None:
            return None
        body, _ = encode(message.content)
        return self._ids.next("", message.routing_key or "", message.headers, body)

    async def _settle_oldest(self) -> None:
        publication = self._open.popleft()
        try:
            outcome = await publication
        except MessageReturnedError as error:
            self._failed("returned", error)
        except PublishNackedError as error:
            self._failed("nacked", error)
        except BrokerClientError as error:
            self._failed("failed", error)
        else:
            self._counts["confirmed"] += 1
            self._counts["retried"] += outcome.maybe_duplicate

    def _failed(self, how: str, error: BrokerClientError) -> None:
        self._counts[how] += 1
        if self._first_error is None:
            self._first_error = f"{type(error).__name__}: {error}"


# --------------------------------------------------------------------------- rows


def _projected(
    df: DataFrame,
    body: str | Column | None,
    routing_key: str | Column | None,
    message_id: str | Column | None,
    headers: str | Column | None,
) -> tuple[DataFrame, str | None]:
    """`df` with the four columns of a message: content, routing key, id, headers.

    And the content type, where it is made here.
    """
    from pyspark.sql import functions as sf

    names = df.columns
    nothing = sf.lit(None).cast("string")

    def column(given: str | Column | None, default: str, *, literal: bool = False) -> Column:
        if given is None:
            return sf.col(_quoted(default)) if default in names and not literal else nothing
        if not isinstance(given, str):
            return given
        if given in names:
            return sf.col(_quoted(given))
        if literal:
            return sf.lit(given)
        raise OptionError(given, "is not a column of the frame", names)

    content_type: str | None
    if body is None and "body" not in names:
        content, content_type = sf.struct(*[sf.col(_quoted(name)) for name in names]), JSON
    else:
        content, content_type = column(body, "body"), None
    type_ = df.select(content.alias("content")).schema[0].dataType
    if type_.typeName() in ("struct", "map", "array"):
        _check_map_keys(type_, "")
        content, content_type = sf.to_json(content, _JSON_OPTIONS), JSON
    elif type_.typeName() not in ("binary", "string"):
        content = content.cast("string")
    frame = df.select(
        content.alias("content"),
        column(routing_key, "", literal=True).cast("string").alias("routing_key"),
        column(message_id, "message_id").cast("string").alias("message_id"),
        column(headers, "headers").alias("headers"),
    )
    return frame, content_type


def _check_map_keys(type_: DataType, place: str) -> None:
    """Raise OptionError where `to_json` would write a key as Spark's internal value of it."""
    from pyspark.sql.types import (
        ArrayType,
        BooleanType,
        MapType,
        NumericType,
        StringType,
        StructType,
    )

    if isinstance(type_, StructType):
        for field in type_.fields:
            _check_map_keys(field.dataType, f"{place}.{field.name}" if place else field.name)
    elif isinstance(type_, ArrayType):
        _check_map_keys(type_.elementType, place)
    elif isinstance(type_, MapType):
        if not isinstance(type_.keyType, StringType | NumericType | BooleanType):
            raise OptionError(
                place or "body",
                f"is a map with keys of type {type_.keyType.simpleString()}, which JSON cannot "
                "express; make them text with transform_keys",
            )
        _check_map_keys(type_.valueType, place)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _message(
    content: Any, routing_key: str | None, message_id: str | None, headers: Any
) -> _Message:
    if isinstance(content, bytearray):
        content = bytes(content)
    return _Message(content, routing_key, message_id, dict(headers) if headers else None)


def _iterator_rows(frame: DataFrame) -> Iterator[_Message]:
    for row in frame.toLocalIterator(prefetchPartitions=True):
        yield _message(row[0], row[1], row[2], row[3])


def _arrow_rows(frame: DataFrame, max_bytes: int) -> Iterator[_Message]:
    estimate = _estimated_bytes(frame)
    if estimate > max_bytes:
        raise OptionError(
            "mode",
            f"arrow would collect about {estimate:,} bytes, and {max_bytes:,} are allowed; use "
            "mode='iterator', or raise arrow_max_bytes",
        )
    for batch in frame.toArrow().to_batches(_ARROW_BATCH):
        columns = [batch.column(index).to_pylist() for index in range(4)]
        for values in zip(*columns, strict=True):
            yield _message(*values)


def _estimated_bytes(frame: DataFrame) -> int:
    """Rows times the mean size of a sample: one cheap job, and a guess."""
    sample = frame.limit(200).toArrow()
    if sample.num_rows < 200:
        return int(sample.nbytes)
    return int(frame.count() * (sample.nbytes / sample.num_rows))


# --------------------------------------------------------------------------- misuse, progress


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
