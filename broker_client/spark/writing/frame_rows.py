"""The rows of a DataFrame as messages: which columns they are made of, and how they are fetched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from broker_client.codec.content import JSON
from broker_client.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

FrameRow = Sequence[Any]
"""Content, routing key, message id and headers."""

ARROW_MAX_BYTES = 64 * 2**20
_ARROW_BATCH = 2_000
_JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Of `to_json`: by default Spark leaves null fields out, and cuts times to milliseconds and zones
to minutes."""


def projected(
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


def arrow_rows(frame: DataFrame, max_bytes: int) -> Iterator[FrameRow]:
    estimate = _estimated_bytes(frame)
    if estimate > max_bytes:
        raise OptionError(
            "mode",
            f"arrow would collect about {estimate:,} bytes, and {max_bytes:,} are allowed; use "
            "mode='iterator', or raise arrow_max_bytes",
        )
    for batch in frame.toArrow().to_batches(_ARROW_BATCH):
        columns = [_values(batch.column(index)) for index in range(4)]
        yield from zip(*columns, strict=True)


def _values(column: pa.Array) -> Iterable[Any]:
    """The values of a column; one without any costs nothing a row."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    values: list[Any] = column.to_pylist()
    return values


def _estimated_bytes(frame: DataFrame) -> int:
    """Rows times the mean size of a sample: one cheap job, and a guess."""
    sample = frame.limit(200).toArrow()
    if sample.num_rows < 200:
        return int(sample.nbytes)
    return int(frame.count() * (sample.nbytes / sample.num_rows))
