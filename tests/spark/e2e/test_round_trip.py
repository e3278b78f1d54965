"""From the driver through a queue, Spark and another queue to a subscriber, accounted
for by the audit of the event log."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_client import Broker
from broker_client.spark import DriverPublisher
from broker_client.spark.event_log import read_events
from spark.jobs.audit import audit
from tests.spark.queues import Queues, numbered
from tests.spark.streams import WAIT, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 3_000


def test_every_message_arrives_and_the_audit_finds_nothing(
    spark: SparkSession, queues: Queues, tmp_path: Path
) -> None:
    config = {
        "vhosts": {
            queues.vhost: {
                "connection": queues.url,
                "queues": ["in", "out"],
                "publications": {"start": {"queue": "in"}},
                "subscriptions": {"end": {"queue": "out", "prefetch": 500}},
            }
        }
    }
    events = tmp_path / "events"
    with DriverPublisher(config, event_log=events) as publisher:
        frame = spark.range(ROWS).selectExpr(
            "concat('m', id) message_id", "cast(id as string) body"
        )
        report = publisher.publish_frame(frame, "start")
        assert report.published == report.confirmed == ROWS

        stream = Stream(spark, queues, "in", tmp_path, segmentRows=300, maxRowsPerTrigger=1200)
        doubled = stream.frame().selectExpr(
            "message_id", "cast(2 * cast(cast(body as string) as int) as string) body"
        )
        writer = doubled.writeStream.format("broker").trigger(availableNow=True)
        writer = writer.option("url", queues.url).option("routingKey", "out")
        query = writer.option("checkpointLocation", str(stream.checkpoint)).start()
        assert query.awaitTermination(WAIT)
        query.stop()
        handled = publisher.run(_handled)

    assert Counter(name for name, _ in handled) == Counter(numbered(ROWS))
    assert all(content == str(2 * int(name[1:])) for name, content in handled)
    problems = audit(read_events(spark, events), settle=0.0)
    assert problems.collect() == []
    seen = {row["event"]: row["count"] for row in _counts(spark, events)}
    assert seen["published"] == seen["confirmed"] == seen["acked"] == ROWS


async def _handled(broker: Broker) -> list[tuple[str, Any]]:
    """(id, content) of all that the subscription `end` gives."""
    got: list[tuple[str, Any]] = []
    done = asyncio.Event()

    async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
        text = content.decode() if isinstance(content, bytes) else content
        got.append((message.message_id, text))
        await ack_or_nack()
        if len(got) >= ROWS:
            done.set()

    subscription = await broker.subscribe("end", handle)
    async with asyncio.timeout(50):
        await done.wait()
    await subscription.cancel()
    return got


def _counts(spark: SparkSession, events: Path) -> list[Any]:
    return read_events(spark, events).groupBy("event").count().collect()
