"""Data sinks that convert rows to messages and drop them, to measure decoding alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import Row, StructType

from broker_client.message import Outgoing, Properties
from broker_client.spark.endpoints import Target
from broker_client.spark.options import SinkOptions
from broker_client.spark.writing.message_ids import ContentIds
from broker_client.spark.writing.messages import MessageMaker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _ArrowWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = SinkOptions(url="amqp://nowhere")
        maker = MessageMaker(options, Target("", "q", None), ContentIds("s", 0))
        for batch in iterator:
            for _ in maker.messages(batch):
                pass
        return WriterCommitMessage()


class _RowWriter(DataSourceWriter):
    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        for row in iterator:
            named = Properties(delivery_mode=2, message_id=row["message_id"])
            Outgoing("", "q", row["body"].encode(), named, True)
        return WriterCommitMessage()


class ArrowSource(DataSource):
    """``format("bench_arrow")``."""

    @classmethod
    def name(cls) -> str:
        return "bench_arrow"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _ArrowWriter()


class RowSource(DataSource):
    """``format("bench_rows")``."""

    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _RowWriter()


def register(spark: SparkSession) -> None:
    """Register both."""
    spark.dataSource.register(ArrowSource)
    spark.dataSource.register(RowSource)
