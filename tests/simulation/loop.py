"""Virtual time, and processes whose event loops take turns by chance.

Each simulated process has an event loop of its own. Within one, callbacks run first in, first out,
as asyncio promises; between processes the order is anybody's guess, so the scheduler draws it. It
runs one callback at a time and moves the time ahead where nobody has anything to do.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import Any

_EPOCH = 1_800_000_000.0  # seconds; where virtual time begins
_CALLBACK = 1e-6  # seconds that each takes: a clock that stands still is none
_LAST_WORDS = 20_000  # callbacks within which a killed process must have come to its end


class Scheduler:
    """Says who runs next, and what time it is."""

    def __init__(self, chance: Random) -> None:
        self.now = 0.0
        """Virtual seconds since the start."""
        self.steps = 0
        self._chance = chance
        self._loops: list[ProcessLoop] = []
        self.world = self.new_loop("world")
        """What belongs to no process: the network, disks, and who causes faults."""

    def new_loop(self, name: str) -> ProcessLoop:
        loop = ProcessLoop(name, self)  # type: ignore[abstract]  # what nobody calls is left out
        self._loops.append(loop)
        return loop

    def forget(self, loop: ProcessLoop) -> None:
        self._loops.remove(loop)

    def step(self) -> bool:
        """Run one callback; False where none will ever be ready."""
        ready = [loop for loop in self._loops if loop.has_ready()]
        if not ready:
            at = min((loop.next_timer() for loop in self._loops), default=float("inf"))
            if at == float("inf"):
                return False
            self.now = max(self.now, at)
            return True
        self.steps += 1
        self.now += _CALLBACK
        (ready[0] if len(ready) == 1 else self._chance.choice(ready)).run_one()
        return True


class SimClock:
    """The time of the scheduler, as seconds since the epoch."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def now(self) -> float:
        return _EPOCH + self._scheduler.now


class _Handle(asyncio.TimerHandle):
    """A callback that the scheduler runs."""

    def run(self) -> None:
        self._run()


class SimServer(asyncio.AbstractServer):
    """A listening socket of the simulated network."""

    def __init__(self, stop: Callable[[], None], start: Callable[[], None]) -> None:
        self._stop, self._start = stop, start

    def close(self) -> None:
        self._stop()

    async def start_serving(self) -> None:
        self._start()

    async def serve_forever(self) -> None:
        raise NotImplementedError

    async def wait_closed(self) -> None: ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def is_serving(self) -> bool:
        return True


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name = name
        self.failures: list[dict[str, Any]] = []
        """What went wrong with nobody to tell."""
        self.connect: Callable[..., Any] | None = None
        self.listen: Callable[..., SimServer] | None = None
        self.is_dead = False
        self._scheduler = scheduler
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._count = 0
        self._own_time: float | None = None
        """Of a dead process, which lives on outside of the world's time."""
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def __repr__(self) -> str:
        return f"<ProcessLoop {self.name}>"

    # ---------------------------------------------------------------- for the scheduler

    def has_ready(self) -> bool:
        timers, now = self._timers, self.time()
        while timers and timers[0][0] <= now:
            self._ready.append(heapq.heappop(timers)[2])
        return bool(self._ready)

    def next_timer(self) -> float:
        """When the next timer fires, of those that are still wanted."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else float("inf")

    def run_one(self) -> None:
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        asyncio._set_running_loop(self)  # noqa: SLF001 - the simulation resets it as it ends
        handle.run()

    def kill(self) -> None:
        """End the process. What it would still do on its way out happens outside of the world.

        A killed process runs no `finally`, but Python's objects here must come to their end: all
        tasks are cancelled and run out, cut off from disk and network, which the caller sees to.
        """
        self.is_dead = True
        self._scheduler.forget(self)
        self._own_time = self._scheduler.now
        told: set[asyncio.Task[Any]] = set()
        tasks: list[asyncio.Task[Any]] = []
        for _ in range(_LAST_WORDS):
            tasks = [task for task in self._tasks if not task.done()]
            if not tasks:
                break
            if self.has_ready():
                self.run_one()
            elif untold := [task for task in tasks if task not in told]:
                told.update(untold)
                for task in untold:
                    task.cancel()
            else:
                self._own_time = self.next_timer()
                assert self._own_time != float("inf"), f"{self} does not end: {tasks}"
        else:
            raise AssertionError(f"{self} does not end: {tasks}")
        self._ready.clear()
        self._timers.clear()

    # ---------------------------------------------------------------- as an event loop

    def time(self) -> float:
        return self._scheduler.now if self._own_time is None else self._own_time

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(0.0, callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells it; `next_timer` looks by itself."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Done at once, as by a very quick thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
            future.set_exception(error)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        assert self.connect is not None, f"{self} has no network"
        return await self.connect(protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, **options: Any) -> SimServer:  # type: ignore[override]
        assert self.listen is not None, f"{self} has no network"
        return self.listen(protocol_factory, options["sock"])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.failures.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False
