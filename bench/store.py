"""Measure the built-in broker with a file: speed beside memory, start, and memory a message.

    python -m bench.store                       # all; some minutes and 3 GB of disk
    python -m bench.store speed --messages 5000 --rounds 1

`speed` runs the same load on `embedded://` and on a file, in turns, each in a separate process:
publish with its outcome, then every message through a handler with ack. Every confirm has its
commit, with fsync, behind it. `start` opens a file with a million messages of 256 bytes. `memory`
queues half a million messages of 1 KiB and prints the resident memory along the way; its slope
gives the memory of five million.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import machine
from broker_client.core.settings import EngineSettings
from broker_client.message import PERSISTENT, Outgoing, Properties
from broker_client.node.node import Node
from broker_client.store.writer import SqliteStore

ROOT = Path(__file__).parents[1]
MIB = 1024 * 1024


class CountingReceiver:
    """A receiver that only counts confirms."""

    confirmed = 0

    def deliver(self, delivery: object) -> None: ...

    def confirm(self, first: int, last: int, acked: bool) -> None:
        self.confirmed = last

    def returned(self, returned: object) -> None: ...

    def cancelled(self, consumer_tag: str) -> None: ...

    def timed_out(self, consumer_tag: str, delivery_tag: int) -> None: ...

    def closed(self, reply_code: int, reply_text: str) -> None: ...

    def blocked(self, reason: str) -> None: ...

    def unblocked(self) -> None: ...


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --------------------------------------------------------------------------- speed


def speed(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    urls = {"memory": "embedded://", "file": f"embedded://{folder}/speed.db"}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in urls}
    for number in range(1, rounds + 1):
        for name, url in urls.items():
            for leftover in folder.glob("speed.db*"):
                leftover.unlink()
            measured = child("bench.peers.ours", url, str(messages))
            run = {half: measured[half]["passed"] for half in ("publish", "consume")}
            runs[name].append(run)
            print(
                f"round {number}: {name}: {messages / run['publish']:,.0f} published, "
                f"{messages / run['consume']:,.0f} consumed a second"
            )
    figures: dict[str, Any] = {}
    for name, of in runs.items():
        for half in ("publish", "consume"):
            figures[f"{name} {half}"] = statistics.median(messages / run[half] for run in of)
        figures[f"{name} both"] = statistics.median(
            messages / (run["publish"] + run["consume"]) for run in of
        )
    for half in ("publish", "consume", "both"):
        ratio = figures[f"file {half}"] / figures[f"memory {half}"]
        figures[f"ratio {half}"] = ratio
        print(
            f"{half}: memory {figures[f'memory {half}']:,.0f}/s, "
            f"file {figures[f'file {half}']:,.0f}/s, ratio {ratio:.2f}"
        )
    return figures


# --------------------------------------------------------------------------- filling and starting


async def fill(path: str, count: int, size: int, memory_limit: int) -> dict[str, Any]:
    """Publish, and print the resident memory ten times."""
    settings = EngineSettings(memory_limit=memory_limit)
    node = Node("bench", store=SqliteStore(path), settings=settings)
    await node.recover()
    receiver = CountingReceiver()
    channel = node.open_channel(node.open_connection("/", receiver), receiver, confirm=True)
    node.engine.topology.declare_queue(channel, "q", node.now())
    points = [(0, resident_bytes())]
    started = time.perf_counter()
    at_a_time = 500
    for done in range(0, count, at_a_time):
        for number in range(done, done + at_a_time):
            properties = Properties(delivery_mode=PERSISTENT, message_id=f"id-{number}")
            message = Outgoing("", "q", number.to_bytes(8, "big") * (size // 8), properties)
            node.engine.publishing.publish(channel, message, node.now())
        node.wake()
        await node.drain()
        if (done + at_a_time) % max(at_a_time, count // 10) == 0:
            points.append((done + at_a_time, resident_bytes()))
    seconds = time.perf_counter() - started
    assert receiver.confirmed == count
    await node.close()
    return {"seconds": seconds, "points": points}


async def start(path: str) -> dict[str, Any]:
    """Open the file and take its first message."""
    node = Node("bench", store=SqliteStore(path))
    began = time.perf_counter()
    await node.recover()
    seconds = time.perf_counter() - began
    ready = node.stats().queues[0].ready
    receiver = CountingReceiver()
    channel = node.open_channel(node.open_connection("/", receiver), receiver, confirm=False)
    began = time.perf_counter()
    assert node.engine.consuming.get(channel, "q", node.now()) is not None
    first = time.perf_counter() - began
    memory = resident_bytes()
    await node.close()
    return {"seconds": seconds, "first": first, "ready": ready, "resident": memory}


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_start(folder: Path, count: int) -> dict[str, Any]:
    path = str(folder / "start.db")
    filled = child("bench.store", "_fill", path, str(count), "256", str(64 * MIB))
    print(f"filled with {count:,} messages at {count / filled['seconds']:,.0f}/s")
    opened = child("bench.store", "_start", path)
    print(
        f"start with {opened['ready']:,} messages of 256 bytes: {opened['seconds']:.2f} s, "
        f"first message {opened['first'] * 1000:.1f} ms later, "
        f"{opened['resident'] / MIB:,.0f} MiB resident"
    )
    return {**opened, "fill_rate": count / filled["seconds"]}


def measure_memory(folder: Path, count: int) -> dict[str, Any]:
    path = str(folder / "memory.db")
    filled = child("bench.store", "_fill", path, str(count), "1024", str(64 * MIB))
    points = filled["points"]
    for queued, resident in points:
        print(f"{queued:>9,} queued: {resident / MIB:7,.0f} MiB")
    # The second half only: by then the 64 MiB of bodies that may stay in memory are used up.
    slope = (points[-1][1] - points[len(points) // 2][1]) / (
        points[-1][0] - points[len(points) // 2][0]
    )
    at_five = points[-1][1] + slope * (5_000_000 - points[-1][0])
    print(f"slope {slope:.0f} bytes a message: five millions in {at_five / 1e9:.2f} GB")
    return {"points": points, "slope": slope, "five_millions": at_five}


def main(given: Iterable[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if given is None else given)
    if arguments[:1] == ["_fill"]:
        path, count, size, limit = arguments[1:]
        print(json.dumps(asyncio.run(fill(path, int(count), int(size), int(limit)))))
        return 0
    if arguments[:1] == ["_start"]:
        print(json.dumps(asyncio.run(start(arguments[1]))))
        return 0
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parts = ("speed", "start", "memory")
    parser.add_argument("part", nargs="?", choices=parts, help="only this one")
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="for speed")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="for speed")
    parser.add_argument("--stored", type=int, default=1_000_000, metavar="N", help="for start")
    parser.add_argument("--queued", type=int, default=500_000, metavar="N", help="for memory")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench-store.json")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"machine": machine.facts()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=options.json.parent) as name:
        folder = Path(name)
        if options.part in (None, "speed"):
            results["speed"] = speed(folder, options.messages, options.rounds)
        if options.part in (None, "start"):
            results["start"] = measure_start(folder, options.stored)
        if options.part in (None, "memory"):
            results["memory"] = measure_memory(folder, options.queued)
    options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
