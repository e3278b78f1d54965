"""`reliability`: how often deliveries fail, and why."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from spark.jobs.common import count_of

COUNTED = (
    "acked",
    "nacked",
    "requeued",
    "timed_out",
    "dead_lettered",
    "expired",
    "dropped",
    "replayed",
)
RATED = ("nacked", "timed_out", "dead_lettered")
TROUBLE = (
    "returned",
    "publish_failed",
    "nacked",
    "requeued",
    "timed_out",
    "dead_lettered",
    "expired",
    "dropped",
)


def reliability(events: DataFrame) -> DataFrame:
    """Counts, and rates of all deliveries, a queue and subscription.

    A rate is null where nothing was delivered. In a stream use output mode `complete`.
    """
    redelivered = F.count(F.when((F.col("event") == "delivered") & F.col("redelivered"), 1))
    counts = (
        events.filter(F.col("queue").isNotNull())
        .groupBy("queue", "subscription")
        .agg(
            count_of("delivered").alias("delivered"),
            redelivered.alias("redelivered"),
            *[count_of(each).alias(each) for each in COUNTED],
        )
    )
    return counts.select(
        "*",
        *[_rate(each).alias(f"{each}_rate") for each in ("redelivered", *RATED)],
    )


def causes(events: DataFrame) -> DataFrame:
    """Counts of each kind of failure, by reason and class of error. Stream: mode `complete`."""
    return (
        events.filter(F.col("event").isin(*TROUBLE))
        .groupBy("queue", "event", "reason", "error_class")
        .agg(F.count("*").alias("n"), F.max("error").alias("example"))
    )


def _rate(name: str) -> Column:
    return F.try_divide(F.col(name), F.col("delivered"))
