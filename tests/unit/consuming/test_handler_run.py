from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

import pytest

from broker_client.consuming.handler_run import HandlerRun
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
        self.blocked: list[float] = []
        self.ends: list[tuple[str, asyncio.Task[Any] | None, Any, BaseException | None]] = []

    def run(self, work: Coroutine[Any, Any, Any], limit: float = 1.0) -> HandlerRun[str]:
        return HandlerRun(work, "m", self._ended, limit, self.blocked.append)

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
