"""Compares the Spark connector with its parts, as ratios of one run on one machine.

python -m bench.spark.connector                      # its own RabbitMQ; some minutes
python -m bench.spark.connector --url amqp://... --rows 5000 --json figures.json
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil

import broker_client.spark
from bench.spark.ratios import Ratio, in_turns, middle
from broker_client import Broker, Publication
from broker_client.config.url import parse_url
from broker_client.message import Delivery
from broker_client.spark import DriverPublisher
from broker_client.spark.loop_thread import LoopThread
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW = 1024
BODY = "x" * 100
ROUNDS = 5
FEED_ROUNDS = 7


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of some rounds, after a first one that warms up."""
    return min([timed(work) for _ in range(rounds + 1)][1:])


class Bench:
    """One session, one broker, one set of queues."""

    def __init__(self, spark: SparkSession, url: str, rows: int, folder: Path) -> None:
        self.spark, self.url, self.rows, self.folder = spark, url, rows, folder
        self.vhost = parse_url(url).vhost or "/"
        self.queue = f"bench-{uuid4().hex[:8]}"
        self.config = {
            "vhosts": {
                self.vhost: {
                    "connection": url,
                    "queues": [self.queue],
                    "publications": {"p": {"queue": self.queue, "timeout": "60s"}},
                }
            }
        }
        self.publisher = DriverPublisher(self.config)

    def close(self) -> None:
        self.publisher.run(lambda broker: broker.nuke())
        self.publisher.close()

    def frame(self, rows: int | None = None, partitions: int = 4) -> DataFrame:
        made = self.spark.range(0, rows or self.rows, 1, partitions)
        return made.selectExpr(f"'{BODY}' as body", "concat('m', id) as message_id")

    def purge(self) -> None:
        self.publisher.run(lambda broker: broker.purge())

    # ------------------------------------------------------------------ driver

    def feeds(self) -> list[Ratio]:
        """Collecting rows in the driver, without publishing."""
        rows = self.rows * 5
        frame = self.frame(rows, partitions=8)

        def arrow() -> int:
            batches = frame.toArrow().to_batches(2000)
            return sum(1 for b in batches for _ in zip(*(c.to_pylist() for c in b), strict=True))

        taken = in_turns(
            {
                "plain": lambda: sum(1 for _ in frame.toLocalIterator()),
                "ahead": lambda: sum(1 for _ in frame.toLocalIterator(prefetchPartitions=True)),
                "arrow": arrow,
            },
            rounds=FEED_ROUNDS,
        )
        plain, ahead, columns = taken.values()
        return [
            Ratio(
                "driver feed, prefetch on / off",
                middle(plain, ahead),
                1.15,
                figures=rates(rows, on=median(ahead), off=median(plain)),
            ),
            Ratio(
                "driver feed, arrow / iterator",
                middle(ahead, columns),
                2.5,
                figures=rates(rows, arrow=median(columns), iterator=median(ahead)),
            ),
        ]

    def publishers(self) -> Iterator[Ratio]:
        """Publishing from a list, from the driver and from executors, to the same queue, which is
        emptied each time."""
        works = {"plain": self._publish_list, "driver": self._publish_frame, "sink": self._save}
        taken = in_turns(works, rounds=ROUNDS, before=self.purge)
        seconds = {name: median(each) for name, each in taken.items()}
        yield Ratio(
            "driver iterator / plain publisher",
            middle(taken["plain"], taken["driver"]),
            0.5,
            figures=rates(self.rows, driver=seconds["driver"], plain=seconds["plain"]),
        )
        yield Ratio(
            "executor sink, 2 tasks / driver iterator",
            middle(taken["driver"], taken["sink"]),
            1.0,
            figures=rates(self.rows, sink=seconds["sink"], driver=seconds["driver"]),
        )

    def _publish_list(self) -> None:
        """A Broker fed from a list, with the same window."""

        async def publish(broker: Broker) -> None:
            waiting: list[Publication] = []
            for number in range(self.rows):
                if len(waiting) >= WINDOW:
                    await waiting.pop(0)
                waiting.append(await broker.publish("p", BODY, message_id=f"m{number}"))
            for each in waiting:
                await each

        self.publisher.run(publish, timeout=600)

    def _publish_frame(self) -> None:
        self.publisher.publish_frame(self.frame(), "p", window=WINDOW, progress=False)

    def _save(self) -> None:
        writer = self.frame(partitions=2).write.format("broker").option("url", self.url)
        writer.option("routingKey", self.queue).mode("append").save()

    def memory(self) -> Ratio:
        """Growth of the driver's memory for ten times the rows."""
        small = self._growth(self.rows)
        large = self._growth(self.rows * 10)
        base = psutil.Process().memory_info().rss
        return Ratio(
            "driver memory, 10x the rows",
            (base + large) / (base + small),
            1.2,
            at_most=True,
            figures={"MiB before": base / 2**20, "growth": large / 2**20, "of 1x": small / 2**20},
        )

    def _growth(self, rows: int) -> float:
        process = psutil.Process()
        before, peak, stop = process.memory_info().rss, 0, threading.Event()

        def watch() -> None:
            nonlocal peak
            while not stop.wait(0.02):
                peak = max(peak, process.memory_info().rss)

        watcher = threading.Thread(target=watch)
        watcher.start()
        frame = self.frame(rows, partitions=max(8, rows // 5000))
        self.publisher.publish_frame(frame, "p", window=WINDOW, progress=False)
        stop.set()
        watcher.join()
        return float(max(0, peak - before))

    # ------------------------------------------------------------------ executors

    def decoding(self) -> Ratio:
        """Rows to messages in a writer that gets Arrow batches, and in one that gets rows."""
        from bench.spark.decoding import register

        register(self.spark)
        frame = self.frame(self.rows * 20, partitions=2)
        sources = ("bench_arrow", "bench_rows")
        saves = {each: frame.write.format(each).mode("append").save for each in sources}
        arrow, rows = in_turns(saves, rounds=FEED_ROUNDS).values()
        return Ratio(
            "sink without a broker, arrow / rows",
            middle(rows, arrow),
            1.5,
            figures=rates(self.rows * 20, arrow=median(arrow), rows=median(rows)),
        )

    # ------------------------------------------------------------------ source

    def plain_consumer(self) -> float:
        """Seconds to consume and ack what is in the queue."""
        thread = LoopThread("bench consumer")

        async def consume() -> None:
            link = await NetworkConnector(self.url, vhost=self.vhost).connect(timeout=10)
            channel = await link.open_channel()
            await channel.qos(10_000)
            seen, done = 0, asyncio.Event()

            def take(delivery: Delivery) -> None:
                nonlocal seen
                seen += 1
                channel.ack(delivery.delivery_tag)
                if seen >= self.rows * 3:
                    done.set()

            nothing = ConsumerCallbacks(take, lambda tag: None, lambda tag: None)
            await channel.consume(self.queue, nothing)
            await done.wait()
            await link.close()

        try:
            return timed(lambda: thread.call(consume(), 600))
        finally:
            thread.stop()

    def source(self) -> tuple[float, list[dict[str, Any]]]:
        """Seconds from the first to the last batch of a full queue, and the progress of each."""
        folder = self.folder / uuid4().hex
        frame = self.spark.readStream.format("broker").options(
            url=self.url,
            queue=self.queue,
            spool=str(folder / "spool"),
            maxRowsPerTrigger=10_000,
            drainIdle="5s",
        )
        writer = frame.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        batches = [json.loads(each.json) for each in query.recentProgress]
        return sum(each["batchDuration"] for each in batches[1:]) / 1000, batches

    def fill(self) -> None:
        self.purge()
        for _ in range(3):
            self.publisher.publish_frame(self.frame(), "p", window=WINDOW, progress=False)

    def sources(self) -> list[Ratio]:
        self.fill()
        plain = self.plain_consumer()
        self.fill()
        seconds, batches = self.source()
        # The first batch starts processes; later ones show the steady state.
        rows = sum(each["numInputRows"] for each in batches[1:])
        steady = rows / seconds if seconds else 0.0
        spooling = self._spooling()
        durations = [each["batchDuration"] for each in batches[1:] if each["numInputRows"]]
        per_row = sum(durations) / 1000 / max(1, rows)
        plain_rate = self.rows * 3 / plain
        return [
            Ratio(
                "source with spool / plain consumer",
                steady / plain_rate,
                0.5,
                figures={"source /s": steady, "plain /s": plain_rate},
            ),
            Ratio(
                "spool's share of a batch",
                spooling / 10_000 / per_row,
                0.2,
                at_most=True,
                figures={"spool ms": spooling * 1000, "batch ms": per_row * 10_000_000},
            ),
        ]

    def _spooling(self) -> float:
        """Seconds to make two segments of 5,000 rows and sync them."""
        from broker_client.message import Properties
        from broker_client.spark.reading.rows import arrived, to_batch
        from broker_client.spark.reading.spool import Spool

        properties = Properties(message_id="m", delivery_mode=2)
        one = Delivery("c", 1, False, "", self.queue, BODY.encode(), properties)
        rows = [arrived(one)] * 5_000
        spool = Spool(self.folder / uuid4().hex, max_bytes=2**30)
        spool.open()

        def write() -> None:
            for _ in range(2):
                spool.append(to_batch(rows, self.queue))

        return best(write)


def rates(rows: int, /, **seconds: float) -> dict[str, float]:
    """Rows a second, by name."""
    return {f"{name} /s": rows / each for name, each in seconds.items()}


def measure(spark: SparkSession, *, rows: int = 20_000) -> Iterator[Ratio]:
    """The ratios of publishing and reading through Spark.

    Args:
        rows: of a frame; some measures take a multiple.
    """
    broker_client.spark.register(spark)
    with tempfile.TemporaryDirectory() as folder, RabbitMQ() as server:
        bench = Bench(spark, server.url(server.make_vhost()), rows, Path(folder))
        try:
            yield from bench.feeds()
            yield from bench.publishers()
            yield bench.memory()
            bench.purge()
            yield bench.decoding()
            yield from bench.sources()
        finally:
            bench.close()
