"""An event loop on a thread of its own, for code that Spark calls from outside any loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

log: logging.Logger = logging.getLogger("broker_client.spark")

T = TypeVar("T")

_STOP_TIMEOUT = 5.0  # seconds for a caller of `stop`
_CANCEL_TIMEOUT = 1.0  # seconds for tasks to end before they are cancelled again
_CANCEL_ROUNDS = 4


class LoopThread:
    """Runs coroutines for callers on other threads.

    The thread is a daemon: the Python processes of Spark are killed, not asked to leave, and one
    that is asked must not wait for us.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._work: set[asyncio.Task[Any]] = set()
        self._stop_once = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<LoopThread {self._thread.name}: {'up' if self.is_running else 'stopped'}>"

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self.loop.is_closed()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop; returns at once."""
        return asyncio.run_coroutine_threadsafe(self._tracked(work), self.loop)

    async def _tracked(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        self._work.add(task)
        try:
            return await work
        finally:
            self._work.discard(task)

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` on the loop and wait for its result, `timeout` seconds at most.

        Raises:
            TimeoutError: time ran out; `work` was cancelled.
        """
        future = self.start(work)
        try:
            return future.result(timeout)
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what still runs and end the thread. May be called more than once."""
        if not self.is_running:
            return
        if self._stop_once.acquire(blocking=False):  # a second stop would stop the clean-up
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            # What has only just been started begins, so that `_work` has all.
            self.loop.run_until_complete(asyncio.sleep(0))
            # First what was started here, which may close a link in order, and then what is left:
            # tasks of the link among it, and what others began when they were cancelled.
            self._cancel(self._work)
            for _ in range(_CANCEL_ROUNDS):
                self._cancel(asyncio.all_tasks(self.loop))
            left = asyncio.all_tasks(self.loop)
            if left:
                log.error("%r: %d tasks did not end when cancelled: %s", self, len(left), left)
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def _cancel(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(list(tasks), timeout=_CANCEL_TIMEOUT))
