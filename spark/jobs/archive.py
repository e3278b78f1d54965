"""`archive`: dead letters as they come out of their queue, with what `replay` needs to know.

RabbitMQ tells of a death in the header ``x-death``, newest first. What recovery sent on with
`forward` has no such header, and tells of its origin in the header ``rascal``.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

from broker_client.message import RASCAL
from broker_client.spark.event_log import ARCHIVE_SCHEMA

_DEATHS = (
    "array<struct<queue string, reason string, exchange string, `routing-keys` array<string>, "
    "time string>>"
)
_HISTORY = (
    "originalQueue string, originalExchange string, originalRoutingKey string, "
    "error struct<message string>"
)
_SAME = ("content_type", "content_encoding", "correlation_id", "reply_to", "type", "app_id")


def archive(deliveries: DataFrame) -> DataFrame:
    """The rows of an archive, with the column `dt` to partition by; batch or stream.

    A message without an id gets one, since `replay` tells messages apart by it.

    Args:
        deliveries: as ``format("broker")`` reads them, with ``headers=json``.
    """
    known = deliveries.withColumn(
        "deaths", F.from_json(F.col("headers")["x-death"], _DEATHS)
    ).withColumn("history", F.from_json(F.col("headers")[RASCAL], _HISTORY))
    # Safe where there is none, unlike an index behind the end of an array.
    newest = F.get("deaths", F.lit(0))
    oldest = F.try_element_at("deaths", F.lit(-1))
    noted = F.col("history.originalQueue")
    # An expiry after recovery has noted a queue is that of a delayed retry, not the end.
    is_retry = noted.isNotNull() & (newest["reason"] == "expired")
    queue = F.when(is_retry, noted).otherwise(F.coalesce(newest["queue"], noted))
    handled = F.when(noted.isNotNull(), F.lit("handler_error"))
    reason = F.when(is_retry, handled).otherwise(F.coalesce(newest["reason"], handled))
    died_at = F.coalesce(newest["time"].cast("timestamp"), F.col("delivered_at"))
    first_key = F.get(oldest["routing-keys"], F.lit(0))
    columns: dict[str, Column] = {
        "message_id": F.coalesce("message_id", F.concat(F.lit("archive-"), F.expr("uuid()"))),
        "published_at": F.col("timestamp"),
        "exchange": F.coalesce("history.originalExchange", oldest["exchange"], "exchange"),
        "routing_key": F.coalesce("history.originalRoutingKey", first_key, "routing_key"),
        "headers": _object(F.col("headers")),
        "body": F.base64("body"),
        **{name: F.col(name) for name in _SAME},
        "priority": F.col("priority"),
        "queue": queue,
        "reason": reason,
        "error": F.col("history.error.message"),
        "died_at": F.when(queue.isNotNull(), died_at),
        "archived_at": F.col("delivered_at"),
    }
    archived = known.select(*[columns[name].alias(name) for name in ARCHIVE_SCHEMA.names])
    return archived.withColumn("dt", F.to_date("archived_at"))


def _object(headers: Column) -> Column:
    """A JSON object of a map whose values are JSON."""

    def member(entry: Column) -> Column:
        name = F.to_json(F.array(entry["key"]))  # ["the name, escaped"]
        return F.concat(name.substr(F.lit(2), F.length(name) - 2), F.lit(":"), entry["value"])

    members = F.transform(F.map_entries(headers), member)
    return F.concat(F.lit("{"), F.array_join(members, ","), F.lit("}"))
