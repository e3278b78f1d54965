"""Owned tasks: named, referenced until done, cancelled together, failures logged."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from broker_client.errors import BrokerClosedError, WrongLoopError

log: logging.Logger = logging.getLogger("broker_client.tasks")

T = TypeVar("T")

PROGRAM_ENDS = (KeyboardInterrupt, SystemExit)
"""Exceptions that asyncio also passes to the caller of the loop."""


def ends_task(error: BaseException) -> bool:
    """True if `error`, out of code of the user's, must leave the task: the program ends, or the
    task was cancelled, which that code may also do to what it waits for."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, PROGRAM_ENDS)


def raise_in_loop(error: BaseException) -> None:
    """Raise `error` in a separate turn of the loop.

    For `PROGRAM_ENDS` out of code of the user's that a transport was about to call: raised there,
    it would leave that transport, or the built-in broker, in the middle of its work.
    """
    asyncio.get_running_loop().call_soon(_raise, error)


async def see_through(task: asyncio.Task[Any]) -> None:
    """Wait for `task`, which ends in bounded time, to its end, also when cancelled meanwhile."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def wait_in_thread(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` in `loop` and wait for it in the calling thread, which is another.

    Raises:
        BrokerClosedError: the loop has ended.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as error:
        work.close()
        raise BrokerClosedError("the event loop") from error
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise BrokerClosedError("the event loop") from None


def _raise(error: BaseException) -> None:
    raise error


class TaskGroup:
    """The tasks of one long-lived object.

    Unlike `asyncio.TaskGroup` it is not a block: tasks come and go while the owner lives, one that
    fails is logged and leaves the others alone, and `cancel` ends them all.
    """

    __slots__ = ("_name", "_tasks", "loop")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop of their owner, for `check_loop`."""

    def __len__(self) -> int:
        return len(self._tasks)

    def check_loop(self, what: str) -> None:
        """Check that the loop of the owner runs here; `what` is for the error.

        Raises:
            WrongLoopError: another one does, or none.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self.loop is not None and self.loop is not running:
            raise WrongLoopError(
                f"{what} can only be used in its Broker's event loop; from another thread, call "
                "asyncio.run_coroutine_threadsafe with that loop"
            )

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def attend(
        self, work: Coroutine[Any, Any, Any], name: str, context: contextvars.Context
    ) -> asyncio.Task[Any]:
        """Run `work`, which handles its own failures and calls `leave` at its end.

        What messages are handled in: a callback at the end of each task would cost too much.

        Args:
            work: what to run.
            name: of the task.
            context: that the task runs in.
        """
        task = asyncio.get_running_loop().create_task(work, name=name, context=context)
        if not task.done():  # an eager task factory has run all of it
            self._tasks.add(task)
        return task

    def leave(self, task: asyncio.Task[Any]) -> None:
        """`task`, one of `attend`, has ended."""
        self._tasks.discard(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    def __contains__(self, task: object) -> bool:
        return task in self._tasks

    async def wait(
        self, timeout: float | None = None, *, spare: asyncio.Task[Any] | None = None
    ) -> bool:
        """Wait until all are done, except the calling one and `spare`; those too that begin
        meanwhile.

        False when `timeout` seconds were not enough.
        """
        now = asyncio.get_running_loop().time
        deadline = None if timeout is None else now() + timeout
        while tasks := self._tasks - {asyncio.current_task(), spare}:
            left = None if deadline is None else max(0.0, deadline - now())
            done, pending = await asyncio.wait(tasks, timeout=left)
            self._tasks -= done
            if pending:
                return False
        return True

    async def cancel(
        self, *, spare: asyncio.Task[Any] | None = None, timeout: float | None = None
    ) -> None:
        """Cancel all of them, except the calling one and `spare`; wait until they have ended.

        `timeout` seconds at most, for tasks of the user's: those may refuse to be cancelled.
        """
        tasks = self._tasks - {asyncio.current_task(), spare}
        for task in tasks:
            task.cancel()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout)
            for task in pending:
                log.error(
                    "task %s was cancelled %g s ago and is still running", task.get_name(), timeout
                )
            self._tasks -= tasks
