"""What one handled message costs on the built-in broker, layer by layer; and what the engine costs.

    python -m bench.handling
    python -m bench.handling --rounds 200

Microseconds of processor a message, the quickest fifth of many interleaved rounds. In the first
table each step does what the one before it does, and one layer more, for a message that was
published before; in the second, the engine publishes, delivers and acks it. The least programs are
programs of their own: the least that keeps the promises of that table, with nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from bench.cpu import BODY, config
from broker_client import AckOrNack, Broker, Message
from broker_client.core.effects import Confirm, Deliver
from broker_client.core.engine import Engine
from broker_client.core.settings import EngineSettings
from broker_client.message import Delivery, Outgoing, Properties
from broker_client.node.node import Node
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.embedded.link import EmbeddedLink

COUNT = 2_000  # messages a round
AT_ONCE = 200  # prefetch, and messages between two looks at the effects
MESSAGE = Outgoing("", "bench", BODY, Properties(delivery_mode=2))

Step = Callable[[], Awaitable[float]]


class Stopwatch:
    """Processor time a message of a block, without the collector of garbage."""

    def __enter__(self) -> Stopwatch:
        gc.collect()
        gc.disable()
        self._begun = time.process_time()
        return self

    def __exit__(self, *failure: object) -> None:
        self.taken = (time.process_time() - self._begun) / COUNT * 1e6
        gc.enable()


class Entry:
    """A message of the least engine."""

    __slots__ = ("attempts", "deadline", "message")

    def __init__(self, message: Outgoing) -> None:
        self.message, self.attempts, self.deadline = message, 0, 0.0


class LeastEngine:
    """One queue with one consumer: entries, a prefetch, deadlines, effects in order. No routing,
    limits, counters, redelivery, other consumers, time-outs, store."""

    def __init__(self) -> None:
        self.ready: deque[Entry] = deque()
        self.in_flight: dict[int, Entry] = {}
        self.effects: list[Deliver | Confirm] = []
        self._tag = self._seq = 0

    def publish(self, message: Outgoing, now: float) -> None:
        self._seq += 1
        self.ready.append(Entry(message))
        self.deliver(now)
        self.effects.append(Confirm(1, self._seq, self._seq, True))

    def deliver(self, now: float) -> None:
        while self.ready and len(self.in_flight) < AT_ONCE:
            entry = self.ready.popleft()
            entry.attempts += 1
            entry.deadline = now + 60.0
            self._tag += 1
            self.in_flight[self._tag] = entry
            exchange, key, body, properties, _, fault = entry.message
            delivery = Delivery(
                "c", self._tag, False, exchange, key, body, properties, entry.attempts, fault
            )
            self.effects.append(Deliver(1, delivery))

    def ack(self, tag: int, now: float) -> None:
        del self.in_flight[tag]
        if self.ready:
            self.deliver(now)

    def take_effects(self) -> list[Deliver | Confirm]:
        effects, self.effects = self.effects, []
        return effects


# ---------------------------------------------------------------- a handled message


def least_program(*, tasks: bool) -> Step:
    """Deliveries of the least engine to coroutines with contexts of their own, acked in batches.

    With `tasks`, each runs in one, as a handler that waits must.
    """

    async def step() -> float:
        engine, loop, unacked = LeastEngine(), asyncio.get_running_loop(), dict[int, Message]()
        engine.ready.extend(Entry(MESSAGE) for _ in range(COUNT))
        acked: list[int] = []

        def settler(tag: int) -> Callable[[], Awaitable[None]]:
            async def ack() -> None:
                del unacked[tag]
                acked.append(tag)

            return ack

        async def handle(message: Message, content: bytes, ack: Callable[[], Any]) -> None:
            await ack()

        context = copy_context()
        with Stopwatch() as watch:
            engine.deliver(loop.time())
            while effects := engine.take_effects():
                for effect in effects:
                    assert isinstance(effect, Deliver)
                    tag = effect.delivery.delivery_tag
                    unacked[tag] = message = Message(effect.delivery, "bench", "/", float)
                    work = handle(message, message.body, settler(tag))
                    if tasks:
                        loop.create_task(work, context=context.copy())
                    else:
                        try:
                            context.copy().run(work.send, None)
                        except StopIteration:
                            continue
                await asyncio.sleep(0)
                for tag in acked:
                    engine.ack(tag, loop.time())
                acked.clear()
        return watch.taken

    return step


async def engine_alone() -> float:
    engine, channel = an_engine(AT_ONCE)
    for _ in range(COUNT):
        engine.publishing.publish(channel, MESSAGE, 1.0)
    engine.take_effects()
    left = COUNT
    with Stopwatch() as watch:
        engine.consuming.consume(channel, "bench", 1.0)
        while left:
            effects = engine.take_effects()
            tags = [e.delivery.delivery_tag for e in effects if type(e) is Deliver]
            engine.consuming.ack_each(channel, tags, 1.0)
            engine.proceed(1.0)
            left -= len(tags)
    return watch.taken


async def on_channel() -> float:
    node, left, done = Node(), COUNT, asyncio.Event()
    link = EmbeddedLink("embedded://", node, "/", lambda: None)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue("bench")
    await channel.publish([MESSAGE] * COUNT)
    await node.drain()
    await channel.qos(AT_ONCE)

    def deliver(delivery: Delivery) -> None:
        nonlocal left
        channel.ack(delivery.delivery_tag)
        left -= 1
        if not left:
            done.set()

    with Stopwatch() as watch:
        await channel.consume("bench", ConsumerCallbacks(deliver, lambda _: None, lambda _: None))
        await done.wait()
    await link.close()
    await node.close()
    return watch.taken


def handled(*, waits: bool) -> Step:
    """The whole: a subscription whose handler acks; which `waits` for a turn of the event loop."""

    async def step() -> float:
        left, done = COUNT, asyncio.Event()

        async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
            nonlocal left
            if waits:
                await asyncio.sleep(0)
            await ack_or_nack()
            left -= 1
            if not left:
                done.set()

        async with Broker.create(config("memory", "")) as broker:
            await broker.publish_many("bench", [BODY] * COUNT)
            with Stopwatch() as watch:
                await broker.subscribe("bench", handle)
                await done.wait()
        return watch.taken

    return step


HANDLED: dict[str, Step] = {
    "least program, without tasks": least_program(tasks=False),
    "least program, a task for each handler": least_program(tasks=True),
    "engine: take, deadline, settle, latency": engine_alone,
    "node and channel: effects, callbacks, acks": on_channel,
    "client: Message, unacked, handler, its end": handled(waits=False),
    "a handler that waits: a task for each": handled(waits=True),
}

# ---------------------------------------------------------------- the engine


async def bare_queue() -> float:
    queue: asyncio.Queue[Outgoing] = asyncio.Queue()
    with Stopwatch() as watch:
        for _ in range(COUNT):
            await queue.put(MESSAGE)
            await queue.get()
    return watch.taken


async def least_engine() -> float:
    engine = LeastEngine()
    with Stopwatch() as watch:
        for _ in range(COUNT // AT_ONCE):
            for _ in range(AT_ONCE):
                engine.publish(MESSAGE, 1.0)
            for effect in engine.take_effects():
                if isinstance(effect, Deliver):
                    engine.ack(effect.delivery.delivery_tag, 1.0)
    return watch.taken


def an_engine(
    prefetch: int, *, timeout: float = 60.0, latency: float = 600.0, confirm: bool = True
) -> tuple[Engine, int]:
    engine = Engine(EngineSettings(message_timeout=timeout, latency_window=latency))
    channel = engine.open_channel(engine.open_connection("/"), confirm=confirm)
    engine.topology.declare_queue(channel, "bench", 0.0)
    engine.consuming.qos(channel, prefetch, 0.0)
    return engine, channel


def engine_with(prefetch: int = 0, **options: Any) -> Step:
    async def step() -> float:
        engine, channel = an_engine(prefetch, **options)
        engine.consuming.consume(channel, "bench", 1.0)
        with Stopwatch() as watch:
            for _ in range(COUNT // AT_ONCE):
                for _ in range(AT_ONCE):
                    engine.publishing.publish(channel, MESSAGE, 1.0)
                for effect in engine.take_effects():
                    if isinstance(effect, Deliver):
                        engine.consuming.ack(channel, effect.delivery.delivery_tag, 1.0)
        return watch.taken

    return step


ENGINE: dict[str, Step] = {
    "bare asyncio.Queue: put and get": bare_queue,
    "least engine": least_engine,
    "engine: routing, counters, ledger": engine_with(timeout=0.0, latency=0.0, confirm=False),
    "deadlines": engine_with(latency=0.0, confirm=False),
    "latency of the queue": engine_with(confirm=False),
    "confirms": engine_with(),
    "prefetch": engine_with(AT_ONCE),
}


def show(title: str, figures: dict[str, float], own: int) -> None:
    """Print a table whose first `own` lines are no part of the others."""
    print(f"{title:<48}{'µs':>6}{'more':>7}")
    before = None
    for number, (name, figure) in enumerate(figures.items()):
        more = "" if number < own or before is None else f"{figure - before:>7.2f}"
        print(f"{name:<48}{figure:>6.2f}{more}")
        before = figure if number >= own else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.handling", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    taken: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, step in {**HANDLED, **ENGINE}.items():
            taken.setdefault(name, []).append(asyncio.run(run(step)))
    figures = {name: sorted(of)[len(of) // 5] for name, of in taken.items()}
    show("handler and ack", {name: figures[name] for name in HANDLED}, own=2)
    print()
    show("publish, deliver, ack in the engine", {name: figures[name] for name in ENGINE}, own=2)
    return 0


async def run(step: Step) -> float:
    return await step()


if __name__ == "__main__":
    sys.exit(main())
