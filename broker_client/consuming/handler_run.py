"""Runs a handler's coroutine in its task: times its steps and reports its end.

A coroutine holds up everything else, heartbeats too, from one of its awaits to the next; two
readings of the clock tell how long.

This is a class, not an `async def` around the handler, for one reason: a task that is cancelled
before its first step throws into a coroutine that has not begun, and whatever its code says about
errors is never reached. A callback of the task would see that end too, at five times the price of
all that is done here (`python -m bench.cpu consume`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from operator import attrgetter
from time import perf_counter
from typing import Any, Generic, NoReturn, TypeVar

from broker_client.runtime.tasks import PROGRAM_ENDS

S = TypeVar("S")

Blocked = Callable[[float], None]


class HandlerRun(Coroutine[Any, Any, Any], Generic[S]):
    """Runs `work` to its end, with any outcome.

    Args:
        work: the coroutine of a handler. What asyncio and others ask a coroutine about, such as
            its name and its frame, is answered by this one.
        subject: what it handles.
        ended: called within the last step, with `subject`, the task, the result and the error.
            After it, only cancellation and `PROGRAM_ENDS` are raised in the task.
        limit: seconds a step may take.
        blocked: called with the seconds of each step that takes longer.
    """

    __slots__ = ("_blocked", "_ended", "_limit", "_subject", "_thrown", "_work", "task")

    # Not by `__getattr__`: with it, each attribute of this class would take twice as long.
    __name__: str = property(attrgetter("_work.__name__"))  # type: ignore[assignment]
    cr_await: property = property(attrgetter("_work.cr_await"))
    cr_code: property = property(attrgetter("_work.cr_code"))
    cr_frame: property = property(attrgetter("_work.cr_frame"))
    cr_origin: property = property(attrgetter("_work.cr_origin"))
    cr_running: property = property(attrgetter("_work.cr_running"))
    cr_suspended: property = property(attrgetter("_work.cr_suspended"))

    def __init__(
        self,
        work: Coroutine[Any, Any, Any],
        subject: S,
        ended: Callable[[S, asyncio.Task[Any], Any, BaseException | None], None],
        limit: float,
        blocked: Blocked,
    ) -> None:
        self._work = work
        self.task: asyncio.Task[Any] | None = None
        """The task that runs it, once it is known; looked up at the end if it was not set."""
        self._thrown: BaseException | None = None
        self._ended = ended
        self._limit = limit
        self._blocked = blocked
        self._subject = subject

    def __await__(self) -> NoReturn:
        raise TypeError(f"{self!r} is run by a task, not awaited")

    def send(self, value: Any) -> Any:
        """Run the next step."""
        begun = perf_counter()
        try:
            if self._thrown is None:
                awaited = self._work.send(value)
            else:
                error, self._thrown = self._thrown, None
                awaited = self._work.throw(error)
        except StopIteration as end:
            self._end(begun, end.value, None)
            raise
        except asyncio.CancelledError as error:
            self._end(begun, None, error)
            raise
        except PROGRAM_ENDS as error:
            task = self._end(begun, None, error)
            task.add_done_callback(asyncio.Task.exception)  # raised by the loop: not to be logged
            raise
        except BaseException as error:  # noqa: BLE001 - user code behind a fence
            self._end(begun, None, error)
        else:
            if (taken := perf_counter() - begun) > self._limit:
                self._blocked(taken)
            return awaited
        raise StopIteration

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """Run the next step, beginning with `error`."""
        self._thrown = error
        return self.send(None)

    def close(self) -> None:
        """Close the handler's coroutine. Nothing is reported: the program has dropped its task."""
        self._work.close()

    def _end(self, begun: float, result: Any, error: BaseException | None) -> asyncio.Task[Any]:
        if (taken := perf_counter() - begun) > self._limit:
            self._blocked(taken)
        task, self.task = self.task, None  # no circle of references is left to be collected
        if task is None:
            task = asyncio.current_task()
            assert task is not None, "a task runs this"
        self._ended(self._subject, task, result, error)
        return task
