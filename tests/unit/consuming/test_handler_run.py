from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

import pytest

from broker_client.consuming.handler_run import HandlerRun, HandlerTasks
from broker_client.runtime.tasks import TaskGroup
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


class Clock:
    """A fake `perf_counter`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("broker_client.consuming.handler_run.perf_counter", clock)
    return clock


class Report:
    """The log records about one handler."""

    def __init__(self) -> None:
        self.group = TaskGroup("test")
        self.blocked: list[float] = []
        self.ends: list[tuple[str, asyncio.Task[Any] | None, Any, BaseException | None]] = []

    def run(self, work: Coroutine[Any, Any, Any], limit: float = 1.0) -> HandlerRun[str]:
        return HandlerRun(self.tasks(limit), work, "m")

    def tasks(self, limit: float = 1.0) -> HandlerTasks[str]:
        return HandlerTasks(self.group, "handler", self._ended, limit, self.blocked.append)

    def start(self, work: Coroutine[Any, Any, Any], limit: float = 1.0) -> asyncio.Task[Any]:
        return asyncio.create_task(self.run(work, limit))

    def _ended(self, *end: Any) -> None:
        self.ends.append(end)


@pytest.fixture
def report() -> Report:
    return Report()


async def test_steps_within_the_limit_are_not_reported(clock: Clock, report: Report) -> None:
    async def work() -> str:
        for _ in range(3):
            clock.now += 0.5
            await asyncio.sleep(1.0)
        return "done"

    task = report.start(work(), 0.6)
    assert await task == "done"
    assert report.blocked == []
    assert report.ends == [("m", task, "done", None)]


async def test_each_step_over_the_limit_is_reported(clock: Clock, report: Report) -> None:
    async def work() -> None:
        clock.now += 2.0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += 3.0

    await report.start(work())
    assert report.blocked == [2.0, 3.0]


async def test_failing_step_is_timed_and_its_error_reported(clock: Clock, report: Report) -> None:
    error = ValueError("no")

    async def work() -> None:
        clock.now += 2.0
        raise error

    task = report.start(work())
    assert await task is None
    assert report.blocked == [2.0]
    assert report.ends == [("m", task, None, error)]


async def test_cancelling_cancels_the_work_and_the_task(report: Report) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    task = report.start(work())
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert (ends, task.cancelled()) == (["cancelled"], True)
    assert [type(error) for _, _, _, error in report.ends] == [asyncio.CancelledError]


async def test_cancelling_before_the_first_step_is_reported(report: Report) -> None:
    async def work() -> None:
        raise AssertionError("begun")

    task = report.start(work())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(error) for _, _, _, error in report.ends] == [asyncio.CancelledError]


async def test_cancelling_between_two_turns_of_the_loop_cancels_the_work(report: Report) -> None:
    turns: list[int] = []

    async def work() -> None:
        for turn in range(3):
            turns.append(turn)
            await asyncio.sleep(0)

    task = report.start(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert turns == [0]


async def test_failure_that_the_work_survives_goes_on(report: Report) -> None:
    failing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        try:
            await failing
        except OSError:
            await asyncio.sleep(0)
            return 7
        raise AssertionError("not raised")

    asyncio.get_running_loop().call_soon(failing.set_exception, OSError("gone"))
    assert await report.start(work()) == 7


async def test_task_shows_the_handler_and_its_stack(report: Report) -> None:
    async def my_handler() -> None:
        await asyncio.Event().wait()

    task = report.start(my_handler())
    coroutine: Any = task.get_coro()
    assert getcoroutinestate(coroutine) == CORO_CREATED
    await asyncio.sleep(0)
    assert "my_handler" in repr(task)
    assert [frame.f_code.co_name for frame in task.get_stack()] == ["my_handler"]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_awaiting_it_is_refused(report: Report) -> None:
    async def work() -> None: ...

    run = report.run(work())
    with pytest.raises(TypeError, match="run by a task"):
        await run
    run.close()


def test_closing_closes_the_work_and_reports_nothing(report: Report) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            ends.append("closed")

    async def begin() -> None:
        run.send(None)

    run = report.run(work())
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()
    run.close()
    assert (ends, report.ends) == (["closed"], [])


# ---------------------------------------------------------------- handlers that share a task

told: ContextVar[str] = ContextVar("told", default="nothing")


class Started:
    """Handlers started in one turn of the event loop, and what they noted."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.tasks = report.tasks()
        self.notes: list[object] = []
        self.ran_in: dict[str, asyncio.Task[Any] | None] = {}

    def start(self, name: str, *steps: Callable[[], Awaitable[object]]) -> None:
        async def work() -> str:
            self.ran_in[name] = asyncio.current_task()
            self.notes.append(name)
            for step in steps:
                await step()
            return name

        self.tasks.start(work(), name, copy_context())

    async def end(self) -> None:
        """Wait until all have ended."""
        await self.report.group.wait()

    def ends(self) -> list[tuple[str, object]]:
        """Of each handler its result, or the type of its error, in the order of their ends."""
        return [
            (subject, result if error is None else type(error))
            for subject, _, result, error in self.report.ends
        ]


