"""`poison`: messages that are tried again and again and never succeed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from spark.jobs.common import count_of

_VARYING = r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}|\d+"
"""Numbers, addresses and ids, which differ between messages that fail in the same way."""


def poison(events: DataFrame, *, attempts: int = 3, consumers: int = 3) -> DataFrame:
    """Messages that were delivered often, or to many consumers, and never acked; batch only. One
    row a message and queue.

    Args:
        attempts: so many deliveries, or more.
        consumers: or to so many different consumers.
    """
    order = F.struct("ts", "seq")
    reasoned = F.when(F.col("reason").isNotNull(), order)
    # A dead letter has a reason and no error: the last error was reported before it.
    failed = F.when(F.col("error").isNotNull() | F.col("error_class").isNotNull(), order)
    tried = (
        events.filter(F.col("queue").isNotNull() & F.col("message_id").isNotNull())
        .groupBy("message_id", "queue")
        .agg(
            F.greatest(F.max("attempt"), count_of("delivered").cast("int")).alias("attempts"),
            F.count_distinct(F.when(F.col("event") == "delivered", F.col("consumer"))).alias(
                "consumers"
            ),
            count_of("acked").alias("acked"),
            F.max_by("event", order).alias("last_event"),
            F.max("ts").alias("last_ts"),
            F.max_by("reason", reasoned).alias("reason"),
            F.max_by("error_class", failed).alias("error_class"),
            F.max_by("error", failed).alias("error"),
        )
    )
    kind = F.concat_ws(
        ": ",
        F.coalesce("error_class", "reason", F.lit("unknown")),
        F.regexp_replace("error", _VARYING, "#"),
    )
    return (
        tried.filter(F.col("acked") == 0)
        .filter((F.col("attempts") >= attempts) | (F.col("consumers") >= consumers))
        .withColumn("fingerprint", kind)
        .drop("acked")
        .orderBy(F.desc("attempts"), "message_id", "queue")
    )


def poison_groups(poisoned: DataFrame) -> DataFrame:
    """The results of `poison` by kind of failure."""
    return (
        poisoned.groupBy("queue", "fingerprint")
        .agg(
            F.count("*").alias("messages"),
            F.max("attempts").alias("attempts"),
            F.min("message_id").alias("example"),
        )
        .orderBy(F.desc("messages"), "queue", "fingerprint")
    )
