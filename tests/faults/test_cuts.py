"""The link is cut repeatedly; the server keeps running."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker_client.broker import Broker
from tests.faults.app import App, a_config, drained
from tests.faults.conftest import Place
from tests.support.eventually import eventually

MESSAGES = 5_000
CUTS = 10


class Cutter:
    """Cuts the link whenever the application has reached a count."""

    def __init__(self, app: App, place: Place, moments: list[int]) -> None:
        self._app, self._place = app, place
        self._moments = sorted(moments, reverse=True)
        self.cuts = 0
        app.on_progress = self._look

    def _look(self) -> None:
        if self._moments and self._app.progress >= self._moments[-1] and self._place.proxy.cut():
            self._moments.pop()
            self.cuts += 1


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_ten_cuts_while_publishing_and_consuming_lose_nothing(
    place: Place, chance: random.Random
) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="50s")) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        cutter = Cutter(app, place, chance.sample(range(100, 2 * MESSAGES - 500), CUTS))
        await app.consume()
        await app.publish(MESSAGES)
        for publication in app.publications:
            await publication
        await app.all_handled(timeout=30.0)
        stats = broker.stats()
        print(  # noqa: T201 - pytest shows it with a failure
            f"{stats.vhosts[place.vhost].publish_queue}, {len(app.handled)} handled, "
            f"{app.ack_lost} acks lost, {stats.vhosts[place.vhost].connects} connects"
        )
        assert cutter.cuts == CUTS
        app.check_ends()
        assert app.errors == []
        assert app.wrong_bodies == []
    app.check_record(await drained(place.server.url(), place.vhost, "record"))
    repeats = await drained(place.server.url(), place.vhost, "work")
    assert set(repeats) <= set(app.handled)


@pytest.mark.timeout(120)
async def test_published_while_down_arrives_in_order_once_it_is_up(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="30s")) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        paused: list[str] = []
        broker.on("paused", paused.append)
        place.proxy.refuse()
        place.proxy.cut()
        await eventually(lambda: paused)
        await app.publish(20)
        told: list[str] = []
        for publication in app.publications:
            publication.on("paused", told.append)
        attempts: list[Exception] = []
        broker.on("error", lambda error, vhost: attempts.append(error))
        await eventually(lambda: len(attempts) >= 3)
        assert app.ends == {}
        place.proxy.accept()
        for publication in app.publications:
            await publication
        app.check_ends()
        assert told == [publication.message_id for publication in app.publications]
    record = await drained(place.server.url(), place.vhost, "record")
    app.check_record(record)
    assert len(record) == 20


@pytest.mark.timeout(120)
async def test_link_closed_in_order_by_the_peer_is_made_again(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost)) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        await app.consume()
        await app.publish(10)
        await app.all_handled(timeout=30.0)
        place.proxy.fin()
        await app.publish(10)
        for publication in app.publications:
            await publication
        await app.all_handled(timeout=30.0)
        app.check_ends()


@pytest.mark.timeout(120)
async def test_connections_closed_by_an_operator_are_made_again(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost)) as broker:
        errors: list[str] = []
        broker.on("error", lambda error, vhost: errors.append(str(error)))
        app = App(broker)
        await app.consume()
        await app.publish(10)
        await app.all_handled(timeout=30.0)
        await asyncio.to_thread(place.server.close_connections, "maintenance")
        await eventually(lambda: errors)
        assert "320" in errors[0]
        assert "maintenance" in errors[0]
        await app.publish(10)
        for publication in app.publications:
            await publication
        await app.all_handled(timeout=30.0)
