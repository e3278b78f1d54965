"""`replay`: shows the chosen dead letters and, with ``--execute``, publishes them."""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from broker_client import Broker, load_config
from broker_client.config import BrokerConfig, PublicationConfig
from broker_client.errors import PublishError, UnknownNameError, UsageError
from broker_client.events.delivery_event import REPLAYED, DeliveryEvent
from broker_client.events.log import EventLog
from broker_client.message import RASCAL
from broker_client.publishing.template import PublishOverrides
from spark.archiving import read_archive
from spark.tables import show

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_CHUNK = 1_000  # letters published, and then recorded, at a time
_TIMEOUT = 600.0  # seconds for a chunk
_ADDRESSES = ("CC", "BCC")
_OF_THE_DEAD = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count")
_PROPERTIES = {
    "content_encoding": "content_encoding",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "type": "type",
    "app_id": "app_id",
    "priority": "priority",
    "timestamp": "published_at",
}
"""Of a message, and their columns in an archive."""


class ReplayError(UsageError):
    """The replay cannot be done with these arguments."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"replay: {self.reason}"


def check(options: argparse.Namespace) -> None:
    """Check the arguments before a session is started.

    Raises:
        ReplayError: something is missing.
        ConfigError: the configuration is wrong.
        UnknownNameError: no such publication.
    """
    if not (options.events or options.archive):
        raise ReplayError("which dead letters? --events names a log, --archive an archive")
    if options.execute and not (options.archive and options.config and options.publication):
        raise ReplayError("--execute needs --archive (the bodies), --config and --publication")
    if options.execute:
        _publication_of(load_config(options.config), options.publication)


def run(
    spark: SparkSession, events: DataFrame | None, options: argparse.Namespace, console: Console
) -> int:
    """Choose, show, and publish with ``--execute``; returns the exit status.

    The manifest ``<out>/manifest`` keeps what was replayed, so that the same command run again
    does nothing. It is written after the confirms: a crash in between publishes the same ids once
    more, and never loses one.

    Raises:
        OSError: the log of what was replayed cannot be written.
    """
    from spark import jobs

    manifest = f"{options.out}/manifest"
    archive = read_archive(spark, options.archive) if options.archive else None
    choices = {
        "request": options.request,
        "manifest": _read_manifest(spark, manifest),
        "reasons": options.reasons,
        "queues": options.queues,
        "routing_key": options.routing_key,
        "since": options.since,
        "until": options.until,
    }
    chosen = jobs.replay(events, archive=archive, limit=options.limit, **choices)
    there = f"{options.out}/selection"
    chosen.coalesce(1).write.mode("overwrite").parquet(there)
    chosen = spark.read.schema(chosen.schema).parquet(there)
    hidden = ("body", "request", *jobs.REPLAYED_PROPERTIES)
    shown = [each for each in chosen.columns if each not in hidden]
    show(console, "dead letters to replay", chosen.select(*shown))
    if events is not None and archive is not None:
        without = jobs.replay(events, **choices).join(archive, "message_id", "left_anti").count()
        if without:
            text = f"{without:,} dead letters of the log are not in the archive: left out"
            console.print(text, style="yellow")
    if not options.execute:
        console.print("A dry run: nothing was published. --execute publishes them.", style="yellow")
        return 0
    total = chosen.count()
    if not total:
        return 0
    done = 0
    with _Replay(options, console).open() as replay:
        letters = chosen.toLocalIterator()
        while chunk := list(itertools.islice(letters, _CHUNK)):
            confirmed = replay.publish(chunk)
            _append(spark, manifest, confirmed, options)
            replay.note(confirmed)
            done += len(confirmed)
    console.print(f"{done:,} of {total:,} published and confirmed")
    return 0 if done == total else 1


class _Replay:
    """Publishes dead letters through a publication, and records each in the log."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self._options = options
        self._console = console
        self._config: BrokerConfig = load_config(options.config)
        self._vhost = _publication_of(self._config, options.publication).vhost

    @contextmanager
    def open(self) -> Iterator[_Replay]:
        from broker_client.spark import DriverPublisher

        folder = _log_folder(self._options)
        # A node that writes its own log records the publishes, too.
        of_client = None if self._config.node.event_log.path else folder
        with DriverPublisher(self._config, event_log=of_client) as self._publisher:
            log = None if folder is None else EventLog(folder, f"{socket.gethostname()}-replay")
            self._log = log
            try:
                yield self
            finally:
                if log is not None:
                    log.close()

    def publish(self, letters: list[Row]) -> list[Row]:
        """Those that were confirmed."""

        async def publish(broker: Broker) -> list[Row]:
            under_way = [
                (
                    letter,
                    await broker.publish(
                        self._options.publication,
                        base64.b64decode(letter["body"] or ""),
                        letter["routing_key"],
                        **_overrides(letter),
                    ),
                )
                for letter in letters
            ]
            confirmed = []
            for letter, publication in under_way:
                try:
                    await publication
                except PublishError as error:
                    self._console.print(str(error), style="red", markup=False)
                else:
                    confirmed.append(letter)
            return confirmed

        return self._publisher.run(publish, timeout=_TIMEOUT)

    def note(self, letters: list[Row]) -> None:
        """Write an event for each."""
        if self._log is None:
            return
        now = time.time()
        self._log.record_many(
            [
                DeliveryEvent(
                    REPLAYED,
                    self._vhost,
                    letter["exchange"],
                    letter["routing_key"],
                    letter["queue"],
                    reason=self._options.request,
                    publication=self._options.publication,
                    message_id=letter["message_id"],
                    ts=now,
                    size=letter["size"],
                )
                for letter in letters
            ]
        )
        self._log.flush()


