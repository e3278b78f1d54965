"""Which structure should hold the deadlines: measured, at 1,000 to 1,000,000 keys.

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
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

from broker_client.runtime.deadlines import Deadlines

try:
    from sortedcontainers import SortedList  # type: ignore[import-untyped]  # ships no types
except ImportError:  # comes with hypothesis, so with the development extra
    SortedList = None


class Contestant(Protocol):
    """What all of them can do."""

    def set(self, key: int, at: float) -> None: ...

    def discard(self, key: int) -> None: ...

    def pop_due(self, now: float) -> list[int]: ...


class PlainHeap:
    """heapq on tuples, lazy deletion, and a second tuple a key in the map beside it."""

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


class SharedHeap:
    """The same with one tuple a key, shared by map and heap."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, int, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._seq = 0

    def set(self, key: int, at: float) -> None:
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
        self._seq += 1
        self._entries[key] = entry = (at, self._seq, key)
        heapq.heappush(self._heap, entry)

    def discard(self, key: int) -> None:
        self._entries.pop(key, None)

    def pop_due(self, now: float) -> list[int]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._entries.get(entry[2]) is entry:
                del self._entries[entry[2]]
                due.append(entry[2])
        return due


class IndexedHeap:
    """nsq's own: each key knows its place, so that it can be taken out of the middle."""

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # [at, key]
        self._place: dict[int, int] = {}

    def set(self, key: int, at: float) -> None:
        self.discard(key)
        self._heap.append([at, key])
        self._place[key] = len(self._heap) - 1
        self._up(len(self._heap) - 1)

    def discard(self, key: int) -> None:
        place = self._place.pop(key, None)
        if place is None:
            return
        last = self._heap.pop()
        if place < len(self._heap):
            self._heap[place] = last
            self._place[last[1]] = place
            self._up(place)
            self._down(place)

    def pop_due(self, now: float) -> list[int]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(self._heap[0][1])
            self.discard(due[-1])
        return due

    def _up(self, place: int) -> None:
        heap, places = self._heap, self._place
        item = heap[place]
        while place and item[0] < heap[parent := (place - 1) >> 1][0]:
            heap[place] = heap[parent]
            places[heap[place][1]] = place
            place = parent
        heap[place] = item
        places[item[1]] = place

    def _down(self, place: int) -> None:
        heap, places = self._heap, self._place
        if place >= len(heap):
            return
        item, size = heap[place], len(heap)
        while (child := 2 * place + 1) < size:
            if child + 1 < size and heap[child + 1][0] < heap[child][0]:
                child += 1
            if heap[child][0] >= item[0]:
                break
            heap[place] = heap[child]
            places[heap[place][1]] = place
            place = child
        heap[place] = item
        places[item[1]] = place


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


class Sorted:
    """sortedcontainers.SortedList of tuples."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._list = SortedList()

    def set(self, key: int, at: float) -> None:
        self.discard(key)
        self._at[key] = at
        self._list.add((at, key))

    def discard(self, key: int) -> None:
        at = self._at.pop(key, None)
        if at is not None:
            self._list.remove((at, key))

    def pop_due(self, now: float) -> list[int]:
        end = self._list.bisect_right((now, float("inf")))
        due = [key for _, key in self._list[:end]]
        del self._list[:end]
        for key in due:
            del self._at[key]
        return due


class Bisected:
    """One sorted list of tuples, without lazy deletion: what the C library alone gives."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._list: list[tuple[float, int]] = []

    def set(self, key: int, at: float) -> None:
        self.discard(key)
        self._at[key] = at
        self._list.insert(bisect_left(self._list, (at, key)), (at, key))

    def discard(self, key: int) -> None:
        at = self._at.pop(key, None)
        if at is not None:
            del self._list[bisect_left(self._list, (at, key))]

    def pop_due(self, now: float) -> list[int]:
        end = bisect_left(self._list, (now, sys.maxsize))
        due = [key for _, key in self._list[:end]]
        del self._list[:end]
        for key in due:
            del self._at[key]
        return due


CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "line and heap (in use)": Deadlines,
    "heapq, two tuples a key": PlainHeap,
    "heapq, one tuple a key": SharedHeap,
    "indexed heap": IndexedHeap,
    "timing wheel, 100 ms": Wheel,
    "sorted list, bisect": Bisected,
}
if SortedList is not None:
    CONTESTANTS["sortedcontainers"] = Sorted

OPERATIONS = ("start", "settle", "settle any", "touch", "expire")


def timed(action: Callable[[], object], times: int) -> float:
    started = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - started) / times


def measure(make: Callable[[], Contestant], size: int, operations: int) -> dict[str, float]:
    """Nanoseconds an operation at `size` keys."""
    rng = random.Random(size)
    held = make()
    gap = 60.0 / size  # a minute's worth in flight
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
        gc.disable()  # what the collector does is not the structure's doing
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
        # A plain sorted list moves half of itself at each insertion: one round says it.
        slow = name == "sorted list, bisect"
        table[name] = {
            size: rounds(make, size, 1 if slow else options.rounds)
            for size in sizes
            if not (slow and size > 100_000)
        }
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
