"""Measures the event log on and off, and the speed of the jobs."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.spark.ratios import Ratio, in_turns, middle
from broker_client import AckOrNack, Broker, Message
from broker_client.events.delivery_event import DeliveryEvent
from broker_client.events.log import EventLog
from broker_client.spark.event_log import read_events, whole
from spark import jobs
from spark.examples import simulated_log
from spark.logs import compact_to

_PAIRS = 25
_JOB_ROUNDS = 7
_BODY = b"x" * 256


def measure(spark: SparkSession, *, messages: int = 100_000) -> Iterator[Ratio]:
    """The ratios of the jobs and of the event log.

    Args:
        messages: in the log that the jobs read; about five times as many events.
    """
    yield record_cost()
    yield event_log_on_off(min(messages, 3_000))
    yield event_log_on_off(min(messages, 3_000), durable=True)
    with tempfile.TemporaryDirectory() as folder:
        yield from job_rates(spark, Path(folder), messages)


def record_cost() -> Ratio:
    """Microseconds that a caller of `EventLog.record` spends, including the creation of the
    event."""
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(folder, "bench", buffer=2**40)
        costs = []
        for _ in range(50):
            started = time.thread_time()
            for number in range(1_000):
                log.record(
                    DeliveryEvent(
                        "acked", "/", "x", "k", "q", "c", 1, False, None, None, None,
                        f"m{number}", 1e9, 256, 1e9, 1e9, 1e9,
                    )
                )  # fmt: skip
            costs.append((time.thread_time() - started) * 1000)
            log.flush(30.0)
        events = [DeliveryEvent("acked", "/", message_id=f"m{n}", ts=1e9) for n in range(50_000)]
        started = time.process_time()
        log.record_many(events)
        log.flush(60.0)
        writer = (time.process_time() - started) * 1e6 / len(events)
        log.close()
    figures = {"record us": median(costs), "writer us": writer}
    return Ratio("event log, us of the caller an event", median(costs), 5.0, True, figures)


def event_log_on_off(messages: int, *, durable: bool = False) -> Ratio:
    """Messages through a Broker on the built-in broker, with and without a log, in turns.

    Rates are per second of processor time, including the writers' threads. The best turn of each
    counts, since other load can only add to it.

    Args:
        messages: of each turn.
        durable: the broker keeps them in a file.
    """
    on: list[float] = []
    off: list[float] = []
    for number in range(_PAIRS + 1):
        for log in (True, False) if number % 2 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                rate = asyncio.run(_broker_rate(messages, Path(folder), log=log, durable=durable))
            (on if log else off).append(rate)
    figures = {"on /s": max(on), "off /s": max(off)}
    where = "file" if durable else "memory"
    return Ratio(f"event log on / off, Broker, {where}", max(on) / max(off), 0.9, figures=figures)


async def _broker_rate(messages: int, folder: Path, *, log: bool, durable: bool) -> float:
    config: dict[str, Any] = {
        "vhosts": {
            "/": {
                "connection": f"embedded://{folder / 'broker.db'}" if durable else "embedded://",
                "queues": {"q": {"options": {"arguments": {"x-dead-letter-exchange": "dead"}}}},
                "publications": {"p": {"queue": "q"}},
                "subscriptions": {"s": {"queue": "q", "prefetch": 500}},
            }
        },
    }
    if log:
        config["node"] = {"event_log": {"path": str(folder / "events"), "buffer": 1_000_000}}
    done = asyncio.Event()
    handled = 0

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        nonlocal handled
        await ack_or_nack()
        handled += 1
        if handled == messages:
            done.set()

    async with Broker.create(config) as broker:
        await broker.subscribe("s", handle)
        started = time.process_time()
        for first in range(0, messages, 1_000):
            under_way = [
                await broker.publish("p", _BODY) for _ in range(min(1_000, messages - first))
            ]
            for publication in under_way:
                await publication
        await done.wait()
        return messages / (time.process_time() - started)


def job_rates(spark: SparkSession, folder: Path, messages: int) -> Iterator[Ratio]:
    """Parquet against JSON lines, and stream against batch, in events a second."""
    count = simulated_log.write(folder / "log", messages)
    started = time.perf_counter()
    compact_to(spark, folder / "log", folder / "events")
    compacting = count / (time.perf_counter() - started)
    lines = whole(read_events(spark, folder / "log"))
    parquet = whole(read_events(spark, folder / "events"))
    every: dict[str, Callable[[DataFrame], DataFrame]] = {
        "throughput": jobs.throughput,
        "latency": jobs.latency,
        "reliability": jobs.reliability,
        "poison": jobs.poison,
        "audit": jobs.audit,
        "backlog": jobs.backlog,
    }
    works: dict[str, Callable[[], None]] = {
        name: partial(_run, job, parquet) for name, job in every.items()
    }
    targets = {"throughput": 2.0, "latency": 1.3}
    works |= {f"{name}, lines": partial(_run, every[name], lines) for name in targets}
    works["throughput, stream"] = lambda: _stream(
        jobs.throughput(whole(read_events(spark, folder / "events", stream=True)))
    )
    taken = in_turns(works, rounds=_JOB_ROUNDS, warm_up=2)
    rates = {name: count / median(taken[name]) for name in every}
    for name, target in targets.items():
        on_lines = taken[f"{name}, lines"]
        figures = {"Parquet /s": rates[name], "JSON lines /s": count / median(on_lines)}
        value = middle(on_lines, taken[name])
        yield Ratio(f"{name}: Parquet / JSON lines", value, target, figures=figures)
    streaming = taken["throughput, stream"]
    figures = {"stream /s": count / median(streaming), "batch /s": rates["throughput"]}
    value = middle(taken["throughput"], streaming)
    yield Ratio("windowed count: stream / batch", value, 0.3, figures=figures)
    figures = {f"{name} /s": rate for name, rate in rates.items()} | {"compact /s": compacting}
    slowest = min(rates.values()) / rates["throughput"]
    yield Ratio("slowest job / throughput", slowest, 0.2, figures=figures)


def _run(job: Callable[[DataFrame], DataFrame], events: DataFrame) -> None:
    job(events).write.format("noop").mode("overwrite").save()


def _stream(table: DataFrame) -> None:
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            table.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
