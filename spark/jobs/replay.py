"""`replay`: which dead letters to publish again. Publishing them is up to the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

MANIFEST_COLUMNS = ("message_id", "replay_id", "request", "publication", "replayed_at")


def replay(
    events: DataFrame,
    *,
    request: str,
    manifest: DataFrame | None = None,
    archive: DataFrame | None = None,
    reasons: Sequence[str] = (),
    queues: Sequence[str] = (),
    routing_key: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
) -> DataFrame:
    """Dead letters that were neither acked later in their queue nor replayed; batch only.

    Each gets the id ``replay-<message id>-<request>``, the same in every run of one request, and
    the headers ``x-replay-of`` and ``x-replay-request``.

    Args:
        request: name of this replay.
        manifest: what was replayed before; its messages are left out.
        archive: bodies and headers; messages it does not have are left out.
        reasons: of the dead-lettering; empty takes any.
        queues: in which they died; empty takes any.
        routing_key: a pattern of SQL's LIKE.
        since: first time, inclusive.
        until: last time, exclusive.
        limit: at most so many, the oldest first.
    """
    dead = events.filter((F.col("event") == "dead_lettered") & F.col("message_id").isNotNull())
    if reasons:
        dead = dead.filter(F.col("reason").isin(list(reasons)))
    if queues:
        dead = dead.filter(F.col("queue").isin(list(queues)))
    if routing_key is not None:
        dead = dead.filter(F.col("routing_key").like(routing_key))
    if since is not None:
        dead = dead.filter(F.col("ts") >= F.lit(since).cast("timestamp"))
    if until is not None:
        dead = dead.filter(F.col("ts") < F.lit(until).cast("timestamp"))
    letters = dead.groupBy("message_id").agg(
        F.max("ts").alias("died_at"),
        *[
            F.max_by(each, F.struct("ts", "seq")).alias(each)
            for each in ("queue", "reason", "exchange", "routing_key", "size")
        ],
    )
    acked = events.filter(F.col("event") == "acked").select(
        F.col("message_id").alias("acked_id"),
        F.col("queue").alias("acked_in"),
        F.col("ts").alias("acked_at"),
    )
    later = (
        (F.col("message_id") == F.col("acked_id"))
        & (F.col("queue") == F.col("acked_in"))
        & (F.col("acked_at") > F.col("died_at"))
    )
    letters = letters.join(acked, later, "left_anti")
    if manifest is not None:
        letters = letters.join(manifest.select("message_id"), "message_id", "left_anti")
    if archive is not None:
        bodies = archive.select("message_id", "headers", "content_type", "body")
        letters = letters.join(bodies.dropDuplicates(["message_id"]), "message_id")
    letters = letters.withColumn(
        "replay_id", F.concat(F.lit("replay-"), "message_id", F.lit(f"-{request}"))
    ).withColumn("request", F.lit(request))
    letters = letters.orderBy("died_at", "message_id")
    return letters if limit is None else letters.limit(limit)
