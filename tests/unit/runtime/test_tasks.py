import asyncio
import contextvars
import logging
import sys

import pytest

from broker_client.runtime.tasks import TaskGroup


async def forever() -> None:
    await asyncio.Event().wait()


async def test_task_carries_the_name_of_its_owner() -> None:
    tasks = TaskGroup("vhost '/'")
    task = tasks.spawn(forever(), "sender")
    assert task.get_name() == "vhost '/': sender"
    await tasks.cancel()


async def test_task_is_held_until_it_is_done() -> None:
    tasks, go = TaskGroup("owner"), asyncio.Event()
    task = tasks.spawn(go.wait(), "waits")
    assert len(tasks) == 1
    go.set()
    await task
    assert len(tasks) == 0


async def test_failure_is_logged_with_the_name_and_leaves_the_others_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise LookupError("lost")

    tasks, go = TaskGroup("owner"), asyncio.Event()
    other = tasks.spawn(go.wait(), "other")
    with caplog.at_level(logging.ERROR, "broker_client.tasks"):
        failing = tasks.spawn(fail(), "failing")
        await asyncio.wait([failing])
        await asyncio.sleep(0)
    [record] = caplog.records
    assert "owner: failing" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
    assert not other.done()
    go.set()
    assert await tasks.wait(timeout=30)


async def test_cancelled_task_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskGroup("owner")
    tasks.spawn(forever(), "waits")
    await tasks.cancel()
    assert caplog.records == []


async def test_wait_says_whether_all_are_done() -> None:
    tasks, go = TaskGroup("owner"), asyncio.Event()
    assert await tasks.wait(timeout=0)
    tasks.spawn(go.wait(), "waits")
    assert not await tasks.wait(timeout=0.001)
    go.set()
    assert await tasks.wait(timeout=30)


async def test_cancel_ends_all_and_waits_for_their_clean_up() -> None:
    tasks, log = TaskGroup("owner"), list[str]()

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            log.append("tidied")

    started = [tasks.spawn(tidy(), str(number)) for number in range(3)]
    await asyncio.sleep(0)
    await tasks.cancel()
    assert log == ["tidied"] * 3
    assert all(task.cancelled() for task in started)
    assert len(tasks) == 0


async def test_cancel_from_within_spares_the_caller() -> None:
    tasks, log = TaskGroup("owner"), list[str]()
    other = tasks.spawn(forever(), "other")

    async def closer() -> None:
        await tasks.cancel()
        log.append("closed")

    await tasks.spawn(closer(), "closer")
    assert log == ["closed"]
    assert other.cancelled()


async def test_wait_from_within_does_not_wait_for_the_caller() -> None:
    tasks = TaskGroup("owner")

    async def waits_for_the_rest() -> bool:
        return await tasks.wait(timeout=30)

    assert await tasks.spawn(waits_for_the_rest(), "waits")


async def test_cancel_without_tasks_has_no_effect() -> None:
    tasks = TaskGroup("owner")
    await tasks.cancel()
    await tasks.cancel()
    assert len(tasks) == 0


async def test_attended_work_is_held_until_it_leaves() -> None:
    tasks, go = TaskGroup("owner"), asyncio.Event()

    async def work() -> str:
        await go.wait()
        tasks.leave(task)
        return var.get()

    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")
    context = contextvars.copy_context()
    context.run(var.set, "its own")
    task = tasks.attend(work(), "work", context)
    assert (task in tasks, task.get_name()) == (True, "work")
    assert not await tasks.wait(0.0)
    go.set()
    assert await tasks.wait(1.0)
    assert (await task, len(tasks)) == ("its own", 0)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 has eager tasks")
async def test_attended_work_that_an_eager_factory_ran_is_not_held() -> None:
    async def work() -> None: ...

    tasks, loop = TaskGroup("owner"), asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - not known to 3.11
    try:
        tasks.attend(work(), "work", contextvars.copy_context())
    finally:
        loop.set_task_factory(None)
    assert len(tasks) == 0
