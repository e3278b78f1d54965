"""`replay`: shows the dead letters that were chosen and, when told to, publishes them."""

from __future__ import annotations

import argparse
import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from broker_client import Broker
from broker_client.errors import PublishError, UsageError
from spark.tables import show

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_WINDOW = 500  # publishes under way at a time


class ReplayError(UsageError):
    """A replay that cannot be carried out as asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"replay: {self.reason}"


def run(
    spark: SparkSession, events: DataFrame, options: argparse.Namespace, console: Console
) -> int:
    """Choose, show, and publish with ``--execute``; returns the exit status.

    The manifest ``<out>/manifest`` keeps what was replayed, so that the same command run again
    does nothing. It is written after the confirms: a crash in between publishes the same ids once
    more, and never loses one.

    Raises:
        ReplayError: something is missing that publishing needs.
    """
    from spark import jobs

    if options.execute and not (options.archive and options.config and options.publication):
        raise ReplayError("--execute needs --archive (the bodies), --config and --publication")
    manifest = Path(options.out) / "manifest"
    chosen = jobs.replay(
        events,
        request=options.request,
        manifest=spark.read.parquet(str(manifest)) if manifest.is_dir() else None,
        archive=read_archive(spark, options.archive) if options.archive else None,
        reasons=options.reasons,
        queues=options.queues,
        routing_key=options.routing_key,
        since=options.since,
        until=options.until,
        limit=options.limit,
    )
    there = str(Path(options.out) / "selection")
    chosen.coalesce(1).write.mode("overwrite").parquet(there)
    chosen = spark.read.schema(chosen.schema).parquet(there)
    hidden = [name for name in ("body", "headers") if name in chosen.columns]
    show(console, "dead letters to replay", chosen.drop(*hidden))
    if not options.execute:
        console.print("A dry run: nothing was published. --execute publishes them.", style="yellow")
        return 0
    return _publish(spark, chosen.collect(), manifest, options, console)


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """An archive of messages, as JSON lines (times in µs) or as Parquet."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    from broker_client.spark.events import ARCHIVE_SCHEMA

    if next(Path(path).rglob("*.parquet"), None) is not None:
        return spark.read.schema(ARCHIVE_SCHEMA).parquet(path)
    lines = ", ".join(
        f"{field.name} {'bigint' if field.name == 'published_at' else 'string'}"
        for field in ARCHIVE_SCHEMA
    )
    read = spark.read.schema(lines).json(path)
    return read.withColumn("published_at", F.timestamp_micros("published_at"))


def _publish(
    spark: SparkSession,
    letters: list[Row],
    manifest: Path,
    options: argparse.Namespace,
    console: Console,
) -> int:
    import pyarrow as pa

    from broker_client.spark import DriverPublisher

    async def publish(broker: Broker) -> list[str]:
        """The ids of those that were confirmed."""
        confirmed: list[str] = []
        for start in range(0, len(letters), _WINDOW):
            under_way = [
                (
                    letter,
                    await broker.publish(
                        options.publication,
                        base64.b64decode(letter["body"] or ""),
                        letter["routing_key"],
                        message_id=letter["replay_id"],
                        content_type=letter["content_type"] or "application/octet-stream",
                        headers={
                            **json.loads(letter["headers"] or "{}"),
                            "x-replay-of": letter["message_id"],
                            "x-replay-request": options.request,
                        },
                    ),
                )
                for letter in letters[start : start + _WINDOW]
            ]
            for letter, publication in under_way:
                try:
                    await publication
                except PublishError as error:
                    console.print(str(error), style="red", markup=False)
                else:
                    confirmed.append(letter["message_id"])
        return confirmed

    if not letters:
        return 0
    with DriverPublisher(options.config) as publisher:
        confirmed = publisher.run(publish, timeout=3600.0)
    now = datetime.now(UTC)
    if confirmed:
        done = pa.table(
            {
                "message_id": confirmed,
                "replay_id": [f"replay-{each}-{options.request}" for each in confirmed],
                "request": [options.request] * len(confirmed),
                "publication": [options.publication] * len(confirmed),
                "replayed_at": pa.array([now] * len(confirmed), pa.timestamp("us", "UTC")),
            }
        )
        spark.createDataFrame(done).coalesce(1).write.mode("append").parquet(str(manifest))
    console.print(f"{len(confirmed)} of {len(letters)} published and confirmed")
    return 0 if len(confirmed) == len(letters) else 1
