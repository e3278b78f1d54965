"""`throughput` and `backlog`: how much is handled, and what is waiting."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from spark.jobs.common import STAY_ENDS, at, count_of, with_end


def throughput(
    events: DataFrame, *, window: str = "1 minute", watermark: str = "2 minutes"
) -> DataFrame:
    """Events and bytes a window, queue and kind of event. What has no queue counts under null.

    Args:
        watermark: how late an event may come, in a stream; a window comes out once it has passed,
            so the last ones stay inside until later events arrive.
    """
    if events.isStreaming:
        events = events.withWatermark("ts", watermark)
    grouped = events.groupBy(F.window("ts", window).alias("w"), "queue", "event")
    return grouped.agg(
        F.count("*").alias("n"), F.sum(F.col("size").cast("long")).alias("bytes")
    ).select(F.col("w.start").alias("window"), "queue", "event", "n", "bytes")


def backlog(events: DataFrame, *, window: str = "1 minute", as_of: str | None = None) -> DataFrame:
    """Messages in each queue at the end of each window, and the age of the oldest; batch only.

    Only windows with events of the queue. Needs a node's log: a client does not
    see what is put into a queue.

    Args:
        as_of: end of the log; by default the time of its last event.
    """
    seconds = f"interval {window}"
    inside = events.filter(F.col("queue").isNotNull())
    changes = inside.groupBy("queue", F.window("ts", window).alias("w")).agg(
        count_of("enqueued").alias("entered"), count_of(*STAY_ENDS).alias("left")
    )
    upto = Window.partitionBy("queue").orderBy("w.start")
    depth = changes.select(
        "queue",
        F.col("w.start").alias("window"),
        F.col("w.end").alias("until"),
        "entered",
        "left",
        F.sum(F.col("entered") - F.col("left")).over(upto).alias("backlog"),
    )
    stays = (
        with_end(inside, as_of)
        .filter(F.col("enqueued_at").isNotNull())
        .groupBy("message_id", "queue", "enqueued_at", "as_of")
        .agg(F.min(at(*STAY_ENDS)).alias("ended"))
        .withColumn("ended", F.coalesce("ended", F.col("as_of") + F.expr(seconds)))
    )
    # Few stays cross the end of a window; those of one pair of windows are one row.
    first = F.window("enqueued_at", window)["start"]
    last = F.window("ended", window)["start"]
    spans = (
        stays.withColumn("first", first)
        .withColumn("last", last - F.expr(seconds))
        .filter("first <= last")
        .groupBy("queue", "first", "last")
        .agg(F.min("enqueued_at").alias("oldest"))
    )
    oldest = (
        spans.withColumn("window", F.explode(F.sequence("first", "last", F.expr(seconds))))
        .groupBy("queue", "window")
        .agg(F.min("oldest").alias("oldest"))
    )
    age = (F.unix_micros("until") - F.unix_micros("oldest")) / 1_000_000
    return (
        depth.join(oldest, ["queue", "window"], "left")
        .select("queue", "window", "entered", "left", "backlog", age.alias("oldest_age_s"))
        .orderBy("queue", "window")
    )
