"""Deliveries as rows: the schema of the source, for Arrow and for Spark.

Anybody may publish to a queue, and no message must stop a query: what has no place in a row is
null, and the column `fault` says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from broker_client.message import Delivery, Properties, counted_attempts

DDL = (
    "message_id string, body binary, exchange string, routing_key string, queue string, "
    "redelivered boolean, priority int, content_type string, content_encoding string, "
    "correlation_id string, reply_to string, type string, app_id string, expiration string, "
    "timestamp timestamp, headers map<string,string>, delivered_at timestamp, attempt int, "
    "fault string"
)
"""The schema as Spark reads it."""

STREAM_DDL = f"{DDL}, stream_offset bigint"
"""The schema with mode=stream."""

HeaderForm = Literal["text", "json"]
"""Values of headers: text as it is and all else as JSON, or all as JSON, so that types are kept."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_YEARS = range(2, 9999)  # that Python can show in every time zone
_INSTANT = pa.timestamp("us", tz="UTC")
_INT32 = 2**31 - 1
_TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to")
_ARROW_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _INSTANT,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def _arrow_schema(ddl: str) -> pa.Schema:
    fields = (column.split(" ") for column in ddl.split(", "))
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in fields])


SCHEMA = _arrow_schema(DDL)
STREAM_SCHEMA = _arrow_schema(STREAM_DDL)


class Row(NamedTuple):
    """A delivery and when it came, in microseconds since 1970."""

    delivery: Delivery
    delivered_at: int


def arrived(delivery: Delivery) -> Row:
    """`delivery`, which comes just now."""
    return Row(delivery, time.time_ns() // 1000)


def to_batch(rows: Sequence[Row], queue: str, headers: HeaderForm = "text") -> pa.RecordBatch:
    """`rows` as one batch of `SCHEMA`."""
    try:
        columns = _columns(rows, queue, headers)
    except _UNFIT:
        columns = _columns([_fitting(row, headers) for row in rows], queue, headers)
    return pa.record_batch(columns, schema=SCHEMA)


def of_present_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A stored `batch`, with nulls for the columns that are newer than it."""
    if len(batch.schema) == len(SCHEMA):
        return batch
    missing = list(SCHEMA)[len(batch.schema) :]
    nulls = [pa.nulls(batch.num_rows, field.type) for field in missing]
    return pa.record_batch([*batch.columns, *nulls], schema=SCHEMA)


def to_stream_batch(
    rows: Sequence[Row], queue: str, headers: HeaderForm = "text"
) -> pa.RecordBatch:
    """`rows` as one batch of `STREAM_SCHEMA`."""
    offsets = pa.array([stream_offset(row.delivery) for row in rows], pa.int64())
    columns = to_batch(rows, queue, headers).columns
    return pa.record_batch([*columns, offsets], schema=STREAM_SCHEMA)


def stream_offset(delivery: Delivery) -> int | None:
    """RabbitMQ: the offset of a message of a stream is in its header ``x-stream-offset``.

    None where there is no such header: the queue is not a stream.
    """
    offset = (delivery.properties.headers or {}).get("x-stream-offset")
    return offset if isinstance(offset, int) else None


def _columns(rows: Sequence[Row], queue: str, headers: HeaderForm) -> list[pa.Array]:
    deliveries = [row.delivery for row in rows]
    properties = [delivery.properties for delivery in deliveries]
    stamps = [_micros(each.timestamp) for each in properties]
    return [
        pa.array([each.message_id for each in properties], pa.string()),
        pa.array([each.body for each in deliveries], pa.binary()),
        pa.array([each.exchange for each in deliveries], pa.string()),
        pa.array([each.routing_key for each in deliveries], pa.string()),
        pa.repeat(pa.scalar(queue, pa.string()), len(rows)),
        pa.array([each.redelivered for each in deliveries], pa.bool_()),
        pa.array([each.priority for each in properties], pa.int32()),
        *(pa.array([getattr(each, name) for each in properties], pa.string()) for name in _TEXTS),
        pa.array([each.type for each in properties], pa.string()),
        pa.array([each.app_id for each in properties], pa.string()),
        pa.array([each.expiration for each in properties], pa.string()),
        pa.array(stamps, pa.int64()).cast(_INSTANT),
        _headers([each.headers for each in properties], _json if headers == "json" else _text),
        pa.array([row.delivered_at for row in rows], pa.int64()).cast(_INSTANT),
        pa.array([_attempt(each) for each in deliveries], pa.int32()),
        pa.array([_fault(each) for each in deliveries], pa.string()),
    ]


_UNFIT = (pa.ArrowException, ValueError, TypeError, ArithmeticError, RecursionError)
"""Raised for a value that no column can hold."""


def _fitting(row: Row, headers: HeaderForm) -> Row:
    """`row` without the properties that no column can hold; its fault names them."""
    kept, faults = Properties(), [row.delivery.fault]
    for name, value in row.delivery.properties._asdict().items():
        properties = kept._replace(**{name: value})
        try:
            _columns(
                [row._replace(delivery=row.delivery._replace(properties=properties))], "", headers
            )
        except _UNFIT as error:
            faults.append(f"{name}: {error}")
        else:
            kept = properties
    fault = "; ".join(filter(None, faults))
    return row._replace(delivery=row.delivery._replace(properties=kept, fault=fault))


def _fault(delivery: Delivery) -> str | None:
    """Why parts of the message are not in its row; None if all of it is."""
    time = delivery.properties.timestamp
    if not delivery.fault and time is not None and time.year not in _YEARS:
        return f"timestamp: {time.isoformat()} is outside the years 2 to 9998"
    return delivery.fault.encode(errors="replace").decode() or None


def _headers(
    tables: Sequence[Mapping[str, Any] | None], form: Callable[[Any], str | None]
) -> pa.Array:
    values = [
        None if table is None else [(key, form(value)) for key, value in table.items()]
        for table in tables
    ]
    return pa.array(values, pa.map_(pa.string(), pa.string()))


def _text(value: Any) -> str | None:
    """A header as text: a string as it is, other types as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=_unusual, allow_nan=False)


def _unusual(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _micros(instant: datetime | None) -> int | None:
    if instant is None or instant.year not in _YEARS:
        return None
    return (instant - _EPOCH) // _MICROSECOND


def _attempt(delivery: Delivery) -> int | None:
    counted = counted_attempts(delivery)
    # On other queues than RabbitMQ's quorum queues a publisher may have written anything.
    if counted is not None and counted <= _INT32:
        return counted
    return None if delivery.redelivered else 1
