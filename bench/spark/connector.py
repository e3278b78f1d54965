"""The Spark connector against what it stands on: ratios of one run on one machine.

python -m bench.spark.connector                      # its own RabbitMQ; some minutes
python -m bench.spark.connector --url amqp://... --rows 5000 --json figures.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
from rich.console import Console

import broker_client.spark
from bench import machine
from bench.spark.ratios import Ratio, as_json, table
from broker_client import Broker, Publication
from broker_client.config_url import parse_url
from broker_client.message import Delivery
from broker_client.spark import DriverPublisher
from broker_client.spark.loop_thread import LoopThread
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.network import NetworkConnector
from tests.support.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW = 1024
BODY = "x" * 100
ROUNDS = 3


def timed(work: Callable[[], Any]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Seconds of the fastest of some rounds, after a first one that warms up."""
    work()
    return min(timed(work) for _ in range(rounds))


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
        """What Spark hands to the driver, without publishing."""
        frame = self.frame(self.rows * 5)
        plain = best(lambda: sum(1 for _ in frame.toLocalIterator()))
        ahead = best(lambda: sum(1 for _ in frame.toLocalIterator(prefetchPartitions=True)))

        def arrow() -> int:
            batches = frame.toArrow().to_batches(2000)
            return sum(1 for b in batches for _ in zip(*(c.to_pylist() for c in b), strict=True))

        columns = best(arrow)
        return [
            ratio("prefetch on / off, feed only", plain / ahead, 1.15, rate(self.rows * 5, ahead)),
            ratio(
                "arrow / iterator, feed only", ahead / columns, 2.5, rate(self.rows * 5, columns)
            ),
        ]

    def plain_publisher(self) -> float:
        """Seconds of a Broker fed from a list, with the same window."""

        async def publish(broker: Broker) -> None:
            waiting: list[Publication] = []
            for number in range(self.rows):
                if len(waiting) >= WINDOW:
                    await waiting.pop(0)
                waiting.append(await broker.publish("p", BODY, message_id=f"m{number}"))
            for each in waiting:
                await each

        return best(lambda: self.publisher.run(publish, timeout=600), 2)

    def driver_iterator(self) -> float:
        def publish() -> None:
            self.publisher.publish_frame(self.frame(), "p", window=WINDOW, progress=False)

        return best(publish, 2)

    def memory(self) -> Ratio:
        """Growth of the driver's memory for ten times the rows."""
        small = self._growth(self.rows)
        large = self._growth(self.rows * 10)
        base = psutil.Process().memory_info().rss
        value = (base + large) / (base + small)
        text = f"+{large / 2**20:.0f} MiB / +{small / 2**20:.0f} MiB on {base / 2**20:.0f} MiB"
        return ratio("driver memory, 10x the rows", value, 1.2, text, at_least=False)

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

    def executor_sink(self) -> float:
        def save() -> None:
            writer = self.frame(partitions=2).write.format("broker").option("url", self.url)
            writer.option("routingKey", self.queue).mode("append").save()

        return best(save, 2)

    def decoding(self) -> Ratio:
        """Rows to messages in a writer that gets Arrow batches, and in one that gets rows."""
        from bench.spark.decoding import register

        register(self.spark)
        frame = self.frame(self.rows * 5, partitions=2)

        def into(source: str) -> Callable[[], None]:
            return lambda: frame.write.format(source).mode("append").save()

        idle = best(lambda: frame.limit(10).write.format("bench_arrow").mode("append").save())
        arrow, rows = best(into("bench_arrow")), best(into("bench_rows"))
        value = max(rows - idle, 0.001) / max(arrow - idle, 0.001)
        text = f"{rows:.2f} s / {arrow:.2f} s, less {idle:.2f} s of an empty job each"
        return ratio("arrow sink / row sink, no broker", value, 1.5, text)

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
        # The first batch starts processes; steady state is what comes behind it.
        rows = sum(each["numInputRows"] for each in batches[1:])
        steady = rows / seconds if seconds else 0.0
        spooling = self._spooling()
        durations = [each["batchDuration"] for each in batches[1:] if each["numInputRows"]]
        per_row = sum(durations) / 1000 / max(1, rows)
        return [
            ratio(
                "source with spool / plain consumer",
                steady / (self.rows * 3 / plain),
                0.5,
                f"{steady:,.0f}/s / {self.rows * 3 / plain:,.0f}/s",
            ),
            ratio(
                "spool's share of the time of a batch",
                spooling / 10_000 / per_row,
                0.2,
                f"{spooling * 1000:.0f} ms / {per_row * 10_000_000:.0f} ms for 10,000 rows",
                at_least=False,
            ),
        ]

    def _spooling(self) -> float:
        """Seconds to make two segments of 5,000 rows and sync them."""
        from broker_client.message import Properties
        from broker_client.spark.rows import arrived, to_batch
        from broker_client.spark.spool import Spool

        properties = Properties(message_id="m", delivery_mode=2)
        one = Delivery("c", 1, False, "", self.queue, BODY.encode(), properties)
        rows = [arrived(one)] * 5_000
        spool = Spool(self.folder / uuid4().hex, max_bytes=2**30)
        spool.open()

        def write() -> None:
            for _ in range(2):
                spool.append(to_batch(rows, self.queue))

        return best(write)


def ratio(name: str, value: float, target: float, figures: str, *, at_least: bool = True) -> Ratio:
    return Ratio(name, value, target, at_least, figures)


def rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s"


def measure(bench: Bench, say: Callable[[str], None]) -> list[Ratio]:
    """All of it."""
    found: list[Ratio] = []
    say("what Spark hands to the driver")
    found += bench.feeds()
    say("publishing from the driver")
    plain, driver = bench.plain_publisher(), bench.driver_iterator()
    text = f"{rate(bench.rows, driver)} / {rate(bench.rows, plain)}"
    found.append(ratio("driver iterator / plain publisher", plain / driver, 0.5, text))
    found.append(bench.memory())
    bench.purge()
    say("publishing from executors")
    sink = bench.executor_sink()
    text = f"{rate(bench.rows, sink)} / {rate(bench.rows, driver)}"
    found.append(ratio("executor sink, 2 tasks / driver iterator", driver / sink, 1.0, text))
    found.append(bench.decoding())
    say("reading a queue")
    found += bench.sources()
    return found


@contextmanager
def broker_url(given: str | None) -> Iterator[str]:
    """`given`, or that of a RabbitMQ of our own."""
    if given is not None:
        yield given
        return
    with RabbitMQ() as server:
        yield server.url(server.make_vhost())


def session() -> SparkSession:
    """Two cores, quiet."""
    from pyspark.sql import SparkSession

    broker_client.spark.prepare()
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    made = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    broker_client.spark.register(made)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.connector", description=__doc__)
    parser.add_argument("--url", help="a RabbitMQ to use; a private one is started otherwise")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    console = Console(stderr=True, highlight=False)
    facts = machine.facts()
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-"))
    spark = session()
    try:
        with broker_url(arguments.url) as url:
            bench = Bench(spark, url, arguments.rows, folder)
            try:
                found = measure(bench, lambda text: console.print(f"==> {text}"))
            finally:
                bench.close()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    Console().print(table(found, f"Spark connector, {arguments.rows:,} rows"))
    if arguments.json is not None:
        text = json.dumps({"machine": facts, "ratios": as_json(found)}, indent=2)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
