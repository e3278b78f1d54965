"""Compares the replay of dead letters with plain republishing of the same messages, in turns.

    python -m bench.replay --on file memory --count 5000 --rounds 3
    python -m bench.replay --on server --count 100000 --rounds 1
    python -m bench.replay --on amqp://guest:guest@127.0.0.1/ --count 100000 --rounds 1

Both consume from one queue, publish to another with confirms, up to 1,000 at a time, and ack what
is confirmed. The replayed messages died by a nack, and have the headers about it. `file` is the
built-in broker with a file in a new folder below `--folder`, `memory` the one without, `server`
`broker-client serve --data` in a process of its own. The processor's time is of this process and of
that server; on a busy machine it tells more than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.machine import facts
from bench.server.brokers import ours
from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.moving.confirms import ConfirmedPublisher
from broker_client.moving.move import BATCH, WINDOW, replay
from broker_client.moving.source import QueueSource
from broker_client.transport.base import Connector, Link
from broker_client.transport.embedded.nodes import EmbeddedNodes
from broker_client.transport.rabbitmq.connector import NetworkConnector

QUEUE, DEAD, PLAIN = "bench.replay", "bench.replay.dead", "bench.replay.plain"
BODY = b"x" * 256


async def declare(link: Link) -> None:
    channel = await link.open_channel()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    await channel.declare_queue(QUEUE, arguments=arguments)
    for name in (DEAD, PLAIN):
        await channel.declare_queue(name)
    await channel.close()


async def delete(link: Link) -> None:
    channel = await link.open_channel()
    for name in (QUEUE, DEAD, PLAIN):
        await channel.delete_queue(name)
    await channel.close()


def ignore(item: int, why: str) -> None:
    assert not why, why


async def fill(link: Link, queue: str, count: int) -> None:
    """Publish `count` persistent messages to `queue`, confirmed."""
    publisher = await ConfirmedPublisher.open(link, ignore)
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        properties = [Properties(delivery_mode=PERSISTENT, message_id=str(n)) for n in numbers]
        await publisher.publish([(0, Outgoing("", queue, BODY, each)) for each in properties])
        await publisher.wait(WINDOW - BATCH)
    await publisher.wait()
    await publisher.close()


async def let_die(link: Link, count: int) -> None:
    """Nack `count` messages of `QUEUE`, and wait until all are dead letters."""
    consuming = await link.open_channel()
    source, channel = QueueSource(consuming, QUEUE), await link.open_channel()
    await source.start(count)
    while batch := await source.next_batch(BATCH):
        for delivery in batch:
            consuming.nack(delivery.delivery_tag)
    await source.close()
    for _ in range(6_000):  # one minute
        if (await channel.check_queue(DEAD)).message_count >= count:
            break
        await asyncio.sleep(0.01)
    await channel.close()


async def republish(link: Link, count: int) -> None:
    """Move the messages of `PLAIN` to `QUEUE`; reads only their bodies and properties."""
    source = QueueSource(await link.open_channel(), PLAIN)

    def settled(delivery_tag: int, why: str) -> None:
        assert not why, why
        source.ack(delivery_tag)

    def copy(delivery: Delivery) -> tuple[int, Outgoing]:
        message = Outgoing("", QUEUE, delivery.body, delivery.properties, mandatory=True)
        return delivery.delivery_tag, message

    publisher = await ConfirmedPublisher.open(link, settled)
    await source.start(count)
    while batch := await source.next_batch(BATCH):
        await publisher.publish([copy(each) for each in batch])
        await publisher.wait(WINDOW - BATCH)
    await publisher.wait()
    await source.close()
    await publisher.close()


@dataclass(frozen=True, slots=True)
class Speed:
    """The figures of one of the two."""

    rate: float
    """Messages a second."""
    processor: float
    """Seconds of the processor a message."""


class Watch:
    """Measures wall time and processor time, of this process and optionally of a server."""

    def __init__(self, server: psutil.Process | None) -> None:
        self._server = server
        self.start()

    def start(self) -> None:
        self._began, self._used = time.perf_counter(), self._processor()

    def speed(self, count: int) -> Speed:
        """The figures of `count` messages since the start."""
        took, used = time.perf_counter() - self._began, self._processor() - self._used
        return Speed(count / took, used / count)

    def _processor(self) -> float:
        times = None if self._server is None else self._server.cpu_times()
        return time.process_time() + (0 if times is None else times.user + times.system)


async def one_round(connector: Connector, count: int, watch: Watch) -> tuple[Speed, Speed]:
    """Plain republishing, and the replay."""
    link = await connector.connect(timeout=10)
    try:
        await declare(link)
        await fill(link, PLAIN, count)
        watch.start()
        await republish(link, count)
        plain = watch.speed(count)
        await let_die(link, count)
        watch.start()
        moved = await replay(link, DEAD, dry_run=False)
        replayed = watch.speed(count)
        assert moved.moved == count, moved
        await delete(link)
    finally:
        await link.close()
    return plain, replayed


async def measure(place: str, count: int, rounds: int, folder: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as new, contextlib.ExitStack() as stack:
        urls = {"memory": "embedded://", "file": f"embedded://{Path(new) / 'bench.db'}"}
        url, watch = urls.get(place, place), Watch(None)
        if place == "server":
            server = stack.enter_context(ours(keeps=True, uvloop=False))
            url, watch = server.url, Watch(server.process)
        nodes = EmbeddedNodes()
        connector: Connector
        if url.startswith("embedded:"):
            connector = nodes.connector(url, "/")
        else:
            connector = NetworkConnector(url, vhost="/")
        name = connector.url if place == url else place
        try:
            results = [await one_round(connector, count, watch) for _ in range(rounds)]
        finally:
            await nodes.close()
    plain, replayed = zip(*results, strict=True)
    parts = []
    for what, speeds in (("plain republishing", plain), ("replay", replayed)):
        rate = statistics.median(each.rate for each in speeds)
        processor = statistics.median(each.processor for each in speeds) * 1e6
        parts.append(f"{what} {rate:,.0f}/s with {processor:.0f} µs of the processor a message")
    rates = statistics.median(b.rate / a.rate for a, b in results)
    costs = statistics.median(a.processor / b.processor for a, b in results)
    print(f"{name}: {', '.join(parts)}, ratio {rates:.2f}, of the processor {costs:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--on", nargs="+", default=["file", "memory"], metavar="PLACE")
    parser.add_argument("--count", type=int, default=5_000, help="messages a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the file is made; the system's by default")
    options = parser.parse_args()
    print(facts())
    for place in options.on:
        asyncio.run(measure(place, options.count, options.rounds, options.folder))


if __name__ == "__main__":
    main()
