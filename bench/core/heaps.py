"""Compares data structures for deadlines, at 1,000 to 1,000,000 keys.

    python -m bench.core.heaps                  # the table of docs/core.md; about two minutes
    python -m bench.core.heaps --most 10000     # a quick look

Keys are delivery tags, deadlines are a minute ahead and rise with the tag, as they do when
consumers take messages. Nanoseconds an operation: `start` adds a key, `settle` discards one
(the oldest, or any: `settle any`), `touch` moves any one to the end, `expire` takes out all that
is due. The best of three rounds.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import random
import time
from collections.abc import Callable
from typing import Protocol

from broker_client.runtime.deadlines import Deadlines


class Contestant(Protocol):
    """What all of them can do."""

    def set(self, key: int, at: float) -> None: ...

    def discard(self, key: int) -> None: ...

    def pop_due(self, now: float) -> list[int]: ...


class PlainHeap:
    """heapq on tuples with lazy deletion, and a map beside it."""

    def __init__(self) -> None:
        self._at: dict[int, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._seq = 0

    def set(self, key: int, at: float) -> None:
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._at):
            self._heap = [(when, seq, k) for k, (when, seq) in self._at.items()]
            heapq.heapify(self._heap)
        self._seq += 1
        self._at[key] = (at, self._seq)
        heapq.heappush(self._heap, (at, self._seq, key))

    def discard(self, key: int) -> None:
        self._at.pop(key, None)

    def pop_due(self, now: float) -> list[int]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            at, seq, key = heapq.heappop(self._heap)
            if self._at.get(key) == (at, seq):
                del self._at[key]
                due.append(key)
        return due


class Wheel:
    """Buckets of a tenth of a second, and a heap of the buckets in use."""

    _TICK = 0.1

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._buckets: dict[int, dict[int, float]] = {}
        self._order: list[int] = []

    def set(self, key: int, at: float) -> None:
        old = self._at.get(key)
        if old is not None:
            del self._buckets[int(old / self._TICK)][key]
        self._at[key] = at
        number = int(at / self._TICK)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        bucket[key] = at

    def discard(self, key: int) -> None:
        at = self._at.pop(key, None)
        if at is not None:
            del self._buckets[int(at / self._TICK)][key]

    def pop_due(self, now: float) -> list[int]:
        due: list[int] = []
        while self._order and self._order[0] * self._TICK <= now:
            number = self._order[0]
            bucket = self._buckets[number]
            ripe = sorted((at, key) for key, at in bucket.items() if at <= now)
            for _, key in ripe:
                del bucket[key], self._at[key]
                due.append(key)
            if bucket:
                break
            heapq.heappop(self._order)
            del self._buckets[number]
        return due


CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "line and heap (in use)": Deadlines,
    "heapq": PlainHeap,
    "timing wheel, 100 ms": Wheel,
}

OPERATIONS = ("start", "settle", "settle any", "touch", "expire")


def timed(action: Callable[[], object], times: int) -> float:
    started = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - started) / times


def measure(make: Callable[[], Contestant], size: int, operations: int) -> dict[str, float]:
    """Nanoseconds an operation at `size` keys."""
    rng = random.Random(size)
    held = make()
    gap = 60.0 / size  # one minute of messages in flight
    for tag in range(size):
        held.set(tag, 60.0 + tag * gap)
    newest = range(size, size + operations)
    result = {}

    def start() -> None:
        for tag in newest:
            held.set(tag, 60.0 + tag * gap)

    def settle() -> None:
        for tag in range(operations):
            held.discard(tag)

    result["start"] = timed(start, operations)
    result["settle"] = timed(settle, operations)
    alive = list(range(operations, size + operations))
    touched = rng.sample(alive, operations)
    late = [130.0 + n * gap for n in range(operations)]

    def touch() -> None:
        for tag, at in zip(touched, late, strict=True):
            held.set(tag, at)

    result["touch"] = timed(touch, operations)
    any_one = rng.sample(alive, operations // 2)

    def settle_any() -> None:
        for tag in any_one:
            held.discard(tag)

    result["settle any"] = timed(settle_any, len(any_one))
    left = size - len(any_one)
    popped: list[int] = []
    result["expire"] = timed(lambda: popped.extend(held.pop_due(1e9)), left)
    assert len(popped) == left, f"{held}: {len(popped)} of {left} came out"
    return result


def rounds(make: Callable[[], Contestant], size: int, count: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for _ in range(count):
        gc.collect()
        gc.disable()  # garbage collection is not part of the measurement
        try:
            result = measure(make, size, min(size // 10, 20_000))
        finally:
            gc.enable()
        best = {name: min(value, best.get(name, value)) for name, value in result.items()}
    return best


def main() -> None:
    """Print a Markdown table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, default=1_000_000, help="keys at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= options.most]
    table: dict[str, dict[int, dict[str, float]]] = {}
    for name, make in CONTESTANTS.items():
        table[name] = {size: rounds(make, size, options.rounds) for size in sizes}
    if options.json:
        print(json.dumps(table, indent=2))
        return
    print("| ns an operation | keys | " + " | ".join(OPERATIONS) + " |")
    print("|---|--:|" + "--:|" * len(OPERATIONS))
    for name, by_size in table.items():
        for size, result in by_size.items():
            row = " | ".join(f"{result[operation]:,.0f}" for operation in OPERATIONS)
            print(f"| {name} | {size:,} | {row} |")


if __name__ == "__main__":
    main()
