"""Measures the cost of a message as a broker grows.

    python -m bench.growth                       # some minutes, and 3 GiB for 5 million messages
    python -m bench.growth --most 1000 --rounds 1

One line for each quantity: microseconds of processor a message with the fewest, and the ratio to
that with more. The built-in broker, in memory:

* `queues`: publish to one of many queues after the other, by its routing key, and await the
  outcomes.
* `publications`: the same through a publication for each queue.
* `subscriptions`: publish to one of many queues after the other; each is handled and acked by a
  subscription of its own.
* `in-use`: the same with 1,000 subscriptions, of which so many get the messages, 100 at a time: the
  calls of functions are the same from 100 on.
* `bare`: no broker: read 100 objects of one of so many groups after the other, all scattered in
  memory. What that costs more is the processor's caches alone.
* `queued`: publish, deliver and ack while so many wait in the queue (the engine alone).
* `bindings`: the same through a topic exchange with so many patterns, each key another (the engine
  alone).
* `headers`: publish with so many headers, handle and ack without reading them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from broker_client import AckOrNack, Broker, Message
from broker_client.core.effects import Deliver
from broker_client.core.engine import Engine
from broker_client.core.exchange import Destination
from broker_client.message import Outgoing, Properties

BODY = b"x" * 256
BATCH = 200
PERSISTENT = Properties(delivery_mode=2)
SIZES = {
    "queues": (1, 10, 100, 1_000),
    "publications": (1, 10, 100, 1_000),
    "subscriptions": (1, 10, 100, 1_000),
    "in-use": (1, 10, 100, 1_000),
    "bare": (1, 10, 100, 1_000),
    "queued": (1, 1_000, 100_000, 1_000_000, 5_000_000),
    "bindings": (1, 100, 1_000, 10_000),
    "headers": (0, 5, 10, 50),
}


def config(queues: int) -> dict[str, Any]:
    """`queues` queues, bound to an exchange by name; a publication and a subscription of each."""
    names = [f"q{number}" for number in range(queues)]
    publications = {name: {"queue": name, "timeout": "2m"} for name in names}
    vhost = {
        "exchanges": [{"name": "bench", "type": "direct"}],
        "queues": names,
        "bindings": [f"bench[{name}] -> {name}" for name in names],
        "publications": {"bench": {"exchange": "bench", "timeout": "2m"}, **publications},
        "subscriptions": {name: {"queue": name, "prefetch": 200} for name in names},
    }
    return {"vhosts": {"/": vhost}}


class Stopwatch:
    """Processor time of a block, without the collector of garbage; the best of all blocks."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.best = float("inf")

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()
        self._begun = time.process_time()

    def __exit__(self, *failure: object) -> None:
        taken = time.process_time() - self._begun
        gc.enable()
        self.best = min(self.best, taken / self.messages * 1e6)


async def publish_to(count: int, messages: int, rounds: int, *, each: bool) -> float:
    """Microseconds a message, published to one of `count` queues after the other.

    Through a publication for `each`, or through one for all.
    """
    watch = Stopwatch(messages)
    async with Broker.create(config(count)) as broker:
        publish = broker.publish
        for _ in range(rounds + 1):  # the first warms up
            names = list(itertools.islice(itertools.cycle(broker.config.subscriptions), messages))
            with watch:
                if each:
                    publications = [await publish(name, BODY) for name in names]
                else:
                    publications = [await publish("bench", BODY, name) for name in names]
                for publication in publications:
                    await publication
            await broker.purge()
    return watch.best


