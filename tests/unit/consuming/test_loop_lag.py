from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_client.consuming.loop_lag import watched
from tests.support.warp import WarpLoop

loop_factory = WarpLoop


class Clock:
    """Stands in for `perf_counter`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("broker_client.consuming.loop_lag.perf_counter", clock)
    return clock


async def test_steps_within_the_limit_are_not_reported(clock: Clock) -> None:
    reports: list[float] = []

    async def work() -> str:
        for _ in range(3):
            clock.now += 0.5
            await asyncio.sleep(1.0)
        return "done"

    assert await watched(work(), 0.6, reports.append) == "done"
    assert reports == []


async def test_each_step_over_the_limit_is_reported(clock: Clock) -> None:
    reports: list[float] = []

    async def work() -> None:
        clock.now += 2.0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += 3.0

    await watched(work(), 1.0, reports.append)
    assert reports == [2.0, 3.0]


async def test_failing_step_is_reported_and_raises(clock: Clock) -> None:
    reports: list[float] = []

    async def work() -> None:
        clock.now += 2.0
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await watched(work(), 1.0, reports.append)
    assert reports == [2.0]


async def test_cancelling_cancels_the_work(clock: Clock) -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def run() -> None:
        await watched(work(), 1.0, lambda seconds: None)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]


async def test_cancelling_between_two_turns_of_the_loop_cancels_the_work(clock: Clock) -> None:
    turns: list[int] = []

    async def work() -> None:
        for turn in range(3):
            turns.append(turn)
            await asyncio.sleep(0)

    async def run() -> None:
        await watched(work(), 1.0, lambda seconds: None)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert turns == [0]


async def test_failure_that_the_work_survives_goes_on(clock: Clock) -> None:
    failing: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        try:
            await failing
        except OSError:
            await asyncio.sleep(0)
            return 7
        raise AssertionError("not raised")

    asyncio.get_running_loop().call_soon(failing.set_exception, OSError("gone"))
    assert await watched(work(), 1.0, lambda seconds: None) == 7


def test_closing_closes_the_work() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1.0)
        finally:
            ends.append("closed")

    generator = watched(work(), 1.0, lambda seconds: None)

    async def run() -> None:
        await generator

    coroutine = run()
    loop = asyncio.new_event_loop()
    try:

        async def begin() -> None:
            coroutine.send(None)

        loop.run_until_complete(begin())
    finally:
        loop.close()
    coroutine.close()
    assert ends == ["closed"]
