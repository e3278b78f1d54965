"""Expressions that several jobs use."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

STAY_ENDS = ("acked", "dead_lettered", "expired", "dropped")
"""With exactly one of these a stay in a queue ends."""


def count_of(*events: str) -> Column:
    """Aggregate: the number of rows that are one of `events`."""
    return F.count(F.when(F.col("event").isin(*events), 1))


def at(*events: str) -> Column:
    """The time of a row that is one of `events`, else null."""
    return F.when(F.col("event").isin(*events), F.col("ts"))


def milliseconds(later: Column, earlier: Column) -> Column:
    """Between two timestamps, to the microsecond."""
    return (F.unix_micros(later) - F.unix_micros(earlier)) / 1000


def with_end(events: DataFrame, as_of: str | None) -> DataFrame:
    """`events` with the column `as_of`: the time given, or that of the last event."""
    if as_of is not None:
        return events.withColumn("as_of", F.lit(as_of).cast("timestamp"))
    return events.crossJoin(F.broadcast(events.agg(F.max("ts").alias("as_of"))))
