"""Deliveries as rows: the schema of the source, in Arrow's words and in Spark's."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from broker_client.message import Delivery

DDL = (
    "message_id string, body binary, exchange string, routing_key string, queue string, "
    "redelivered boolean, priority int, content_type string, content_encoding string, "
    "correlation_id string, reply_to string, type string, app_id string, expiration string, "
    "timestamp timestamp, headers map<string,string>, delivered_at timestamp, attempt int"
)
"""The schema as Spark reads it."""

STREAM_DDL = f"{DDL}, stream_offset bigint"
"""The schema with mode=stream."""

HeaderForm = Literal["text", "json"]
"""Values of headers: text as it is and all else as JSON, or all as JSON, so that types are kept."""

_INSTANT = pa.timestamp("us", tz="UTC")
_TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to")
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("message_id", pa.string()),
    ("body", pa.binary()),
    ("exchange", pa.string()),
    ("routing_key", pa.string()),
    ("queue", pa.string()),
    ("redelivered", pa.bool_()),
    ("priority", pa.int32()),
    ("content_type", pa.string()),
    ("content_encoding", pa.string()),
    ("correlation_id", pa.string()),
    ("reply_to", pa.string()),
    ("type", pa.string()),
    ("app_id", pa.string()),
    ("expiration", pa.string()),
    ("timestamp", _INSTANT),
    ("headers", pa.map_(pa.string(), pa.string())),
    ("delivered_at", _INSTANT),
    ("attempt", pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)
STREAM_SCHEMA = pa.schema([*_FIELDS, ("stream_offset", pa.int64())])


class Row(NamedTuple):
    """A delivery and when it came, in microseconds since 1970."""

    delivery: Delivery
    delivered_at: int


def arrived(delivery: Delivery) -> Row:
    """`delivery`, which comes just now."""
    return Row(delivery, time.time_ns() // 1000)


def to_batch(rows: Sequence[Row], queue: str, headers: HeaderForm = "text") -> pa.RecordBatch:
    """`rows` as one batch of `SCHEMA`."""
    return pa.record_batch(_columns(rows, queue, headers), schema=SCHEMA)


def to_stream_batch(
    rows: Sequence[Row], queue: str, headers: HeaderForm = "text"
) -> pa.RecordBatch:
    """`rows` as one batch of `STREAM_SCHEMA`."""
    offsets = pa.array([stream_offset(row.delivery) for row in rows], pa.int64())
    return pa.record_batch([*_columns(rows, queue, headers), offsets], schema=STREAM_SCHEMA)


def stream_offset(delivery: Delivery) -> int:
    """RabbitMQ: the offset of a message of a stream is in its header ``x-stream-offset``."""
    return int((delivery.properties.headers or {})["x-stream-offset"])


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
    ]


def _headers(
    tables: Sequence[Mapping[str, Any] | None], form: Callable[[Any], str | None]
) -> pa.Array:
    values = [
        None if table is None else [(key, form(value)) for key, value in table.items()]
        for table in tables
    ]
    return pa.array(values, pa.map_(pa.string(), pa.string()))


def _text(value: Any) -> str | None:
    """A header as text: itself, or JSON where it is none."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, default=_unusual)


def _unusual(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _micros(instant: datetime | None) -> int | None:
    return None if instant is None else round(instant.timestamp() * 1_000_000)


def _attempt(delivery: Delivery) -> int | None:
    if delivery.attempts is not None:
        return delivery.attempts
    count = (delivery.properties.headers or {}).get("x-delivery-count")
    if isinstance(count, int):  # RabbitMQ: quorum queues count returns
        return count + 1
    return None if delivery.redelivered else 1
