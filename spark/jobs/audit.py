"""`audit`: does the log account for every message? Was one lost, or handled twice?"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from spark.jobs.common import STAY_ENDS, count_of, with_end

LOST, WAITING = "lost", "waiting"
DUPLICATE, NEVER_ENQUEUED = "duplicate", "never_enqueued"


def audit(events: DataFrame, *, settle: float = 60.0, as_of: str | None = None) -> DataFrame:
    """One row per message, queue and problem; batch only.

    * `lost`: confirmed to its publisher, at least `settle` seconds ago, and no end seen: it may
      only be waiting in `queue`, and `last_event` says where it stands.
    * `waiting`: the same of a dead letter that was enqueued and never delivered nor replayed. That
      is what queues of dead letters are for, so it is `explained`.
    * `duplicate`: acked more often than once. `explained` when it was enqueued, published or
      redelivered that often; otherwise a message was settled twice.
    * `never_enqueued`: delivered out of a queue into which it was not seen to go.

    Messages without an id cannot be followed and are left out.

    Args:
        settle: seconds.
        as_of: end of the log; by default the time of its last event.
    """
    known = with_end(events.filter(F.col("message_id").isNotNull()), as_of)
    stays = _stays(known)
    age = F.unix_micros("as_of") - F.unix_micros("published_ts")
    lost = (F.col("confirmed") > 0) & (age >= int(settle * 1_000_000))
    in_a_queue = F.col("queue").isNotNull()
    still_in = in_a_queue & F.when(
        F.col("enqueued") > 0, F.col("enqueued") > F.col("ends")
    ).otherwise((F.col("ends") == 0) & (F.col("last_event") != "nacked"))
    is_letter = (F.col("dead_lettered") > 0) & (F.col("last_event") == "enqueued")
    # It is in no queue, which is reported once, in the row of events outside of queues.
    nowhere = ~in_a_queue & (F.col("all_ends") == 0) & (F.col("queues") == 0)
    # A node counts each time it puts a message into a queue; a client only sees redeliveries.
    allowed = F.when(F.col("enqueued") > 0, F.col("enqueued")).otherwise(
        F.greatest(F.col("published"), F.lit(1)) + F.col("redelivered")
    )
    acked, from_node = F.col("acked"), F.col("from_node")
    found = F.array(
        _problem(
            lost & still_in & ~is_letter, LOST, F.lit(False), F.greatest("enqueued", F.lit(1))
        ),
        _problem(
            lost & still_in & is_letter & (F.col("replayed") == 0), WAITING, F.lit(True), F.lit(1)
        ),
        _problem(lost & nowhere, LOST, F.lit(False), F.lit(1)),
        _problem(in_a_queue & (acked > 1), DUPLICATE, acked <= allowed, acked),
        _problem(
            (from_node > 0) & (F.col("enqueued") == 0), NEVER_ENQUEUED, F.lit(False), from_node
        ),
    )
    return (
        stays.withColumn("found", F.explode(F.array_compact(found)))
        .select(
            "found.problem",
            "message_id",
            "queue",
            "found.explained",
            "found.times",
            "last_event",
            F.col("published_ts").alias("published_at"),
        )
        .orderBy("problem", "message_id", "queue")
    )


def audit_summary(events: DataFrame, problems: DataFrame) -> DataFrame:
    """One row: distinct messages by what became of them, and how many problems there are."""

    def ids(*names: str) -> Column:
        return F.count_distinct(F.when(F.col("event").isin(*names), F.col("message_id")))

    def problem(name: str, explained: bool) -> Column:
        return F.count(F.when((F.col("problem") == name) & (F.col("explained") == explained), 1))

    counts = events.agg(
        ids("published").alias("published"),
        ids("confirmed").alias("confirmed"),
        ids("returned").alias("returned"),
        ids("publish_failed").alias("publish_failed"),
        ids("delivered").alias("delivered"),
        ids("acked").alias("handled"),
        ids("dead_lettered").alias("dead_lettered"),
        ids("expired", "dropped").alias("dropped"),
        ids("replayed").alias("replayed"),
        F.count(F.when(F.col("message_id").isNull(), 1)).alias("events_without_id"),
    )
    found = problems.agg(
        problem(LOST, False).alias("lost"),
        problem(WAITING, True).alias("dead_letters_waiting"),
        problem(DUPLICATE, True).alias("duplicates_explained"),
        problem(DUPLICATE, False).alias("duplicates_unexplained"),
        problem(NEVER_ENQUEUED, False).alias("never_enqueued"),
    )
    missing = gaps(events).agg(F.coalesce(F.sum("missing"), F.lit(0)).alias("events_missing"))
    return counts.crossJoin(found).crossJoin(missing)


def gaps(events: DataFrame) -> DataFrame:
    """Events that a writer numbered and that are not in the log: dropped, or in a missing file."""
    boot = F.regexp_extract("event_id", r"^(.*)-\d+$", 1)
    counted = events.groupBy(boot.alias("writer")).agg(
        F.min("seq").alias("first"), F.max("seq").alias("last"), F.count("*").alias("n")
    )
    missing = F.col("last") - F.col("first") + 1 - F.col("n")
    return counted.select("writer", "first", "last", "n", missing.alias("missing")).orderBy(
        "writer"
    )


def _stays(events: DataFrame) -> DataFrame:
    """A row a message and queue, and one for what happened outside of queues, with the sums."""
    order = F.struct("ts", "seq")
    delivered = F.col("event") == "delivered"
    # A replay is not part of the stay: it comes after its end.
    within = F.when(F.col("event") != "replayed", order)
    counts = events.groupBy("message_id", "queue", "as_of").agg(
        count_of("published").alias("published"),
        count_of("confirmed").alias("confirmed"),
        count_of("enqueued").alias("enqueued"),
        count_of("dead_lettered").alias("dead_lettered"),
        count_of(*STAY_ENDS, "returned").alias("ends"),
        count_of("acked").alias("acked"),
        F.count(F.when(delivered & F.col("redelivered"), 1)).alias("redelivered"),
        # Only a node knows when a message was enqueued.
        F.count(F.when(delivered & F.col("enqueued_at").isNotNull(), 1)).alias("from_node"),
        F.min(F.coalesce("published_at", "ts")).alias("published_ts"),
        count_of("replayed").alias("replayed"),
        F.max_by("event", within).alias("last_event"),
    )
    summed = ("published", "confirmed", "dead_lettered", "replayed", "published_ts")
    own = [name for name in counts.columns if name not in ("message_id", "as_of", *summed)]
    return (
        counts.groupBy("message_id", "as_of")
        .agg(
            F.sum("published").alias("published"),
            F.sum("confirmed").alias("confirmed"),
            F.sum("dead_lettered").alias("dead_lettered"),
            F.sum("replayed").alias("replayed"),
            F.min("published_ts").alias("published_ts"),
            F.sum("ends").alias("all_ends"),
            F.count("queue").alias("queues"),
            F.collect_list(F.struct(*own)).alias("stays"),
        )
        .withColumn("stay", F.explode("stays"))
        .select(
            "message_id",
            "as_of",
            *summed,
            "all_ends",
            "queues",
            *[F.col(f"stay.{name}").alias(name) for name in own],
        )
    )


def _problem(is_one: Column, name: str, explained: Column, times: Column) -> Column:
    return F.when(
        is_one,
        F.struct(
            F.lit(name).alias("problem"),
            explained.alias("explained"),
            times.cast("long").alias("times"),
        ),
    )
