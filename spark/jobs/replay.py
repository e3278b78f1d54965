"""`replay`: which dead letters to publish again. The pipeline publishes them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from broker_client.events.delivery_event import ACKED, DEAD_LETTERED, REPLAYED

PROPERTIES = (
    "headers",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "priority",
    "published_at",
)
"""What a copy takes from the message in addition to its body."""
_LETTER = ("queue", "reason", "exchange", "routing_key", "size")


def replay(
    events: DataFrame | None,
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

    The log names them, and so does an archive, which a broker without a log has only. Each gets
    the id ``replay-<message id>-<request>``, the same in every run of one request.

    Args:
        events: the log; None takes the dead letters from the archive.
        request: name of this replay.
        manifest: what was replayed before; its messages are left out.
        archive: bodies and properties; messages it does not have are left out.
        reasons: of the dead-lettering; empty takes any.
        queues: in which they died; empty takes any.
        routing_key: a pattern of SQL's LIKE.
        since: first time, inclusive.
        until: last time, exclusive.
        limit: at most so many, the oldest first.

    Raises:
        ValueError: neither a log nor an archive was given.
    """
    dead = _deaths(events, archive)
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
        *[F.max_by(each, F.struct("ts", "seq")).alias(each) for each in _LETTER],
    )
    if events is not None:
        letters = _without_later(letters, events)
    if manifest is not None:
        letters = letters.join(manifest.select("message_id"), "message_id", "left_anti")
    if archive is not None:
        newest = F.struct("archived_at", "died_at")
        bodies = archive.groupBy("message_id").agg(
            *[F.max_by(each, newest).alias(each) for each in ("body", *PROPERTIES)]
        )
        letters = letters.join(bodies, "message_id")
    letters = letters.withColumn(
        "replay_id", F.concat(F.lit("replay-"), "message_id", F.lit(f"-{request}"))
    ).withColumn("request", F.lit(request))
    letters = letters.orderBy("died_at", "message_id")
    return letters if limit is None else letters.limit(limit)


def _deaths(events: DataFrame | None, archive: DataFrame | None) -> DataFrame:
    """One row per death, with `_LETTER`, `message_id`, `ts` and `seq`."""
    columns = ["message_id", "ts", "seq", *_LETTER]
    sources = []
    if events is not None:
        sources.append(events.filter(F.col("event") == DEAD_LETTERED).select(*columns))
    if archive is not None:
        died = (
            archive.filter(F.col("died_at").isNotNull())
            .withColumn("ts", F.col("died_at"))
            .withColumn("seq", F.lit(0).cast("bigint"))
            .withColumn("size", F.octet_length(F.unbase64("body")))
        )
        sources.append(died.select(*columns))
    if not sources:
        raise ValueError("replay needs a log, an archive, or both")
    both = sources[0] if len(sources) == 1 else sources[0].union(sources[1])
    return both.filter(F.col("message_id").isNotNull())


def _without_later(letters: DataFrame, events: DataFrame) -> DataFrame:
    """`letters` less those that were acked in their queue, or replayed, after they died."""
    ends = events.filter(F.col("event").isin(ACKED, REPLAYED)).select(
        F.col("message_id").alias("ended_id"),
        F.col("queue").alias("ended_in"),
        F.col("ts").alias("ended_at"),
    )
    later = (
        (F.col("message_id") == F.col("ended_id"))
        & F.col("queue").eqNullSafe(F.col("ended_in"))
        & (F.col("ended_at") > F.col("died_at"))
    )
    return letters.join(ends, later, "left_anti")
