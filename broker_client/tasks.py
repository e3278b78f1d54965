"""Tasks with an owner: named, held until done, cancelled together, their failures logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("broker_client.tasks")


class TaskGroup:
    """The tasks of one long-lived object.

    Unlike `asyncio.TaskGroup` it is no block: tasks come and go while the owner lives, one that
    fails is logged and leaves the others alone, and `cancel` ends them all.
    """

    __slots__ = ("_name", "_tasks")

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` as a task of this owner."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def attend(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """The same for work that calls `leave` last, whatever happens, and never fails.

        What messages are handled in: a callback at the end of each would cost as much again.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        return task

    def leave(self) -> None:
        """The task that calls this is about to end."""
        if (task := asyncio.current_task()) is not None:
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
        """Wait until all are done, save the one that calls and `spare`.

        False when `timeout` seconds were not enough.
        """
        tasks = self._tasks - {asyncio.current_task(), spare}
        if not tasks:
            return True
        done, pending = await asyncio.wait(tasks, timeout=timeout)
        self._tasks -= done  # one that was cancelled before it began has not left
        return not pending

    async def cancel(self, *, spare: asyncio.Task[Any] | None = None) -> None:
        """Cancel all of them, save the one that calls and `spare`; wait until they have ended."""
        tasks = self._tasks - {asyncio.current_task(), spare}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            self._tasks -= tasks
