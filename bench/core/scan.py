"""Measures how late time-outs are: our scan loop and nsq's random sampling.

    python -m bench.core.scan                # the table of docs/core.md; about a minute
    python -m bench.core.scan --most 1000

In each round every tenth queue has one message that becomes due, at a moment of its own within
two seconds (`spread`), or all at one moment (`burst`). Ours is a real node on a real clock, the
machine's own delays included. nsq's loop is modelled in steps of its tick, in which the work takes
no time, which is to its advantage: 20 queues at random each 100 ms, again at once when more than a
quarter of these had something due. Lateness is from the due time to the delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from statistics import median
from typing import Any

from broker_client.core.scan import ScanSettings
from broker_client.message import Delivery, Outgoing, Properties, Returned
from broker_client.node.node import Node

WINDOW = 2.0
SAMPLED_AT_MOST = 600.0


class TimingReceiver:
    """Notes how late each delivery is."""

    def __init__(self, wanted: int) -> None:
        self.late: list[float] = []
        self.all_here = asyncio.Event()
        self._wanted = wanted

    def deliver(self, delivery: Delivery) -> None:
        self.late.append(time.time() - float(delivery.body))
        if len(self.late) == self._wanted:
            self.all_here.set()

    def confirm(self, first: int, last: int, acked: bool) -> None: ...

    def returned(self, returned: Returned) -> None: ...

    def cancelled(self, consumer_tag: str) -> None: ...

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None: ...

    def closed(self, reply_code: int, reply_text: str) -> None: ...

    def blocked(self, reason: str) -> None: ...

    def unblocked(self) -> None: ...


def due_times(queues: int, burst: bool, rng: random.Random) -> list[float | None]:
    """Seconds from the start, for every tenth queue."""
    return [
        (1.0 if burst else rng.random() * WINDOW) if n % 10 == 0 else None for n in range(queues)
    ]


async def ours(queues: int, burst: bool) -> list[float]:
    """A node, from declaring the queues to the last delivery."""
    times = due_times(queues, burst, random.Random(1))
    node, receiver = Node("bench"), TimingReceiver(sum(at is not None for at in times))
    channel = node.open_channel(node.open_connection("/", receiver), receiver, confirm=False)
    engine = node.engine
    for n in range(queues):
        engine.topology.declare_queue(channel, f"q{n}", node.now(), durable=False)
        engine.consuming.consume(channel, f"q{n}", node.now(), no_ack=True)
    began = node.now() + 0.5 + queues / 20_000  # until all are published
    for n, at in enumerate(times):
        if at is None:
            continue
        delay = int((began + at - node.now()) * 1000)
        assert delay > 0, "too slow to publish in time"
        due = time.time() + delay / 1000
        headers = {"x-delay": delay}
        message = Outgoing("", f"q{n}", repr(due).encode(), Properties(headers=headers))
        engine.publishing.publish(channel, message, node.now())
    node.wake()
    gc.collect()
    async with asyncio.timeout(60.0):
        await receiver.all_here.wait()
    await node.close()
    return receiver.late


def sampled(queues: int, burst: bool, settings: ScanSettings) -> list[float]:
    """nsq's queueScanLoop over the same due times; the work itself takes no time."""
    rng = random.Random(2)
    times = due_times(queues, burst, random.Random(1))
    late: list[float] = []
    wanted = sum(at is not None for at in times)
    now = 0.0
    count = min(settings.selection_count, queues)
    while len(late) < wanted and now < SAMPLED_AT_MOST:
        now += settings.interval
        while True:
            dirty = 0
            for n in rng.sample(range(queues), count):
                at = times[n]
                if at is not None and at <= now:
                    late.append(now - at)
                    times[n] = None
                    dirty += 1
            if dirty / count <= settings.dirty_percent:
                break
    late.extend(SAMPLED_AT_MOST for at in times if at is not None)
    return late


def figures(late: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ordered = sorted(late)
    return {
        "median": median(ordered) * 1000,
        "p99": ordered[int(0.99 * (len(ordered) - 1))] * 1000,
        "worst": ordered[-1] * 1000,
    }


def main() -> None:
    """Print a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, default=10_000, help="queues at most")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    for queues in (10, 1_000, 10_000):
        if queues > options.most:
            continue
        for burst in (False, True):
            shape = "burst" if burst else "spread"
            row = {"queues": queues, "shape": shape}
            table.append(row | {"loop": "ours"} | figures(asyncio.run(ours(queues, burst))))
            late = sampled(queues, burst, ScanSettings())
            table.append(row | {"loop": "random sampling"} | figures(late))
    if options.json:
        print(json.dumps(table, indent=2))
        return
    print("| queues | due | loop | median, ms | 99 %, ms | worst, ms |")
    print("|--:|---|---|--:|--:|--:|")
    for row in table:
        late_figures = " | ".join(f"{row[name]:,.1f}" for name in ("median", "p99", "worst"))
        print(f"| {row['queues']:,} | {row['shape']} | {row['loop']} | {late_figures} |")


if __name__ == "__main__":
    main()