@pytest.fixture
def started(report: Report) -> Started:
    return Started(report)


async def wait() -> None:
    await asyncio.sleep(0)


def failing(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def fail() -> None:
        raise error

    return fail


async def test_handlers_that_do_not_wait_share_a_task_and_end_in_order(started: Started) -> None:
    for name in "abc":
        started.start(name)
    assert len(started.report.group) == 1
    await asyncio.sleep(0)
    assert started.ends() == [("a", "a"), ("b", "b"), ("c", "c")]
    assert len(set(started.ran_in.values())) == 1
    assert len(started.report.group) == 0


async def test_handler_that_waits_keeps_its_task_and_those_behind_it_get_their_own(
    started: Started,
) -> None:
    gate = asyncio.Event()
    started.start("a")
    for name in "bcd":
        started.start(name, gate.wait)
    await asyncio.sleep(0)
    assert started.notes == ["a", "b"]
    await asyncio.sleep(0)  # all of them begin in one turn
    assert started.notes == ["a", "b", "c", "d"]
    assert len({started.ran_in[name] for name in "bcd"}) == 3
    gate.set()
    await started.end()
    assert started.ends() == [(name, name) for name in "abcd"]


async def test_after_one_that_waited_each_gets_a_task_until_one_has_not(started: Started) -> None:
    started.start("a", wait)
    await started.end()
    started.start("b")
    started.start("c")
    assert len(started.report.group) == 2
    await started.end()
    started.start("d")
    started.start("e")
    assert len(started.report.group) == 1
    await started.end()


async def test_each_has_its_own_context_also_after_it_waited(started: Started) -> None:
    seen: list[tuple[str, str]] = []

    async def tell(name: str) -> None:
        seen.append((name, told.get()))
        told.set(name)
        if name == "b":
            await asyncio.sleep(0)
        seen.append((name, told.get()))

    for name in "abc":
        started.start(name, partial(tell, name))
    await started.end()
    assert seen == [
        ("a", "nothing"),
        ("a", "a"),
        ("b", "nothing"),
        ("c", "nothing"),
        ("c", "c"),
        ("b", "b"),
    ]
    assert told.get() == "nothing"


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()], ids=repr)
async def test_error_of_one_is_its_own(started: Started, error: BaseException) -> None:
    started.start("a")
    started.start("b", failing(error))
    started.start("c")
    await started.end()
    assert started.ends() == [("a", "a"), ("b", type(error)), ("c", "c")]


async def test_cancelled_before_its_first_step_all_are_cancelled(started: Started) -> None:
    for name in "abc":
        started.start(name)
    await started.report.group.cancel()
    assert started.ends() == [(name, asyncio.CancelledError) for name in "abc"]
    assert started.notes == []


async def test_handler_that_cancels_its_task_does_not_cancel_those_behind_it(
    started: Started,
) -> None:
    async def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    started.start("a", cancel)
    started.start("b", wait)
    await started.end()
    assert started.ends() == [("a", "a"), ("b", "b")]
    assert started.ran_in["a"] is not started.ran_in["b"]


async def test_time_out_in_one_ends_only_that_one(started: Started) -> None:
    async def time_out() -> None:
        async with asyncio.timeout(1.0):
            await asyncio.Event().wait()

    started.start("a")
    started.start("b", time_out)
    started.start("c")
    await started.end()
    assert sorted(started.ends()) == [("a", "a"), ("b", TimeoutError), ("c", "c")]


async def test_what_is_started_within_a_step_begins_behind_what_was_there(
    started: Started,
) -> None:
    async def start_more() -> None:
        started.start("d")

    started.start("a", start_more)
    started.start("b", wait)
    started.start("c")
    await started.end()
    assert started.notes == ["a", "b", "c", "d"]


async def test_steps_of_handlers_that_share_a_task_are_timed_each(
    clock: Clock, started: Started
) -> None:
    async def block() -> None:
        clock.now += 0.75

    for name in "abc":
        started.start(name, block)
    started.start("d", block, block)
    await started.end()
    assert started.report.blocked == [1.5]


def test_program_that_ends_in_one_leaves_the_others_to_begin(report: Report) -> None:
    started = Started(report)

    async def begin() -> None:
        started.start("a", failing(SystemExit(3)))
        started.start("b")
        started.start("c")
        await asyncio.sleep(60.0)

    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(begin())
        with pytest.raises(SystemExit):
            loop.run_until_complete(task)
        loop.run_until_complete(started.end())
        assert started.ends() == [("a", SystemExit), ("b", "b"), ("c", "c")]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
    finally:
        loop.close()


async def test_report_that_fails_leaves_the_others_to_begin(started: Started) -> None:
    ended = started.tasks.ended

    def fail_once(subject: str, *end: Any) -> None:
        ended(subject, *end)
        if subject == "a":
            raise RuntimeError("a report failed")

    started.tasks.ended = fail_once
    for name in "abc":
        started.start(name)
    task = next(iter(started.report.group._tasks))  # noqa: SLF001
    with pytest.raises(RuntimeError):
        await task
    await started.end()
    assert started.ends() == [("a", "a"), ("b", "b"), ("c", "c")]
