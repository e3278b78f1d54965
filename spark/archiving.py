"""`archive`: takes dead letters out of their queue and keeps them for `replay`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from broker_client.errors import UsageError
from spark.tables import show, show_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ArchiveError(UsageError):
    """The archive cannot be created with these arguments."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"archive: {self.reason}"


def check(options: argparse.Namespace) -> None:
    """Check the arguments before a session is started.

    Raises:
        ArchiveError: something is missing.
    """
    if options.spool is None and "://" in options.out:
        raise ArchiveError("--spool needs a folder on this machine, since --out is elsewhere")


def run(spark: SparkSession, options: argparse.Namespace, console: Console) -> int:
    """Add to the archive what is in the queue now; returns the exit status.

    A message is acked once it is on disk in the spool, and a batch of the spool is in the archive
    as a whole or not at all. So each message gets into the archive, whichever process is killed.

    Raises:
        ArchiveError: the query failed.
    """
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    import broker_client.spark
    from spark import jobs

    broker_client.spark.register(spark)
    out = options.out
    given = {
        "url": options.url,
        "urlEnv": options.url_env,
        "configFile": options.config,
        "queue": options.queue,
        "subscription": options.subscription,
        "vhost": options.vhost,
        "spool": options.spool or f"{out}/_spool",
        "headers": "json",
    }
    reader = spark.readStream.format("broker")
    deliveries = reader.options(**{key: value for key, value in given.items() if value}).load()
    query = (
        jobs.archive(deliveries)
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", f"{out}/_checkpoint")
        .partitionBy("dt")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise ArchiveError(cause(str(error))) from error
    taken = sum(each.numInputRows for each in query.recentProgress)
    archived = read_archive(spark, out)
    table = archived.groupBy("queue", "reason").agg(
        F.count("*").alias("messages"),
        F.min("died_at").alias("first_died_at"),
        F.max("died_at").alias("last_died_at"),
    )
    show(console, "the archive, by where messages died", table.orderBy("queue", "reason"))
    counts = {"taken_from_the_queue": taken, "in_the_archive": archived.count()}
    show_counts(console, f"archived in {out}", counts)
    return 0


def cause(text: str) -> str:
    """The text of our error within a query's failure, which is several pages long."""
    ours = re.findall(r"^\s*broker_client\.[\w.]+: (.+?)(?: SQLSTATE.*)?$", text, re.MULTILINE)
    return str(ours[-1]) if ours else text  # what was raised last, and explains


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """An archive of messages, as Parquet or, in a local folder without any, as JSON lines.

    Times in JSON lines are µs since the epoch.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody who uses Spark writes it

    from broker_client.spark.event_log import ARCHIVE_SCHEMA

    if "://" not in path and not Path(path).is_dir():
        raise FileNotFoundError(f"there is no archive at {path}")
    if "://" in path or next(Path(path).rglob("*.parquet"), None) is not None:
        return spark.read.schema(ARCHIVE_SCHEMA).parquet(path)
    times = [field.name for field in ARCHIVE_SCHEMA if field.dataType.typeName() == "timestamp"]
    lines = ", ".join(
        f"{field.name} {'bigint' if field.name in times else field.dataType.simpleString()}"
        for field in ARCHIVE_SCHEMA
    )
    read = spark.read.schema(lines).json(path)
    return read.withColumns({name: F.timestamp_micros(name) for name in times})
