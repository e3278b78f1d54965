"""`DriverPublisher` beside `publish_many` of its own Broker, fed from memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bench.spark.ratios import Ratio, in_turns, middle
from broker_client.config.url import parse_url
from broker_client.spark import DriverPublisher
from tests.support.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY = "x" * 100
WINDOW = 1024
ROUNDS = 9


def measure(spark: SparkSession, *, rows: int = 20_000) -> Iterator[Ratio]:
    """Rates of rows without and with ids, on the built-in broker and on RabbitMQ.

    Args:
        rows: of a frame.
    """
    yield from _on(spark, "embedded", "embedded://", rows)
    with RabbitMQ() as server:
        yield from _on(spark, "RabbitMQ", server.url(server.make_vhost()), rows)


def _on(spark: SparkSession, name: str, url: str, rows: int) -> Iterator[Ratio]:
    queue = f"bench-{uuid4().hex[:8]}"
    vhost = "/" if url == "embedded://" else parse_url(url).vhost or "/"
    publications = {"p": {"queue": queue, "timeout": "60s"}}
    section = {"connection": url, "queues": [queue], "publications": publications}
    with DriverPublisher({"vhosts": {vhost: section}}) as publisher:
        works = _works(spark, publisher, rows)
        seconds: dict[str, list[float]] = {each: [] for each in works}
        processor: dict[str, list[float]] = {each: [] for each in works}

        def timed(key: str, work: Callable[[], Any]) -> Callable[[], None]:
            def run() -> None:
                wall, cpu = time.perf_counter(), time.process_time()
                work()
                seconds[key].append(time.perf_counter() - wall)
                processor[key].append(time.process_time() - cpu)

            return run

        in_turns(
            {key: timed(key, work) for key, work in works.items()},
            rounds=ROUNDS,
            before=lambda: publisher.run(lambda broker: broker.purge()),
        )
        many = seconds["many"][1:]
        for key in ("iterator", "ids", "arrow"):
            taken = seconds[key][1:]
            yield Ratio(
                f"driver, {key} / publish_many, {name}",
                middle(many, taken),
                0.9,
                figures={
                    "driver /s": rows / median(taken),
                    "publish_many /s": rows / median(many),
                    "driver CPU µs": median(processor[key]) / rows * 1e6,
                    "publish_many CPU µs": median(processor["many"]) / rows * 1e6,
                    "rows alone CPU µs": median(processor["feed"]) / rows * 1e6,
                },
            )
        publisher.run(lambda broker: broker.nuke())


def _works(
    spark: SparkSession, publisher: DriverPublisher, rows: int
) -> dict[str, Callable[[], Any]]:
    plain = spark.range(0, rows, 1, 4).selectExpr(f"'{BODY}' as body")
    with_ids = spark.range(0, rows, 1, 4).selectExpr(f"'{BODY}' as body", "concat('m', id) as id")
    contents = [BODY] * rows

    def publish(frame: Any, **how: Any) -> Callable[[], Any]:
        return lambda: publisher.publish_frame(frame, "p", window=WINDOW, progress=False, **how)

    return {
        "many": lambda: publisher.run(
            lambda broker: broker.publish_many("p", contents, window=WINDOW), timeout=600
        ),
        "iterator": publish(plain),
        "ids": publish(with_ids, message_id="id"),
        "arrow": publish(plain, mode="arrow"),
        "feed": lambda: sum(1 for _ in plain.toLocalIterator(prefetchPartitions=True)),
    }
