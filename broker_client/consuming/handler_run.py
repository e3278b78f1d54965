"""Runs the coroutines of handlers in tasks: starts them in order, times their steps, reports their
ends.

A task costs more than all else that is done for a message here, and a handler that never waits
ends in its first step. So handlers that are started in one turn of the event loop share a task,
whose first step runs one after the other. If one of them waits, the task is its own from then on,
and each of those behind it gets a task, as do later ones until one ends without having waited.
Each has its own context, and its errors and its end are its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextvars import Context
from itertools import chain
from operator import attrgetter
from time import perf_counter
from typing import Any, Generic, NoReturn, TypeVar

from broker_client.runtime.tasks import PROGRAM_ENDS, TaskGroup

S = TypeVar("S")

Start = tuple[Coroutine[Any, Any, Any], S, Context]
"""The coroutine of a handler, what it handles, and the context it runs in."""


class HandlerTasks(Generic[S]):
    """Starts handlers in tasks of `group`."""

    def __init__(
        self,
        group: TaskGroup,
        name: str,
        ended: Callable[[S, asyncio.Task[Any], Any, BaseException | None], None],
        limit: float,
        blocked: Callable[[float], None],
    ) -> None:
        """
        Args:
            group: owner of the tasks.
            name: of each task.
            ended: called within the last step of a handler, with its subject, the task, the
                result and the error.
            limit: seconds a step of a handler may take. A coroutine holds up everything else,
                heartbeats too, from one of its awaits to the next.
            blocked: called with the seconds of each step that takes longer.
        """
        self.ended = ended
        self.limit = limit
        self.blocked = blocked
        self.they_wait: bool = False
        """The handler that began last has waited for something."""
        self._group, self._name = group, name
        self._open: HandlerRun[S] | None = None
        """Takes further handlers: its first step is still to come, or under way."""

    def start(self, work: Coroutine[Any, Any, Any], subject: S, context: Context) -> None:
        """Run `work` soon, behind all that were started before."""
        if self._open is not None:
            self._open.behind.append((work, subject, context))
            return
        run = HandlerRun(self, work, subject)
        if not self.they_wait:
            self._open = run
        task = self._group.attend(run, self._name, context)
        if not task.done():
            run.task = task

    def step_over(self, run: HandlerRun[S], rest: Iterable[Start[S]]) -> None:
        """The first step of `run` is over: start the `rest`.

        Together, or each in its own task if that handler waits.
        """
        if self._open is run:
            self._open = None
            for start in rest:
                self.start(*start)

    def left(self, task: asyncio.Task[Any]) -> None:
        """`task` has ended."""
        self._group.leave(task)


class HandlerRun(Coroutine[Any, Any, Any], Generic[S]):
    """Runs handlers in one task, with any outcome: `work`, or `work` and those behind it as long
    as none waits.

    What asyncio and others ask a coroutine about, such as its name and its frame, is answered by
    the present handler's.

    This is a class, not an `async def` around the handler, for one reason: a task that is
    cancelled before its first step throws into a coroutine that has not begun, and whatever its
    code says about errors is never reached. A callback of the task would see that end too, at five
    times the price of all that is done here (`python -m bench.cpu consume`).

    Of errors, only cancellation and `PROGRAM_ENDS` are raised in the task.
    """

    __slots__ = ("_context", "_line", "_subject", "_tasks", "_thrown", "_work", "behind", "task")

    # Not by `__getattr__`: with it, each attribute of this class would take twice as long.
    __name__: str = property(attrgetter("_work.__name__"))  # type: ignore[assignment]
    cr_await: property = property(attrgetter("_work.cr_await"))
    cr_code: property = property(attrgetter("_work.cr_code"))
    cr_frame: property = property(attrgetter("_work.cr_frame"))
    cr_origin: property = property(attrgetter("_work.cr_origin"))
    cr_running: property = property(attrgetter("_work.cr_running"))
    cr_suspended: property = property(attrgetter("_work.cr_suspended"))

    def __init__(self, tasks: HandlerTasks[S], work: Coroutine[Any, Any, Any], subject: S) -> None:
        """
        Args:
            tasks: what started it.
            work: the coroutine of a handler, whose context is that of the task.
            subject: what it handles.
        """
        self._tasks = tasks
        self._work = work
        self._subject = subject
        self._context: Context | None = None  # None for that of the task
        self._line: Iterator[Start[S]] | None = None  # of the first step; None before it
        self._thrown: BaseException | None = None
        self.behind: list[Start[S]] = []
        """Handlers that run in the same step, or were started within it."""
        self.task: asyncio.Task[Any] | None = None
        """The task that runs it, once it is known; looked up at the end if it was not set."""

    def __await__(self) -> NoReturn:
        raise TypeError(f"{self!r} is run by a task, not awaited")

    def send(self, value: Any) -> Any:
        """Run the next step."""
        is_first = self._line is None
        if is_first:
            self._line, self.behind = iter(self.behind), []
        thrown, self._thrown = self._thrown, None
        begun = perf_counter()
        while True:
            try:
                if thrown is not None:
                    awaited = self._throw(thrown)
                elif self._context is None:
                    awaited = self._work.send(value)
                else:
                    awaited = self._context.run(self._work.send, value)
            except StopIteration as end:
                begun = self._end(begun, end.value, None)
                if not (is_first and self._turn_to_next(thrown)):
                    self._leave()
                    raise
            except asyncio.CancelledError as error:
                begun = self._end(begun, None, error)
                if not (is_first and self._turn_to_next(thrown)):
                    self._leave()
                    raise
            except PROGRAM_ENDS as error:
                self._end(begun, None, error)
                task = self._leave()
                task.add_done_callback(asyncio.Task.exception)  # raised by the loop: not logged
                raise
            except BaseException as error:  # noqa: BLE001 - user code behind a fence
                begun = self._end(begun, None, error)
                if not (is_first and self._turn_to_next(thrown)):
                    self._leave()
                    break
            else:
                if (taken := perf_counter() - begun) > self._tasks.limit:
                    self._tasks.blocked(taken)
                if is_first:
                    self._tasks.they_wait = True
                    self._hand_on()
                return awaited
        raise StopIteration

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """Run the next step, beginning with `error`."""
        self._thrown = error
        return self.send(None)

    def close(self) -> None:
        """Close the handlers' coroutines. Nothing is reported: the program has dropped the task."""
        self._work.close()
        for work, _, _ in (*(self._line or ()), *self.behind):
            work.close()

    def _throw(self, error: BaseException) -> Any:
        if self._context is None:
            return self._work.throw(error)
        return self._context.run(self._work.throw, error)

    def _end(self, begun: float, result: Any, error: BaseException | None) -> float:
        """Report the end of the present handler; returns the time of it."""
        tasks, now = self._tasks, perf_counter()
        if now - begun > tasks.limit:
            tasks.blocked(now - begun)
        try:
            tasks.ended(self._subject, self.task or self._present_task(), result, error)
        except BaseException:
            self._leave()
            raise
        return now

    def _turn_to_next(self, thrown: BaseException | None) -> bool:
        """Turn to the next handler of the first step; False if there is none for this task."""
        self._tasks.they_wait = False
        # A handler that has cancelled its task must not cancel the next.
        if thrown is None and (self.task or self._present_task()).cancelling():
            return False
        assert self._line is not None, "the first step has begun"
        start = next(self._line, None)
        if start is None:
            return False
        self._work, self._subject, self._context = start
        return True

    def _present_task(self) -> asyncio.Task[Any]:
        self.task = task = asyncio.current_task()
        assert task is not None, "a task runs this"
        return task

    def _leave(self) -> asyncio.Task[Any]:
        """The task ends."""
        task = self.task or self._present_task()
        self._hand_on()
        self._tasks.left(task)
        self.task = None  # no circle of references is left to be collected
        return task

    def _hand_on(self) -> None:
        """Have those started that are still behind, in order."""
        line, self._line = self._line, iter(())
        behind, self.behind = self.behind, []
        self._tasks.step_over(self, chain(line or (), behind))
