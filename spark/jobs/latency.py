"""`latency`: how long messages wait in a queue, are handled, and take in all.

Events carry the times of what came before them, so nothing is joined.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from spark.jobs.common import at, milliseconds

PERCENTILES = (0.5, 0.95, 0.99)
BUCKETS_PER_DOUBLING = 4
"""Of the histogram: a percentile taken from it is off by 9 % at most."""
_ACCURACY = 10_000


def durations(events: DataFrame) -> DataFrame:
    """One row a measured span: `queue`, `ts`, `phase`, `ms`.

    `wait`: enqueued to first delivery. `handle`: delivered to acked. `total`: published to acked.
    """
    first = F.coalesce(F.col("attempt"), F.lit(1)) == 1
    phases = F.array(
        _phase("wait", F.when(first, at("delivered")), F.col("enqueued_at")),
        _phase("handle", at("acked"), F.col("delivered_at")),
        _phase("total", at("acked"), F.col("published_at")),
    )
    spans = events.filter(F.col("queue").isNotNull() & F.col("event").isin("delivered", "acked"))
    return (
        spans.select("queue", "ts", F.explode(phases).alias("span"))
        .select("queue", "ts", "span.phase", "span.ms")
        .filter(F.col("ms").isNotNull())
    )


def latency(events: DataFrame, *, window: str = "1 minute", exact: bool = False) -> DataFrame:
    """Percentiles in milliseconds for each queue, phase and window; batch only.

    Args:
        window: its length.
        exact: sort all values instead of sketching them: for small inputs.
    """
    wanted = F.array(*[F.lit(each) for each in PERCENTILES])
    sketch = F.percentile("ms", wanted) if exact else F.percentile_approx("ms", wanted, _ACCURACY)
    grouped = durations(events).groupBy("queue", "phase", F.window("ts", window).alias("w"))
    table = grouped.agg(
        F.count("*").alias("n"), sketch.alias("p"), F.max("ms").alias("max_ms")
    ).select(
        "queue",
        "phase",
        F.col("w.start").alias("window"),
        "n",
        *[F.col("p")[i].alias(f"p{each * 100:.0f}_ms") for i, each in enumerate(PERCENTILES)],
        "max_ms",
    )
    return table.orderBy("queue", "phase", "window")


def latency_histogram(
    events: DataFrame, *, window: str = "1 minute", watermark: str = "2 minutes"
) -> DataFrame:
    """Counts in logarithmic buckets for each queue, phase and window; for streams, and mergeable.

    Args:
        watermark: how late an event may come, in a stream; a window comes out once it has passed,
            so the last ones stay inside until later events arrive.
    """
    if events.isStreaming:
        events = events.withWatermark("ts", watermark)
    micros = F.greatest(F.col("ms") * 1000, F.lit(1.0))
    bucket = F.floor(F.log2(micros) * BUCKETS_PER_DOUBLING).cast("int")
    counted = durations(events).withColumn("bucket", bucket)
    grouped = counted.groupBy("queue", "phase", F.window("ts", window).alias("w"), "bucket")
    return grouped.agg(F.count("*").alias("n"), F.max("ms").alias("max_ms")).select(
        "queue", "phase", F.col("w.start").alias("window"), "bucket", "n", "max_ms"
    )


def from_histogram(histogram: DataFrame) -> DataFrame:
    """The result of `latency` from (merged) histograms; each value is the middle of its bucket."""
    key = ["queue", "phase", "window"]
    merged = histogram.groupBy(*key, "bucket").agg(
        F.sum("n").alias("n"), F.max("max_ms").alias("max_ms")
    )
    upto = Window.partitionBy(*key).orderBy("bucket")
    ranked = merged.withColumn("below", F.sum("n").over(upto)).withColumn(
        "all", F.sum("n").over(Window.partitionBy(*key))
    )
    middle = F.pow(F.lit(2.0), (F.col("bucket") + 0.5) / BUCKETS_PER_DOUBLING) / 1000
    columns = [
        F.min(F.when(F.col("below") >= F.col("all") * each, middle)).alias(f"p{each * 100:.0f}_ms")
        for each in PERCENTILES
    ]
    table = ranked.groupBy(*key).agg(
        F.sum("n").alias("n"), *columns, F.max("max_ms").alias("max_ms")
    )
    return table.orderBy(*key)


def _phase(name: str, later: Column, earlier: Column) -> Column:
    return F.struct(F.lit(name).alias("phase"), milliseconds(later, earlier).alias("ms"))
