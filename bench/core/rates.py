"""Measures the engine alone, with up to a million messages in flight.

    python -m bench.core.rates                  # about a minute
    python -m bench.core.rates --most 100000

First publish, deliver and ack of one message, no store, beside put and get of a bare
`asyncio.Queue`, in turns in one run. Then what one settle, touch and requeue cost with so many
deliveries in flight: `in order` as consumers usually do it, and `any` at random. Last, a dict of as
many records alone, each taken out at random and read: how much of that is the processor's caches.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from broker_client.core.effects import Deliver
from broker_client.core.engine import Engine
from broker_client.message import Outgoing, Properties

MESSAGE = Outgoing("", "q", b"x" * 256, Properties(delivery_mode=2))
BATCH = 200


def an_engine(prefetch: int) -> tuple[Engine, int]:
    engine = Engine()
    channel = engine.open_channel(engine.open_connection("/"), confirm=True)
    engine.topology.declare_queue(channel, "q", 0.0)
    engine.consuming.qos(channel, prefetch)
    engine.consuming.consume(channel, "q", 0.0)
    return engine, channel


def engine_rate(messages: int) -> float:
    """Messages a second of processor time through publish, deliver and ack."""
    engine, channel = an_engine(1_000)
    started = time.process_time()
    for first in range(0, messages, BATCH):
        now = first * 1e-6
        for _ in range(BATCH):
            engine.publishing.publish(channel, MESSAGE, now)
        for effect in engine.take_effects():
            if isinstance(effect, Deliver):
                engine.consuming.ack(channel, effect.delivery.delivery_tag, now)
        engine.take_effects()
    return messages / (time.process_time() - started)


async def queue_rate(messages: int) -> float:
    """Puts and gets a second of processor time of a bare asyncio.Queue."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    started = time.process_time()
    for n in range(messages):
        await queue.put(n)
        await queue.get()
    return messages / (time.process_time() - started)


def cost(action: Callable[[int], object], tags: Sequence[int]) -> float:
    """Nanoseconds of processor time per call: the best of four parts, to exclude other load on the
    machine."""
    part = max(1, len(tags) // 4)
    best = float("inf")
    for start in range(0, len(tags), part):
        some = tags[start : start + part]
        started = time.thread_time_ns()
        for tag in some:
            action(tag)
        best = min(best, (time.thread_time_ns() - started) / len(some))
    return best


def in_flight_costs(size: int) -> dict[str, float]:
    """Nanoseconds an operation with `size` deliveries in flight."""
    engine, channel = an_engine(0)
    for n in range(size):
        engine.publishing.publish(channel, MESSAGE, n * 1e-5)
        if n % BATCH == 0:
            engine.take_effects()
    engine.take_effects()
    engine.admin.pause_queue("/", "q")  # requeued messages are not delivered again
    now = size * 1e-5
    times = min(size // 10, 4_000)
    rng = random.Random(size)
    tags = list(range(4 * times + 1, size + 1))
    rng.shuffle(tags)
    touched, any_settled, any_requeued = tags[:times], tags[times : 2 * times], tags[-times:]
    result = {}
    gc.collect()
    gc.disable()
    try:
        result["touch, any"] = cost(lambda tag: engine.consuming.touch(channel, tag, now), touched)
        result["settle, any"] = cost(
            lambda tag: engine.consuming.ack(channel, tag, now), any_settled
        )
        result["requeue, any"] = cost(
            lambda tag: engine.consuming.nack(channel, tag, now), any_requeued
        )
        oldest = range(1, times + 1)
        result["touch, in order"] = cost(
            lambda tag: engine.consuming.touch(channel, tag, now), oldest
        )
        result["settle, in order"] = cost(
            lambda tag: engine.consuming.ack(channel, tag, now), oldest
        )
        after = range(times + 1, 2 * times + 1)
        result["requeue, in order"] = cost(
            lambda tag: engine.consuming.nack(channel, tag, now), after
        )
        deferred = range(2 * times + 1, 3 * times + 1)
        result["requeue later, in order"] = cost(
            lambda tag: engine.consuming.nack(channel, tag, now, delay=30.0), deferred
        )
    finally:
        gc.enable()
    return result


class Record:
    """As large as what the engine holds of a delivery, its message left out."""

    __slots__ = ("deadline", "position", "queue", "tag", "taken_at")

    def __init__(self, tag: int) -> None:
        self.tag, self.position = tag, tag + 1
        self.deadline, self.taken_at = tag * 1e-5, tag * 2e-5
        self.queue: list[int] = [tag]


def bare_dict_cost(size: int) -> float:
    """Nanoseconds to take one of `size` records out of a dict at random, and to read it."""
    records = {tag: Record(tag) for tag in range(1, size + 1)}
    tags = list(records)
    random.Random(size).shuffle(tags)

    def take_out(tag: int) -> float:
        record = records.pop(tag)
        return record.deadline + record.taken_at + record.position + record.queue[0]

    gc.collect()
    gc.disable()
    try:
        return cost(take_out, tags[: min(size // 10, 4_000)])
    finally:
        gc.enable()


def main() -> None:
    """Print two Markdown tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--most", type=int, default=1_000_000, help="in flight at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = [
        (engine_rate(options.messages), asyncio.run(queue_rate(options.messages)))
        for _ in range(options.rounds)
    ]
    # The round in which other load on the machine disturbed both the least.
    engine, queue = max(rates, key=sum)
    sizes = [size for size in (1_000, 1_000_000) if size <= options.most]
    costs: dict[int, dict[str, float]] = {}
    for _ in range(options.rounds):
        for size in sizes:
            before = costs.get(size, {})
            measured = in_flight_costs(size) | {"bare dict, any": bare_dict_cost(size)}
            costs[size] = {
                name: min(value, before.get(name, value)) for name, value in measured.items()
            }
    result: dict[str, Any] = {"engine": engine, "queue": queue, "in flight": costs}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print("| | a second of processor time | of the queue's |")
    print("|---|--:|--:|")
    print(f"| bare asyncio.Queue, put and get | {queue:,.0f} | 1 |")
    print(f"| engine, publish, deliver, ack | {engine:,.0f} | {engine / queue:.2f} |")
    print()
    heads = " | ".join(f"{size:,} in flight" for size in sizes)
    print(f"| ns an operation | {heads} | more | ratio |")
    print("|---|" + "--:|" * (len(sizes) + 2))
    for name in costs[sizes[0]]:
        values = [costs[size][name] for size in sizes]
        shown = " | ".join(f"{value:,.0f}" for value in values)
        print(
            f"| {name} | {shown} | {values[-1] - values[0]:,.0f} | {values[-1] / values[0]:.2f} |"
        )


if __name__ == "__main__":
    main()
