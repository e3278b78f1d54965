"""The delivery-event log as the jobs read it, and as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: str, console: Console) -> DataFrame:
    """The whole events under `path`, each once; other lines are counted and reported."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    from broker_client.spark.event_log import (
        CORRUPT,
        corrupt_lines,
        deduplicated,
        read_events,
        whole,
    )

    events = read_events(spark, path)
    if _is_compacted(path):
        return whole(events)
    bad = corrupt_lines(events)
    if bad:
        example = events.filter(F.col(CORRUPT).isNotNull()).select(CORRUPT, "v").first()
        console.print(
            f"{bad} lines are not events, such as {example}", style="yellow", markup=False
        )
    return deduplicated(whole(events)).persist()  # read and sorted out once, used several times


def compact_to(spark: SparkSession, events: str | Path, out: str | Path) -> None:
    """Add to the Parquet folder `out` the events of the log `events` that it lacks."""
    from broker_client.spark.event_log import read_events
    from spark import jobs

    own = spark.newSession()  # with settings of its own
    own.conf.set("spark.sql.session.timeZone", "UTC")  # days are UTC's
    # Spark's default, INT96, takes a third longer to read, and has no statistics to skip by.
    own.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    query = (
        jobs.compact(read_events(own, events, stream=True, format="json"))
        .writeStream.format("parquet")
        .option("compression", "zstd")
        .option("path", str(out))
        .option("checkpointLocation", f"{out}/_checkpoint")
        .partitionBy("dt")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _is_compacted(path: str) -> bool:
    return (Path(path) / "_spark_metadata").is_dir()
