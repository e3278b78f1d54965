"""Readers of RabbitMQ streams by their offsets. (placeholder)"""

from __future__ import annotations

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from broker_client.spark.options import SourceOptions


class StreamQueueStreamReader(DataSourceStreamReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options


class StreamQueueReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
