"""A loop's thread: nothing started on it outlives it."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Literal

import pytest

from broker_client.spark.loop_thread import LoopThread


async def _stubborn(refusals: int, begun: threading.Event) -> None:
    """Starts again when it is cancelled, like code that mistakes that for a lost link."""
    links: list[asyncio.Task[Literal[True]]] = []
    for _ in range(refusals):
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # On a link of its own, whose tasks are new.
            links.append(asyncio.create_task(asyncio.Event().wait()))
    await asyncio.Event().wait()


@pytest.mark.parametrize("refusals", [0, 1, 2])
def test_stop_when_work_begins_again_on_its_cancellation_leaves_no_task(
    refusals: int, caplog: pytest.LogCaptureFixture
) -> None:
    thread = LoopThread("test stop")
    begun = threading.Event()
    work = thread.start(_stubborn(refusals, begun))
    if refusals:
        assert begun.wait(10)
    thread.stop()
    assert not thread.is_running
    assert asyncio.all_tasks(thread.loop) == set()
    assert work.cancelled()
    del thread, work
    gc.collect()
    assert "Task was destroyed" not in caplog.text


def test_stop_twice_at_once_ends_the_loop_in_order() -> None:
    thread = LoopThread("test stops")
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)  # a link that is closed in order
            ended.set()

    thread.start(work())
    others = [threading.Thread(target=thread.stop) for _ in range(4)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert ended.is_set()
    assert thread.loop.is_closed()
