"""Rows of a DataFrame as messages: which columns mean what, and the ids. No pyspark here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from broker_client.message import PERSISTENT, TRANSIENT, Outgoing, Properties
from broker_client.spark.endpoints import Target
from broker_client.spark.errors import OptionError
from broker_client.spark.ids import Ids
from broker_client.spark.options import SinkOptions

_TEXT_PROPERTIES = (
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
)
_ID = Properties._fields.index("message_id")
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
                "is no column of a message; drop it, or set ignoreUnknownColumns=true",
                tuple(known),
            )
        allowed = COLUMNS.get(name, ("string",))
        if kind not in allowed and kind != "void":
            raise OptionError(name, f"is of type {kind}; it must be {' or '.join(allowed)}")


class MessageMaker:
    """Makes messages of the rows of one task, in their order.

    Args:
        options: of the sink.
        target: exchange and routing key where a row has none.
        ids: names messages that bring no id.
    """

    def __init__(self, options: SinkOptions, target: Target, ids: Ids) -> None:
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

    def messages(self, batch: pa.RecordBatch) -> list[Outgoing]:
        """The messages of `batch`."""
        names = batch.schema.names
        columns = {name: batch.column(name).to_pylist() for name in COLUMNS if name in names}
        if self._use_column and self._id_column in names:
            columns["message_id"] = batch.column(self._id_column).to_pylist()
        rows = batch.num_rows
        bodies = columns.pop("body")
        exchanges = columns.pop("exchange", None) or [None] * rows
        keys = columns.pop("routing_key", None) or [None] * rows
        given_ids = columns.pop("message_id", None) or [None] * rows
        if not self._use_column:
            given_ids = [None] * rows
        properties = self._properties(columns, rows)
        mandatory, dedupes = self._options.mandatory, self._options.dedupe_header
        made = []
        for body, exchange, key, given, property_ in zip(
            bodies, exchanges, keys, given_ids, properties, strict=True
        ):
            if body is None:
                raise OptionError(
                    "body", "is null in a row; a message needs a body, if an empty one"
                )
            content = body.encode() if isinstance(body, str) else body
            to = self._target.exchange if exchange is None else exchange
            by = self._target.routing_key if key is None else key
            name = given if given is not None else self._new_id(to, by, property_.headers, content)
            # As `_replace(message_id=name)` does, in half the time.
            complete = Properties._make((*property_[:_ID], name, *property_[_ID + 1 :]))
            if dedupes:
                headers = {**(property_.headers or {}), DEDUPE_HEADER: name}
                complete = complete._replace(headers=headers)
            made.append(Outgoing(to, by, content, complete, mandatory))
        return made

    def _new_id(
        self, exchange: str, key: str, headers: Mapping[str, Any] | None, body: bytes
    ) -> str:
        if self._options.ids == "column":
            raise OptionError(
                self._id_column, "is null in a row; with ids=column every row needs an id"
            )
        return self._ids.next(exchange, key, headers, body)

    def _properties(self, columns: Mapping[str, Sequence[Any]], rows: int) -> list[Properties]:
        if not columns:
            return [self._template] * rows
        made = []
        names = list(columns)
        for values in zip(*columns.values(), strict=True):
            given = {
                name: value for name, value in zip(names, values, strict=True) if value is not None
            }
            if "headers" in given:
                given["headers"] = {**(self._template.headers or {}), **dict(given["headers"])}
            if "expiration" in given:
                given["expiration"] = str(given["expiration"])
            made.append(self._template._replace(**given))
        return made
