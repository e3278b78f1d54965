import asyncio
import socket
import threading

from tests.support.leaks import Snapshot, leaks_since


async def test_nothing_is_reported_when_all_is_closed() -> None:
    before = Snapshot.take()
    await asyncio.create_task(asyncio.sleep(0))
    socket.socket().close()
    assert await leaks_since(before) == []


async def test_task_that_still_runs_is_named() -> None:
    before = Snapshot.take()
    task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")
    [line] = await leaks_since(before, timeout=0)
    assert "task 'forgotten'" in line
    task.cancel()
    assert await leaks_since(before) == []


async def test_open_socket_is_named_by_its_address() -> None:
    before = Snapshot.take()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        [line] = await leaks_since(before, timeout=0)
        assert f"('127.0.0.1', {port})" in line


async def test_thread_that_still_runs_is_named() -> None:
    before = Snapshot.take()
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    thread.start()
    try:
        assert await leaks_since(before, timeout=0) == ["thread 'forgotten'"]
    finally:
        go.set()
        thread.join()


async def test_things_get_time_to_settle() -> None:
    before = Snapshot.take()
    task = asyncio.create_task(asyncio.sleep(0.03))
    assert await leaks_since(before) == []
    assert task.done()
