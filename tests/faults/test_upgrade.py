"""A server is upgraded over its data while a program publishes and consumes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from broker_client.broker import Broker
from tests.faults.app import App, a_config, drained
from tests.support.rabbitmq import RabbitMQ, RabbitMQError
from tests.support.rabbitmq_installed import Installed, installed

BEFORE = 1_000
VHOST = "/"

pytestmark = [pytest.mark.rabbitmq, pytest.mark.own_versions, pytest.mark.timeout(180)]


def newest_of(major: int) -> list[Installed]:
    """The installed versions of a major version, oldest first."""
    return [each for each in installed() if each.version[0] == major]


def missing(what: str) -> NoReturn:
    """Leave a test out, or fail it where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture
def three() -> Iterator[RabbitMQ]:
    """A RabbitMQ 3 that may be upgraded."""
    if not newest_of(3):
        missing("this machine has no RabbitMQ 3: scripts/install-servers")
    with RabbitMQ(newest_of(3)[-1]) as server:
        yield server


async def test_data_of_version_3_is_refused_by_version_4_and_still_good_for_version_3(
    three: RabbitMQ,
) -> None:
    """RabbitMQ: an upgrade from 3.10 goes through 3.13."""
    if not newest_of(4):
        missing("this machine has no RabbitMQ 4: scripts/install-servers")
    url = f"amqp://guest:guest@127.0.0.1:{three.port}"
    async with Broker.create({"vhosts": {"/": {"connection": url, "queues": ["q"]}}}) as broker:
        await (await broker.publish("/q", {"id": "kept"}, message_id="kept"))
    await asyncio.to_thread(three.stop)
    three.become(newest_of(4)[-1])
    with pytest.raises(RabbitMQError, match="ended with status"):
        await asyncio.to_thread(three.start)
    three.become(newest_of(3)[-1])
    await asyncio.to_thread(three.start)
    assert await drained(url, VHOST, "q") == ["kept"]


async def test_server_upgraded_under_load_loses_nothing() -> None:
    fours = newest_of(4)
    if len(fours) < 2:
        missing("this machine has one RabbitMQ 4: RABBITMQ=4.0 scripts/install-servers")
    with RabbitMQ(fours[0]) as server:
        url = f"amqp://guest:guest@127.0.0.1:{server.port}"
        async with Broker.create(a_config(url, VHOST, timeout="110s")) as broker:
            broker.on("error", lambda error, vhost: None)
            app = App(broker)
            await app.consume()
            await app.publish(BEFORE)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            while not stopping.done():
                await app.publish(10)
                await asyncio.sleep(0.01)
            await stopping
            await app.publish(BEFORE)
            assert len(app.ends) < len(app.publications), "some wait for the new server"
            server.become(fours[-1])
            await asyncio.to_thread(server.start)
            for publication in app.publications:
                await publication
            await app.all_handled(timeout=60.0)
            assert broker.stats().vhosts[VHOST].connects >= 2
            app.check_ends()
            assert app.errors == []
            assert app.wrong_bodies == []
        app.check_record(await drained(server.url(), VHOST, "record"))
