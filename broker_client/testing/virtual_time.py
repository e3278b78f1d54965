"""An event loop in which waiting takes no time: when all tasks wait, time jumps ahead."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_EPOCH = 1_800_000_000.0  # seconds; where virtual time begins
_LONGEST_LOOK = 1.0  # seconds of real time to wait for a thread at a time


class _Selector(selectors.DefaultSelector):
    """Moves time ahead where the loop would wait, unless a thread works for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        if self.threads:
            return super().select(_LONGEST_LOOK)  # woken as soon as one is done
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Timers fire in order and at their virtual time, without real waiting.

    For programs on ``embedded://`` alone: a peer in another process, or the file of a built-in
    broker, gets no time to answer. Functions in the loop's executors get as long as they need, and
    time stands still meanwhile.
    """

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """See `asyncio.loop.run_in_executor`."""
        future = super().run_in_executor(executor, func, *args)
        self._virtual.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._virtual.threads -= 1


class LoopClock:
    """The time of an event loop, as seconds since the epoch."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        return _EPOCH + self._loop.time()
