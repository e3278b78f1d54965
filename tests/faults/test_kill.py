"""The server itself is killed and started again over its data."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker_client.broker import Broker
from tests.faults.app import App, a_config, drained
from tests.support.managed import FaultyServer

MESSAGES = 5_000
VHOST = "/"


@pytest.mark.timeout(180)
async def test_killed_server_loses_nothing_that_was_accepted(
    restartable: FaultyServer, chance: random.Random
) -> None:
    server = restartable
    url = f"amqp://guest:guest@127.0.0.1:{server.port}"
    async with Broker.create(a_config(url, VHOST, timeout="110s")) as broker:
        broker.on("error", lambda error, vhost: None)
        await asyncio.to_thread(server.sync)
        app = App(broker)
        moment, come = chance.randrange(100, 3_000), asyncio.Event()

        def look() -> None:
            if len(app.ends) >= moment:
                come.set()

        app.on_progress = look
        await app.consume()
        await app.publish(MESSAGES)
        await come.wait()
        await asyncio.to_thread(server.kill)
        confirmed_before = len(app.ends)
        assert confirmed_before < MESSAGES, "the moment to kill it was missed"
        await asyncio.to_thread(server.start)
        for publication in app.publications:
            await publication
        await app.all_handled(timeout=60.0)
        stats = broker.stats().vhosts[VHOST]
        print(  # noqa: T201 - pytest shows it with a failure
            f"killed after {confirmed_before} confirms: {stats.publish_queue}, "
            f"{len(app.handled)} handled, {stats.connects} connects"
        )
        assert stats.connects >= 2
        app.check_ends()
        assert app.errors == []
        assert app.wrong_bodies == []
    app.check_record(await drained(server.url(), VHOST, "record"))
