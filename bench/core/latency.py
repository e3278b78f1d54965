"""How to keep latency percentiles: a bounded exact window, a sketch library, our buckets.

    python -m bench.core.latency

Nanoseconds to add one, microseconds to ask for the 50th, 90th, 95th and 99th percentile, the
worst relative error of these against the exact ones of everything added, and the bytes held. The
latencies are log-normal around 4 ms and drift to twice that, as in a queue that falls behind: a
window of the last samples only knows the end. Libraries that are not installed are left out.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from sys import getsizeof
from typing import Any, Protocol

from broker_client.core.latency import PERCENTILES, LatencyWindow


class Contestant(Protocol):
    """What all of them can do."""

    def add(self, seconds: float) -> None: ...

    def ask(self) -> Sequence[float]: ...

    def size(self) -> int: ...


class LastSamples:
    """The last so many, exact."""

    def __init__(self, most: int) -> None:
        self._samples: deque[float] = deque(maxlen=most)
        self.add = self._samples.append

    def ask(self) -> Sequence[float]:
        return exact(self._samples)

    def size(self) -> int:
        return getsizeof(self._samples) + 24 * len(self._samples)


class Ours:
    """`LatencyWindow`."""

    def __init__(self) -> None:
        self._window = LatencyWindow(600.0)
        self.add = partial(self._window.add, now=0.0)

    def ask(self) -> Sequence[float]:
        return [value for _, value in self._window.stats(0.0).percentiles]

    def size(self) -> int:
        counts = self._window._new  # noqa: SLF001 - to weigh it
        held = sum(map(getsizeof, chain(counts, counts.values())))
        return getsizeof(counts) + held + 4 * 512


class Sketch:
    """DataDog's ddsketch, one percent."""

    def __init__(self) -> None:
        self._sketch: Any = import_module("ddsketch").DDSketch(0.01)
        self.add = self._sketch.add

    def ask(self) -> Sequence[float]:
        return [self._sketch.get_quantile_value(quantile) for quantile in PERCENTILES]

    def size(self) -> int:
        return getsizeof(self._sketch.store.bins) + 32 * len(self._sketch.store.bins)


class Digest:
    """fastdigest's t-digest, written in Rust."""

    def __init__(self) -> None:
        self._digest: Any = import_module("fastdigest").TDigest()
        self.add = self._digest.update

    def ask(self) -> Sequence[float]:
        return [self._digest.quantile(quantile) for quantile in PERCENTILES]

    def size(self) -> int:
        return 16 * int(self._digest.n_centroids)


CONTESTANTS: dict[str, Callable[[], Contestant]] = {
    "our buckets (in use)": Ours,
    "last 1,000, exact": lambda: LastSamples(1_000),
    "last 10,000, exact": lambda: LastSamples(10_000),
    "ddsketch": Sketch,
    "fastdigest": Digest,
}


def exact(samples: Sequence[float] | deque[float]) -> list[float]:
    ordered = sorted(samples)
    return [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in PERCENTILES]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=500_000)
    count = parser.parse_args().samples
    rng = random.Random(1)
    samples = [rng.lognormvariate(-5.5, 0.8) * (1 + n / count) for n in range(count)]
    truth = exact(samples)
    print("| | add, ns | ask, µs | worst error | bytes |")
    print("|---|--:|--:|--:|--:|")
    for name, make in CONTESTANTS.items():
        try:
            held = make()
        except ImportError:
            continue
        add = held.add
        started = time.perf_counter()
        for sample in samples:
            add(sample)
        adding = (time.perf_counter() - started) / count * 1e9
        started = time.perf_counter()
        answer = held.ask()
        asking = (time.perf_counter() - started) * 1e6
        error = max(abs(a - t) / t for a, t in zip(answer, truth, strict=True))
        print(f"| {name} | {adding:,.0f} | {asking:,.0f} | {error:.1%} | {held.size():,} |")


if __name__ == "__main__":
    main()
