"""The delivery-event log as Spark sees it: schemas and reading.

docs/event-log.md describes the fields. Times are integers (µs since the epoch) in the JSON lines
and timestamps from here on.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

CORRUPT = "_corrupt_record"
"""Column with the text of a line that cannot be read as an event; null in other rows."""

_TIMES = ("ts", "published_at", "enqueued_at", "delivered_at")
_FIELDS: tuple[tuple[str, DataType, pa.DataType], ...] = (
    ("v", IntegerType(), pa.int32()),
    ("event_id", StringType(), pa.string()),
    ("seq", LongType(), pa.int64()),
    ("ts", TimestampType(), pa.timestamp("us", "UTC")),
    ("node", StringType(), pa.string()),
    ("vhost", StringType(), pa.string()),
    ("event", StringType(), pa.string()),
    ("message_id", StringType(), pa.string()),
    ("publication", StringType(), pa.string()),
    ("subscription", StringType(), pa.string()),
    ("exchange", StringType(), pa.string()),
    ("routing_key", StringType(), pa.string()),
    ("queue", StringType(), pa.string()),
    ("consumer", StringType(), pa.string()),
    ("attempt", IntegerType(), pa.int32()),
    ("redelivered", BooleanType(), pa.bool_()),
    ("published_at", TimestampType(), pa.timestamp("us", "UTC")),
    ("enqueued_at", TimestampType(), pa.timestamp("us", "UTC")),
    ("delivered_at", TimestampType(), pa.timestamp("us", "UTC")),
    ("reason", StringType(), pa.string()),
    ("error_class", StringType(), pa.string()),
    ("error", StringType(), pa.string()),
    ("size", IntegerType(), pa.int32()),
    ("priority", IntegerType(), pa.int32()),
    ("trace_id", StringType(), pa.string()),
)

EVENT_SCHEMA = StructType([StructField(name, kind) for name, kind, _ in _FIELDS])
"""What `read_events` gives, beside `CORRUPT`."""

ARROW_SCHEMA = pa.schema([pa.field(name, kind) for name, _, kind in _FIELDS])
"""The same for Arrow and Parquet without Spark."""

LINE_SCHEMA = StructType(
    [StructField(name, LongType() if name in _TIMES else kind) for name, kind, _ in _FIELDS]
    + [StructField(CORRUPT, StringType())]
)
"""A line as it is written. A field that is missing is null; one that is not here is ignored."""

ARCHIVE_SCHEMA = StructType(
    [
        StructField("message_id", StringType()),
        StructField("published_at", TimestampType()),
        StructField("exchange", StringType()),
        StructField("routing_key", StringType()),
        StructField("headers", StringType()),
        StructField("content_type", StringType()),
        StructField("body", StringType()),
        StructField("content_encoding", StringType()),
        StructField("correlation_id", StringType()),
        StructField("reply_to", StringType()),
        StructField("type", StringType()),
        StructField("app_id", StringType()),
        StructField("priority", IntegerType()),
        StructField("queue", StringType()),
        StructField("reason", StringType()),
        StructField("error", StringType()),
        StructField("died_at", TimestampType()),
        StructField("archived_at", TimestampType()),
    ]
)
"""An archive of messages, for `replay`: headers as a JSON object, body in base64.

From `queue` on they tell of a dead letter where it died; they are null in other messages.
"""


def read_events(
    spark: SparkSession,
    path: str | Path,
    *,
    stream: bool = False,
    format: str | None = None,
    max_files_per_trigger: int | None = None,
) -> DataFrame:
    """The events under `path`: a log as a node or client writes it, or what `compact` made of one.

    Lines that are not events are included, with their text in the column `CORRUPT`: count them with
    `corrupt_lines` and leave them out with `whole`.

    Args:
        stream: read what is there and what will come, as a streaming frame.
        format: ``json`` or ``parquet``; by default what local files under `path` look like, and
            JSON where there is none.
        max_files_per_trigger: most new files in one batch of a stream.
    """
    reader = spark.readStream if stream else spark.read
    if max_files_per_trigger is not None:
        reader = reader.option("maxFilesPerTrigger", max_files_per_trigger)
    if (format or _format_of(path)) == "parquet":
        frame = reader.schema(EVENT_SCHEMA).parquet(str(path))
        return frame.select(*EVENT_SCHEMA.names, F.lit(None).cast("string").alias(CORRUPT))
    lines = reader.schema(LINE_SCHEMA).option("columnNameOfCorruptRecord", CORRUPT)
    frame = lines.option("mode", "PERMISSIVE").json(str(path))
    return frame.select(*[_typed(name) for name in EVENT_SCHEMA.names], CORRUPT)


def corrupt_lines(events: DataFrame) -> int:
    """How many lines under `read_events` were no events, or wrong in one of their fields."""
    # Spark parses only the fields that a query asks for, and finds only their faults.
    all_fields = [F.count(name) for name in EVENT_SCHEMA.names]
    counts = events.agg(F.count(CORRUPT).alias("corrupt"), *all_fields).first()
    return int(counts["corrupt"]) if counts is not None else 0


def whole(events: DataFrame) -> DataFrame:
    """Only the events, without other lines.

    A line that is wrong in a field that the query does not use stays in.
    """
    if CORRUPT not in events.columns:
        return events
    return events.filter(F.col(CORRUPT).isNull() & F.col("event_id").isNotNull()).drop(CORRUPT)


def deduplicated(events: DataFrame, *, watermark: str = "1 hour") -> DataFrame:
    """Each event once, also where files were copied or came twice.

    Args:
        watermark: how much later than its original a copy may come, in a stream.
    """
    if not events.isStreaming:
        return events.dropDuplicates(["event_id"])
    return events.withWatermark("ts", watermark).dropDuplicatesWithinWatermark(["event_id"])


def _typed(name: str) -> Column:
    if name in _TIMES:
        return F.timestamp_micros(F.col(name)).alias(name)
    return F.col(name)


def _format_of(path: str | Path) -> str:
    folder = Path(path)
    return "parquet" if next(folder.rglob("*.parquet"), None) is not None else "json"
