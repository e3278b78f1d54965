"""Replay of dead letters beside plain republishing of the same messages, in turns.

    python -m bench.replay --on file memory --count 5000 --rounds 3
    python -m bench.replay --on server --count 100000 --rounds 1
    python -m bench.replay --on amqp://guest:guest@127.0.0.1/ --count 100000 --rounds 1

Both consume from one queue, publish to another with confirms, up to 1,000 at a time, and ack what
is confirmed. The replayed messages died by a nack, and have the headers about it. `file` is the
built-in broker with a file in a new folder below `--folder`, `memory` the one without, `server`
`broker-client serve --data` in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

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
    """Move what is in `PLAIN` to `QUEUE`, and look at nothing but the body and the properties."""
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


async def one_round(connector: Connector, count: int) -> tuple[float, float]:
    """Messages a second: of plain republishing, and of the replay."""
    link = await connector.connect(timeout=10)
    try:
        await declare(link)
        await fill(link, PLAIN, count)
        began = time.perf_counter()
        await republish(link, count)
        plain = count / (time.perf_counter() - began)
        await let_die(link, count)
        began = time.perf_counter()
        moved = await replay(link, DEAD, dry_run=False)
        replayed = count / (time.perf_counter() - began)
        assert moved.moved == count, moved
        await delete(link)
    finally:
        await link.close()
    return plain, replayed


async def measure(place: str, count: int, rounds: int, folder: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as new, contextlib.ExitStack() as stack:
        urls = {"memory": "embedded://", "file": f"embedded://{Path(new) / 'bench.db'}"}
        url = urls.get(place, place)
        if place == "server":
            url = stack.enter_context(ours(keeps=True, uvloop=False)).url
        nodes = EmbeddedNodes()
        connector: Connector
        if url.startswith("embedded:"):
            connector = nodes.connector(url, "/")
        else:
            connector = NetworkConnector(url, vhost="/")
        try:
            results = [await one_round(connector, count) for _ in range(rounds)]
        finally:
            await nodes.close()
    plain, replayed = (statistics.median(each) for each in zip(*results, strict=True))
    ratio = statistics.median(replayed / plain for plain, replayed in results)
    print(
        f"{connector.url if place == url else place}: plain republishing {plain:,.0f}/s, "
        f"replay {replayed:,.0f}/s, ratio {ratio:.2f}"
    )


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
