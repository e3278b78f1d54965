"""A server is upgraded over its data while a program publishes and consumes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from broker_client.broker import Broker
from tests.faults.app import App, a_config, drained
from tests.support.left_out import missing
from tests.support.rabbitmq import RabbitMQ, RabbitMQError
from tests.support.rabbitmq_installed import Installed, installed

BEFORE = 1_000
VHOST = "/"

pytestmark = [pytest.mark.rabbitmq, pytest.mark.own_versions, pytest.mark.timeout(180)]


def newest_of(major: int) -> list[Installed]:
    """The installed versions of a major version, oldest first."""
    return [each for each in installed() if each.version[0] == major]


@pytest.fixture
def three() -> Iterator[RabbitMQ]:
    """A RabbitMQ 3 that may be upgraded."""
    if not newest_of(3):
        missing("RabbitMQ 3")
    with RabbitMQ(newest_of(3)[-1]) as server:
        yield server


async def test_data_of_version_3_is_refused_by_version_4_and_still_good_for_version_3(
    three: RabbitMQ,
) -> None:
    """RabbitMQ: an upgrade from 3.10 goes through 3.13."""
    if not newest_of(4):
        missing("RabbitMQ 4")
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
        missing("second RabbitMQ 4 (RABBITMQ=4.0)")
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
