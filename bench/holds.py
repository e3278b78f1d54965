"""Times every callback of an event loop, and tells what the longest one did."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import time
from asyncio import events
from collections import Counter
from collections.abc import Iterator
from types import FrameType

LIMIT_MS = 10.0
HEADINGS = f"{'hold ms':>8} {'clock ms':>8} {'gc ms':>6}"
_SAMPLED_EVERY = 0.0005  # seconds
_FRAMES = 5  # innermost functions that a sample tells


class Holds:
    """The longest callback of this thread's event loop since the last reading."""

    def __init__(self, *, samples: bool = False) -> None:
        """
        Args:
            samples: see what the longest callback does, twice a millisecond. Only for the main
                thread, and it takes time itself.
        """
        self._thread = threading.get_ident()
        self._samples = samples
        self._present: Counter[str] = Counter()
        self._collecting = self._collected = 0.0
        self.longest: float = 0.0
        """Seconds, in processor time of the thread."""
        self.elapsed: float = 0.0
        """Its seconds by the clock: more where the machine has other work, or it waits."""
        self.collected: float = 0.0
        """Seconds of it that Python's garbage collector took."""
        self.whose: str = ""
        """Name of the task, or the callback."""
        self.seen: Counter[str] = Counter()
        """What it was doing, by the number of samples."""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Time every callback, which asyncio has no public hook for."""
        run = events.Handle._run  # noqa: SLF001

        def timed(handle: events.Handle) -> None:
            if threading.get_ident() != self._thread:  # of a client
                run(handle)
                return
            callback = getattr(handle, "_callback", None)
            self._present.clear()
            self._collected = 0.0
            began, before = time.perf_counter(), time.thread_time()
            run(handle)
            took = time.thread_time() - before
            if took > self.longest:
                task = getattr(callback, "__self__", None)
                named = task.get_name() if isinstance(task, asyncio.Task) else repr(callback)
                self.longest, self.whose = took, named
                self.elapsed = time.perf_counter() - began
                self.collected, self.seen = self._collected, self._present.copy()

        events.Handle._run = timed  # type: ignore[method-assign, assignment]  # noqa: SLF001
        gc.callbacks.append(self._collects)
        if self._samples:
            signal.signal(signal.SIGALRM, self._sample)
            signal.setitimer(signal.ITIMER_REAL, _SAMPLED_EVERY, _SAMPLED_EVERY)
        try:
            yield
        finally:
            if self._samples:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            gc.callbacks.remove(self._collects)
            events.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001

    def _collects(self, phase: str, about: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting
            self._present[
                f"collected {about['collected']} of generation {about['generation']}"
            ] += 1

    def _sample(self, _: int, frame: FrameType | None) -> None:
        names: list[str] = []
        while frame is not None and len(names) < _FRAMES:
            names.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            frame = frame.f_back
        self._present[" < ".join(names)] += 1

    def row(self) -> str:
        """The figures of the longest callback, in milliseconds; see `HEADINGS`."""
        return f"{self.longest * 1e3:8.1f} {self.elapsed * 1e3:8.1f} {self.collected * 1e3:6.1f}"

    def mark(self) -> str:
        """What follows its row, if it is above the limit or was sampled."""
        lines = [f"  <-- above: {self.whose}"] if self.longest * 1e3 > LIMIT_MS else [""]
        lines += [f"{count:12} {what}" for what, count in self.seen.most_common(8)]
        return "\n".join(lines)

    def forget(self) -> None:
        """Begin anew."""
        self.longest = self.elapsed = self.collected = 0.0
        self.whose = ""
        self.seen = Counter()
