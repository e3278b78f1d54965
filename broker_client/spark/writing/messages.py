"""Rows of a DataFrame as messages: which columns mean what, and the ids. No pyspark here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from broker_client.message import PERSISTENT, TRANSIENT, Outgoing, Properties
from broker_client.spark.endpoints import Target
from broker_client.spark.errors import OptionError
from broker_client.spark.options import SinkOptions
from broker_client.spark.writing.message_ids import MessageIds

_TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
)
_ID = Properties._fields.index("message_id")
_HEADERS = Properties._fields.index("headers")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "exchange": ("string",),
    "routing_key": ("string",),
    "message_id": ("string",),
    "headers": ("map<string,string>",),
    "priority": _INTEGERS,
    "expiration": ("string", *_INTEGERS),
    "timestamp": ("timestamp",),
    **{name: ("string",) for name in _TEXT_PROPERTIES},
}
"""Column to the types it may have, as Spark writes them."""

DEDUPE_HEADER = "x-deduplication-header"
"""RabbitMQ's message deduplication plugin compares this header."""


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Raise OptionError unless `columns`, names to types, can be published."""
    if "body" not in columns:
        raise OptionError("body", "is missing: a column with the message, binary or string")
    known = {*COLUMNS, options.id_column} if options.ids == "column" else set(COLUMNS)
    if options.ids == "column" and options.id_column not in columns:
        raise OptionError(
            options.id_column, "is the column for ids=column, and missing", tuple(columns)
        )
    for name, kind in columns.items():
        if name not in known:
            if options.ignore_unknown_columns:
                continue
            raise OptionError(
                name,
                "is not a column of a message; drop it, or set ignoreUnknownColumns=true",
                tuple(known),
            )
        allowed = COLUMNS.get(name, ("string",))
        if kind not in allowed and kind != "void":
            raise OptionError(name, f"is of type {kind}; it must be {' or '.join(allowed)}")


_PIECE = 1_000  # rows made into messages at a time: few enough for the processor's caches

# Called from C, a row at a time: no line of Python runs for each.
_properties = partial(tuple.__new__, Properties)
_outgoing = partial(tuple.__new__, Outgoing)
_OTHERS = [repeat(Outgoing._field_defaults[name]) for name in Outgoing._fields[5:]]


class MessageMaker:
    """Makes messages of the rows of one task, in their order.

    Column by column: what a message needs is lined up in lists, or repeated where all rows have
    the same, and zipped.

    Args:
        options: of the sink.
        target: exchange and routing key where a row has none.
        ids: names messages that bring no id.
    """

    def __init__(self, options: SinkOptions, target: Target, ids: MessageIds) -> None:
        self._options = options
        self._target = target
        self._ids = ids
        self._id_column = options.id_column if options.ids == "column" else "message_id"
        self._use_column = options.ids in (None, "column")
        template = Properties(delivery_mode=PERSISTENT if options.persistent else TRANSIENT)
        publication = target.publication
        if publication is not None:
            settings = publication.options
            if not settings.persistent:
                template = template._replace(delivery_mode=TRANSIENT)
            expiration = settings.expiration
            template = template._replace(
                headers=settings.headers or None,
                priority=settings.priority,
                user_id=settings.user_id,
                expiration=None if expiration is None else str(round(expiration * 1000)),
                **{name: getattr(settings, name) for name in _TEXT_PROPERTIES},
            )
        self._template = template

    def messages(self, batch: pa.RecordBatch) -> Iterator[list[Outgoing]]:
        """The messages of `batch`, some at a time."""
        for first in range(0, batch.num_rows, _PIECE):
            yield self._made(batch.slice(first, _PIECE))

    def _made(self, batch: pa.RecordBatch) -> list[Outgoing]:
        bodies = self._bodies(batch)
        exchanges = self._column(batch, "exchange", self._target.exchange)
        keys = self._column(batch, "routing_key", self._target.routing_key)
        fields: list[Iterable[Any]] = [
            self._column(batch, name, value)
            for name, value in zip(Properties._fields, self._template, strict=True)
        ]
        fields[_ID] = ids = self._message_ids(batch, exchanges, keys, fields[_HEADERS], bodies)
        if self._options.dedupe_header:
            fields[_HEADERS] = [
                {**(headers or {}), DEDUPE_HEADER: name}
                for headers, name in zip(fields[_HEADERS], ids, strict=False)
            ]
        properties = map(_properties, zip(*fields, strict=False))
        mandatory = repeat(self._options.mandatory)
        parts = zip(exchanges, keys, bodies, properties, mandatory, *_OTHERS, strict=False)
        return list(map(_outgoing, parts))

    def _bodies(self, batch: pa.RecordBatch) -> list[bytes]:
        column = batch.column("body")
        if column.null_count and self._options.invalid == "raise":
            raise OptionError(
                "body",
                "is null in a row, and a message needs a body, if an empty one; invalid=drop and "
                "invalid=dead set such rows aside",
            )
        bodies: list[bytes] = column.cast(pa.binary()).to_pylist()  # text is UTF-8 there already
        return bodies

    def _column(self, batch: pa.RecordBatch, name: str, otherwise: Any) -> Iterable[Any]:
        """Values of a column; without that column, `otherwise` endlessly."""
        if name not in COLUMNS or name not in batch.schema.names:
            return repeat(otherwise)
        column = batch.column(name)
        values: list[Any] = _times(column) if name == "timestamp" else column.to_pylist()
        if name == "headers":
            given = otherwise or {}
            return [otherwise if each is None else {**given, **dict(each)} for each in values]
        if name == "expiration":
            values = [None if each is None else str(each) for each in values]
        if column.null_count and otherwise is not None:
            return [otherwise if each is None else each for each in values]
        return values

    def _message_ids(
        self,
        batch: pa.RecordBatch,
        exchanges: Iterable[str],
        keys: Iterable[str],
        headers: Iterable[Mapping[str, Any] | None],
        bodies: list[bytes],
    ) -> list[str]:
        given: Iterable[str | None] = repeat(None)
        if self._use_column and self._id_column in batch.schema.names:
            column = batch.column(self._id_column)
            ids: list[str] = column.to_pylist()
            if not column.null_count:
                return ids
            given = ids
        if self._options.ids == "column":
            raise OptionError(
                self._id_column, "is null in a row; with ids=column every row needs an id"
            )
        return [
            self._ids.next(exchange, key, header, body or b"") if name is None else name
            for name, exchange, key, header, body in zip(
                given, exchanges, keys, headers, bodies, strict=False
            )
        ]


def _times(column: pa.Array) -> list[Any]:
    """Values of a column of times; a number for one that Python cannot hold, which is refused as
    the message is encoded."""
    try:
        times: list[Any] = column.to_pylist()
        return times
    except (ValueError, OverflowError):
        return [_time(value) for value in column]


def _time(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return value.value
