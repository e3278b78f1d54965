"""`compact`: JSON lines to Parquet, each event once, a folder a day."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from broker_client.spark.event_log import deduplicated, whole


def compact(events: DataFrame, *, watermark: str = "1 hour") -> DataFrame:
    """Whole events, each once, with the column `dt` to partition by.

    Args:
        watermark: how much later than its original a copy may come, in a stream.
    """
    once = deduplicated(whole(events), watermark=watermark)
    return once.withColumn("dt", F.to_date("ts"))
