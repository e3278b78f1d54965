"""Streaming queries for tests: started, awaited, restarted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_client.spark.reading.rows import DDL
from tests.spark.queues import Queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WAIT = 200  # seconds for a query to end, on the busiest machine


class Stream:
    """A query from one queue, with a checkpoint, a spool and an output in `folder`."""

    def __init__(
        self,
        spark: SparkSession,
        queues: Queues,
        queue: str,
        folder: Path,
        *,
        format: str = "parquet",
        **options: Any,
    ) -> None:
        self.format = format
        self.spark, self.queues, self.queue, self.folder = spark, queues, queue, folder
        self.options = {"segmentAge": "200ms", "drainIdle": "1s", **options}
        self.spool = folder / "spool"
        self.checkpoint = folder / "checkpoint"
        self.output = folder / "output"

    def frame(self, source: str = "broker", **more: Any) -> DataFrame:
        options = {
            "url": self.queues.url,
            "queue": self.queue,
            "spool": str(self.spool),
            **self.options,
            **more,
        }
        reader = self.spark.readStream.format(source)
        return reader.options(**options).load()

    def start(self, source: str = "broker", *, once: bool = False, **more: Any) -> StreamingQuery:
        """Into Parquet, or another `format`; `once` ends with what is there now."""
        writer = self.frame(source, **more).writeStream.format(self.format)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        return writer.option("path", str(self.output)).start()

    def run(self, source: str = "broker", **more: Any) -> None:
        """Run the query to its end; raises its error."""
        query = self.start(source, once=True, **more)
        try:
            assert query.awaitTermination(WAIT), "the query did not end"
        finally:
            query.stop()

    def failure(self, source: str = "broker", **more: Any) -> str:
        """Run the query, which must fail; returns the text of its error."""
        from pyspark.errors import StreamingQueryException

        try:
            self.run(source, **more)
        except StreamingQueryException as error:
            return str(error)
        raise AssertionError("the query did not fail")

    def rows(self) -> list[Row]:
        if not self.output.exists():
            return []
        return self.spark.read.schema(DDL).parquet(str(self.output)).collect()

    def segments(self) -> list[str]:
        return sorted(path.name for path in self.spool.glob("*.arrow"))

    def planner(self) -> int:
        """Process id of the query's planner, from its lock."""
        return int((self.spool / "_lock").read_text().split()[1])
