"""``format("broker")``: what Spark asks for a reader or writer."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from broker_client.spark.options import SinkOptions, SourceOptions, parse
from broker_client.spark.reading.queue_source import QueueReader, QueueStreamReader
from broker_client.spark.reading.rows import DDL, STREAM_DDL
from broker_client.spark.reading.stream_source import StreamQueueReader, StreamQueueStreamReader
from broker_client.spark.writing.sink import BrokerBatchWriter, BrokerStreamWriter


class BrokerDataSource(DataSource):
    """The data source ``broker``. `broker_client.spark.register` makes it known to a session."""

    speculates: ClassVar[bool] = False
    """Spark may run two attempts of one task at a time (``spark.speculation``)."""

    @classmethod
    def name(cls) -> str:
        """The word for `format`."""
        return "broker"

    def _source(self) -> SourceOptions:
        return parse(SourceOptions, self.options)

    def schema(self) -> str:
        """Columns of a read."""
        return STREAM_DDL if self._source().mode == "stream" else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = self._source()
        return StreamQueueReader(options) if options.mode == "stream" else QueueReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        options = self._source()
        if options.mode == "stream":
            return StreamQueueStreamReader(options)
        return QueueStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``; queues are appended to, so `overwrite` is refused."""
        options = parse(SinkOptions, self.options)
        return BrokerBatchWriter(options, schema, overwrite, speculates=self.speculates)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """For ``df.writeStream``."""
        options = parse(SinkOptions, self.options)
        return BrokerStreamWriter(options, schema, overwrite, speculates=self.speculates)


class SpeculatingBrokerDataSource(BrokerDataSource):
    """The same in a session with ``spark.speculation``, which writers must know."""

    speculates = True
