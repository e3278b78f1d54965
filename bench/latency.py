"""Publish to handler at a steady rate, and the memory of publishes that wait.

    python -m bench.latency [--rate 1000] [--seconds 10] [--waiting 200000]

Latency is from just before the publish to the first line of the handler, at `rate` messages a
second, ours and plain aio-pika's by turns on one RabbitMQ, and ours on `embedded://`; also with
`gc.freeze()` after the start. `longest gc` is the longest pause of the collector of garbage, over
all rounds. Memory is the growth of the process per waiting publish while the broker is unreachable,
without the body.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

import aio_pika
from rich.console import Console
from rich.table import Table

from bench.machine import facts
from broker_client import AckOrNack, Broker, Message
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

QUEUE = "bench.latency"
BODY = 256  # bytes
ROUNDS = 3
Send = Callable[[bytes], Awaitable[object]]


async def at_rate(send: Send, rate: int, seconds: float) -> None:
    """Call `send` with the time as body, `rate` times a second; catches up when late."""
    start, sent = time.perf_counter(), 0
    under_way: set[asyncio.Task[object]] = set()
    while (passed := time.perf_counter() - start) < seconds:
        while sent < passed * rate:
            body = repr(time.perf_counter()).encode().ljust(BODY)
            task: asyncio.Task[object] = asyncio.ensure_future(_awaited(send(body)))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            sent += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*under_way)


async def _awaited(work: Awaitable[object]) -> object:
    return await work


def a_config(url: str, **publish_queue: Any) -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {
                "connection": {"url": url, "retry": {"min": "50ms", "max": "200ms"}},
                "queues": [QUEUE],
                "publications": {"bench": {"queue": QUEUE, "timeout": "10m"}},
                "subscriptions": {"bench": {"queue": QUEUE, "prefetch": 200}},
                "publish_queue": publish_queue,
            }
        }
    }


async def ours(url: str, rate: int, seconds: float, *, freeze: bool = False) -> list[float]:
    """Latencies in seconds."""
    latencies: list[float] = []

    async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
        latencies.append(time.perf_counter() - float(content))
        await ack_or_nack()

    async with Broker.create(a_config(url)) as broker:
        await broker.purge()
        await broker.subscribe("bench", handle)
        if freeze:
            gc.collect()
            gc.freeze()

        async def send(body: bytes) -> None:
            await (await broker.publish("bench", body))

        try:
            await at_rate(send, rate, seconds)
        finally:
            gc.unfreeze()
    return latencies


async def ours_frozen(url: str, rate: int, seconds: float) -> list[float]:
    """`ours`, with all that there is after the start kept from the collector (`gc.freeze`)."""
    return await ours(url, rate, seconds, freeze=True)


class Pauses:
    """The longest pause that the collector of garbage makes, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._begun = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        gc.callbacks.append(self._noted)
        return self

    def __exit__(self, *failure: object) -> None:
        gc.callbacks.remove(self._noted)

    def _noted(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._begun = now
        else:
            self.longest = max(self.longest, now - self._begun)


async def plain_aio_pika(url: str, rate: int, seconds: float) -> list[float]:
    """The same with aio-pika alone."""
    latencies: list[float] = []
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=200)
        queue = await channel.declare_queue(QUEUE, durable=True)
        await queue.purge()

        async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            latencies.append(time.perf_counter() - float(message.body))
            await message.ack()

        await queue.consume(handle)

        async def send(body: bytes) -> None:
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, QUEUE)

        await at_rate(send, rate, seconds)
    return latencies


async def waiting_memory(server: RabbitMQ, count: int) -> float:
    """Bytes a waiting publish takes beyond its body."""
    async with Proxy("127.0.0.1", server.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
        config = a_config(url, max_queued=count + 1, max_queued_bytes="1GiB")
        async with Broker.create(config) as broker:
            broker.on("error", lambda error, vhost: None)
            paused = asyncio.Event()
            broker.on("paused", lambda vhost: paused.set())
            proxy.refuse()
            proxy.cut()
            await paused.wait()
            gc.collect()
            before = resident()
            publications = [
                await broker.publish("bench", b"%0256d" % number) for number in range(count)
            ]
            gc.collect()
            grown = resident() - before
            proxy.accept()
            for publication in publications:
                await publication
            await broker.purge()
    return grown / count - BODY


def resident() -> int:
    """Bytes of memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--waiting", type=int, default=200_000, help="publishes that wait")
    options = parser.parse_args()
    console = Console()
    console.print(facts())
    runs: dict[str, list[list[float]]] = {}
    pauses: dict[str, float] = {}
    with RabbitMQ() as server:
        for _ in range(ROUNDS):
            for name, measure, url in (
                ("ours", ours, server.url()),
                ("aio-pika", plain_aio_pika, server.url()),
                ("ours, gc.freeze", ours_frozen, server.url()),
                ("ours, embedded", ours, "embedded://"),
                ("embedded, gc.freeze", ours_frozen, "embedded://"),
            ):
                with Pauses() as pause:
                    latencies = asyncio.run(measure(url, options.rate, options.seconds))
                runs.setdefault(name, []).append(latencies)
                pauses[name] = max(pauses.get(name, 0.0), pause.longest)
        memory = asyncio.run(waiting_memory(server, options.waiting)) if options.waiting else 0.0
    table = Table("client", title=f"publish to handler at {options.rate:,} messages a second, ms")
    for column in ("messages", "p50", "p99", "p99.9", "longest gc", "p50 of each round"):
        table.add_column(column, justify="right")
    for name, rounds in runs.items():
        every = sorted(1000 * each for latencies in rounds for each in latencies)
        medians = [1000 * statistics.median(latencies) for latencies in rounds]
        table.add_row(
            name,
            f"{len(every):,}",
            f"{every[len(every) // 2]:.2f}",
            f"{every[int(len(every) * 0.99)]:.2f}",
            f"{every[int(len(every) * 0.999)]:.2f}",
            f"{pauses[name] * 1000:.2f}",
            " ".join(f"{each:.2f}" for each in medians),
        )
    console.print(table)
    if options.waiting:
        console.print(
            f"{options.waiting:,} publishes waiting: {memory:,.0f} bytes each beyond the body"
        )


if __name__ == "__main__":
    main()
