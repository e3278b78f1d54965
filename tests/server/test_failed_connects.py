"""Failed connects leak nothing."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest

from broker_client import Broker
from broker_client.errors import TransportError
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.eventually import eventually
from tests.support.listening import Listening
from tests.support.own_server import free_port
from tests.support.proxy import Proxy

_OBJECTS = 100
"""Objects that caches and counters may add; each connect creates some hundred."""


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """pytest would keep a log record of each connect."""
    for name in ("broker_client", "aiormq", "asyncio"):
        caplog.set_level(logging.CRITICAL, name)


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def _nothing_stays(fail: Callable[[], Awaitable[None]], count: int) -> None:
    """Fail `count` times, after a few that may fill caches; the numbers of tasks, descriptors and
    objects must not grow."""
    for _ in range(20):
        await fail()
    tasks, descriptors = len(asyncio.all_tasks()), psutil.Process().num_fds()
    objects = _objects()
    for _ in range(count):
        await fail()
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)
    await eventually(lambda: psutil.Process().num_fds() <= descriptors)
    await eventually(lambda: _objects() < objects + _OBJECTS)


@asynccontextmanager
async def _connector(why: str) -> AsyncIterator[NetworkConnector]:
    async with Listening.started() as listening:
        if why == "nobody listens":
            yield NetworkConnector(f"amqp://guest:guest@127.0.0.1:{free_port()}")
        elif why == "login refused":
            yield NetworkConnector(listening.url.replace("guest:guest", "guest:wrong"))
        elif why == "no such vhost":
            yield NetworkConnector(listening.url, vhost="missing")
        else:
            async with Proxy("127.0.0.1", listening.port) as proxy:
                proxy.refuse()
                yield NetworkConnector(f"amqp://guest:guest@127.0.0.1:{proxy.port}")


@pytest.mark.parametrize(
    ("why", "count"),
    [
        ("nobody listens", 1_000),
        ("ends at once", 300),
        ("login refused", 150),
        ("no such vhost", 100),
    ],
)
async def test_connects_that_fail_leave_nothing_behind(why: str, count: int) -> None:
    async with _connector(why) as connector:

        async def fail() -> None:
            with pytest.raises(TransportError):
                await connector.connect(timeout=10.0)

        await _nothing_stays(fail, count)


async def test_brokers_whose_start_fails_leave_nothing_behind() -> None:
    vhost = {"connection": f"amqp://127.0.0.1:{free_port()}", "queues": ["q"]}

    async def fail() -> None:
        with pytest.raises(TransportError):
            await Broker.create({"vhosts": {"/": vhost}})

    await _nothing_stays(fail, 100)


async def test_outage_of_hundreds_of_attempts_leaves_nothing_behind() -> None:
    async with Listening.started() as listening, Proxy("127.0.0.1", listening.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}"
        connection = {"url": url, "retry": {"min": "1ms", "max": "1ms", "factor": 1}}
        config = {"vhosts": {"/": {"connection": connection, "queues": ["q"]}}}
        async with Broker.create(config) as broker:
            attempts = 0

            def count(*_: object) -> None:
                nonlocal attempts
                attempts += 1

            broker.on("error", count)
            proxy.refuse()
            proxy.cut()
            await eventually(lambda: attempts > 50)
            objects = _objects()
            already = attempts
            await eventually(lambda: attempts > already + 300, timeout=30.0)
            assert _objects() < objects + 5 * _OBJECTS  # one attempt is under way
            proxy.accept()
            await (await broker.publish("/q", 1))
