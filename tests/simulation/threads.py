"""The store's thread without a thread: it runs when the scheduler says so, until it waits.

`SqliteStore` starts one thread, which waits at a queue for its work. Here the thread is a greenlet
and the queue hands over to the scheduler. The code of the store is as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from broker_client.store import writer
from tests.simulation.loop import ProcessLoop, Scheduler

_SOON = 0.002  # seconds a commit takes, at most, by default


class StoreThreads:
    """The threads of all stores of a simulation."""

    def __init__(self, scheduler: Scheduler, chance: Random) -> None:
        self.scheduler, self.chance = scheduler, chance
        self.slowest = _SOON
        self.after_work: Callable[[], None] = lambda: None
        """Called when a thread waits again: is its process still alive?"""
        self._threads: list[_Thread] = []

    @contextlib.contextmanager
    def in_place(self) -> Iterator[StoreThreads]:
        """Have stores use these."""
        with (
            mock.patch.object(writer, "threading", SimpleNamespace(Thread=self._new_thread)),
            mock.patch.object(writer, "queue", SimpleNamespace(SimpleQueue=_Queue)),
        ):
            yield self

    def speed_up(self) -> None:
        self.slowest = _SOON

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """The process is killed meanwhile, and its disk is dead: each thread comes to its end."""
        for thread in self._threads:
            thread.hurry()
        yield
        for thread in self._threads:
            thread.end()
        self._threads.clear()

    def _new_thread(self, *, target: Callable[..., None], args: Any, **_: Any) -> _Thread:
        thread = _Thread(self, target, args)
        self._threads.append(thread)
        return thread


class _Thread(greenlet):  # type: ignore[misc]  # it has no types
    """One of them."""

    def __init__(self, owner: StoreThreads, target: Callable[..., None], args: Any) -> None:
        super().__init__(lambda: target(*args))
        self._owner = owner
        self._is_due = False
        self.is_hurrying = self.is_ending = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.is_hurrying = isinstance(loop, ProcessLoop) and loop.is_dead
        self.run_soon()

    def run_soon(self) -> None:
        if self.is_hurrying:
            self._switch()
        elif not self._is_due:
            self._is_due = True
            owner = self._owner
            owner.scheduler.world.call_later(owner.chance.uniform(0.0, owner.slowest), self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if not self.dead and not self.is_hurrying:
            self._switch()
            self._owner.after_work()

    def hurry(self) -> None:
        """From now on, do at once what there is to do."""
        self.is_hurrying = True
        if not self.dead:
            self._switch()

    def end(self) -> None:
        """Find that there is nothing more to do."""
        self.is_ending = True
        if not self.dead:
            self._switch()

    def _switch(self) -> None:
        self.parent = getcurrent()
        self.switch()


class _Queue:
    """A `queue.SimpleQueue` for one thread that reads."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._reader: _Thread | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._reader.run_soon()

    def get(self) -> Any:
        reader = getcurrent()
        assert isinstance(reader, _Thread), "the store reads it in its thread"
        self._reader = reader
        while not self._items:
            if reader.is_ending:
                return None
            reader.parent.switch()
        return self._items.popleft()