def _publication_of(config: BrokerConfig, name: str) -> PublicationConfig:
    publication = config.find_publication(name)
    if publication is None:
        raise UnknownNameError("publication", name, list(config.publications))
    return publication


def _overrides(letter: Row) -> PublishOverrides:
    """The properties of the copy."""
    given: PublishOverrides = {
        "message_id": letter["replay_id"],
        "content_type": letter["content_type"] or "application/octet-stream",
        "headers": {
            **living_headers(json.loads(letter["headers"] or "{}")),
            "x-replay-of": letter["message_id"],
            "x-replay-request": letter["request"],
        },
    }
    for name, column in _PROPERTIES.items():
        if letter[column] is not None:
            given[name] = letter[column]  # type: ignore[literal-required] # a name of it
    return given


def living_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """`headers` without those of deaths and recovery: the counts of a copy begin again, and it goes
    where its publication sends it."""
    kept = {
        name: value
        for name, value in headers.items()
        if name not in _ADDRESSES and not name.startswith(_OF_THE_DEAD)
    }
    history = kept.pop(RASCAL, None)
    if isinstance(history, dict) and "encryption" in history:
        kept[RASCAL] = {"encryption": history["encryption"]}
    return kept


def _log_folder(options: argparse.Namespace) -> str | None:
    """Where replays are recorded: the log itself, unless it is compacted or remote."""
    if options.log is not None:
        return str(options.log)
    events = options.events
    if events is None or "://" in events or (Path(events) / "_spark_metadata").is_dir():
        return None
    return str(events)


def _read_manifest(spark: SparkSession, path: str) -> DataFrame | None:
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def _append(
    spark: SparkSession, manifest: str, letters: list[Row], options: argparse.Namespace
) -> None:
    import pyarrow as pa

    if not letters:
        return
    count, now = len(letters), datetime.now(UTC)
    done = pa.table(
        {
            "message_id": [letter["message_id"] for letter in letters],
            "replay_id": [letter["replay_id"] for letter in letters],
            "request": [options.request] * count,
            "publication": [options.publication] * count,
            "replayed_at": pa.array([now] * count, pa.timestamp("us", "UTC")),
        }
    )
    spark.createDataFrame(done).coalesce(1).write.mode("append").parquet(manifest)