async def consume_from(
    count: int,
    messages: int,
    rounds: int,
    headers: dict[str, Any] | None = None,
    *,
    in_use: int | None = None,
    at_once: int | None = None,
) -> float:
    """Microseconds a message, published to one of `count` queues after the other, and handled.

    Of these, `in_use` get messages (default: all); `at_once` are published before they are awaited
    (default: all).
    """
    at_once = at_once or messages
    watch = Stopwatch(messages)
    async with Broker.create(config(count)) as broker:
        done = asyncio.Event()
        left = 0

        async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
            nonlocal left
            await ack_or_nack()
            left -= 1
            if not left:
                done.set()

        for name in broker.config.subscriptions:
            await broker.subscribe(name, handle)
        used = list(broker.config.subscriptions)[:in_use]
        for _ in range(rounds + 1):
            names = itertools.cycle(used)
            with watch:
                for _ in range(messages // at_once):
                    left = at_once
                    done.clear()
                    for name in itertools.islice(names, at_once):
                        await broker.publish("bench", BODY, name, headers=headers)
                    await done.wait()
    return watch.best


class Small:
    """As large as many an object of a consumer."""

    __slots__ = ("a", "b", "c", "d", "e", "f")

    def __init__(self) -> None:
        self.a = self.b = self.c = self.d = self.e = self.f = 0


def bare(groups: int, messages: int, rounds: int) -> float:
    """Microseconds to read 100 objects of one of so many groups after the other."""
    scattered = [Small() for _ in range(100 * groups)]
    random.Random(groups).shuffle(scattered)
    objects = [scattered[number::groups] for number in range(groups)]
    watch = Stopwatch(messages)
    for _ in range(rounds + 1):
        with watch:
            for group in itertools.islice(itertools.cycle(objects), messages):
                for each in group:
                    each.a  # noqa: B018 - the read is what is measured
    return watch.best


def an_engine() -> tuple[Engine, int]:
    engine = Engine()
    channel = engine.open_channel(engine.open_connection("/"), confirm=True)
    engine.topology.declare_queue(channel, "q", 0.0)
    return engine, channel


def ack_all(engine: Engine, channel: int) -> int:
    """Ack what is delivered, also what the engine does in steps; returns how many."""
    if engine.is_unfinished:
        engine.proceed(0.0)
    tags = [e.delivery.delivery_tag for e in engine.take_effects() if isinstance(e, Deliver)]
    for tag in tags:
        engine.consuming.ack(channel, tag, 0.0)
    return len(tags)


def with_queued(size: int, messages: int, rounds: int) -> float:
    """Microseconds a message through a queue in which `size` wait."""
    engine, channel = an_engine()
    message = Outgoing("", "q", BODY, PERSISTENT)
    gc.disable()
    for number in range(size):
        engine.publishing.publish(channel, message, 0.0)
        if not number % BATCH:
            engine.take_effects()
    engine.take_effects()
    gc.enable()
    engine.consuming.qos(channel, BATCH, 0.0)
    engine.consuming.consume(channel, "q", 0.0)
    watch = Stopwatch(messages)
    for _ in range(rounds + 1):
        with watch:
            handled = 0
            while handled < messages:
                for _ in range(BATCH):
                    engine.publishing.publish(channel, message, 0.0)
                delivered = ack_all(engine, channel)
                assert delivered, "nothing is delivered"
                handled += delivered
    return watch.best


def with_bindings(size: int, messages: int, rounds: int) -> float:
    """Microseconds a message through a topic exchange with `size` bindings."""
    engine, channel = an_engine()
    engine.topology.declare_exchange(channel, "t", "topic")
    for number in range(size):
        key = f"plant.{number}.*.state"
        engine.topology.bind(channel, Destination("queue", "q"), "t", key, {})
    engine.consuming.qos(channel, BATCH, 0.0)
    engine.consuming.consume(channel, "q", 0.0)
    engine.take_effects()
    watch, fresh = Stopwatch(messages), itertools.count()
    for _ in range(rounds + 1):
        keys = [f"plant.{n % size}.m{n}.state" for n in itertools.islice(fresh, messages)]
        with watch:
            for first in range(0, messages, BATCH):
                for key in keys[first : first + BATCH]:
                    engine.publishing.publish(channel, Outgoing("t", key, BODY, PERSISTENT), 0.0)
                ack_all(engine, channel)
    return watch.best


def with_headers(size: int, messages: int, rounds: int) -> float:
    """Microseconds a message with `size` headers."""
    headers = {f"header-{number}": f"value {number}" for number in range(size)}
    return asyncio.run(consume_from(1, messages, rounds, headers or None))


MEASUREMENTS: dict[str, Callable[[int, int, int], float]] = {
    "queues": lambda *how: asyncio.run(publish_to(*how, each=False)),
    "publications": lambda *how: asyncio.run(publish_to(*how, each=True)),
    "subscriptions": lambda *how: asyncio.run(consume_from(*how)),
    "in-use": lambda used, *how: asyncio.run(consume_from(1_000, *how, in_use=used, at_once=100)),
    "bare": bare,
    "queued": with_queued,
    "bindings": with_bindings,
    "headers": with_headers,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", nargs="*", choices=[*SIZES, []], default=[], help="default: all")
    parser.add_argument("--most", type=int, default=5_000_000, metavar="N", help="of anything")
    parser.add_argument("--messages", type=int, default=2_000, metavar="N", help="a round")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print("| of | µs a message | ratio with more |\n|---|--:|---|")
    for what in options.what or SIZES:
        sizes = [size for size in SIZES[what] if size <= options.most]
        measure = MEASUREMENTS[what]
        costs = [measure(size, options.messages, options.rounds) for size in sizes]
        ratios = ", ".join(
            f"{size:,}: {cost / costs[0]:.2f}"
            for size, cost in zip(sizes[1:], costs[1:], strict=True)
        )
        print(f"| {what}, {sizes[0]} | {costs[0]:.1f} | {ratios} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
