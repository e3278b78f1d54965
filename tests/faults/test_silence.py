"""The network carries nothing, or the broker reads nothing."""

from __future__ import annotations

import asyncio

import pytest

from broker_client.broker import Broker
from broker_client.errors import (
    ConnectFailedError,
    PublishTimeoutError,
    PublishUnconfirmedError,
)
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.faults.app import App, a_config, drained
from tests.faults.conftest import Place
from tests.support.eventually import eventually


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_stalled_link_ends_a_publish_in_time_and_its_channel_is_not_used_again(
    place: Place,
) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="500ms")) as broker:
        broker.on("error", lambda error, vhost: None)
        await (await broker.publish("a", "before", message_id="before"))
        place.proxy.stall()
        started = asyncio.get_running_loop().time()
        publication = await broker.publish("a", "lost", message_id="lost")
        with pytest.raises(PublishUnconfirmedError, match=r"not confirmed within 0\.5 s"):
            await publication
        assert 0.4 < asyncio.get_running_loop().time() - started < 10.0
        pools = broker.stats().vhosts[place.vhost].pools
        assert all(pool.idle == 0 for pool in pools), "a channel that owes a confirm was kept"
        place.proxy.resume()
        later = await broker.publish("a", "after", message_id="after", timeout=60.0)
        await later
    record = await drained_ids(place)
    assert record.count("before") == 1
    assert record.count("after") == 1
    assert record.count("lost") <= 1


async def drained_ids(place: Place) -> list[str]:
    """Like `drained`, for messages whose body is not made from their id."""
    link = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
    channel = await link.open_channel()
    taken: list[str] = []
    while (delivery := await channel.get("record", no_ack=True)) is not None:
        taken.append(delivery.properties.message_id or "")
    await link.close()
    return taken


@pytest.mark.timeout(120)
async def test_addresses_that_never_answer_hold_up_neither_the_start_nor_a_failover(
    place: Place,
) -> None:
    config = a_config(place.url, place.vhost, timeout="60s")
    connection = config["vhosts"][place.vhost].pop("connection") | {"connect_timeout": "40s"}
    loop = asyncio.get_running_loop()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    silent = [await asyncio.start_server(hold, "127.0.0.1", 0) for _ in range(2)]
    ports = [each.sockets[0].getsockname()[1] for each in silent]
    config["vhosts"][place.vhost] |= {
        "connection_strategy": "fixed",
        "connections": [
            {**connection, "url": url}
            for url in (*(f"amqp://guest:guest@127.0.0.1:{port}" for port in ports), place.url)
        ],
    }
    began = loop.time()
    async with Broker.create(config) as broker:
        await (await broker.publish("a", "x"))
        assert loop.time() - began < 20.0, "connect_timeout is 40 s for each address"
        paused = asyncio.Event()
        broker.on("error", lambda error, vhost: paused.set())
        place.proxy.cut()
        await paused.wait()
        began = loop.time()
        await (await broker.publish("a", "y"))
        assert loop.time() - began < 20.0
    for each in silent:
        each.close()


@pytest.mark.timeout(120)
async def test_stall_longer_than_two_heartbeats_is_a_lost_link(place: Place) -> None:
    config = a_config(place.url, place.vhost, timeout="60s")
    config["vhosts"][place.vhost]["connection"]["heartbeat"] = "1s"
    async with Broker.create(config) as broker:
        errors: list[Exception] = []
        broker.on("error", lambda error, vhost: errors.append(error))
        app = App(broker)
        place.proxy.stall()
        await app.publish(20)
        await eventually(lambda: errors)
        place.proxy.resume()
        place.proxy.cut()
        for publication in app.publications:
            await publication
        app.check_ends()
    app.check_record(await drained(place.server.url(), place.vhost, "record"))


@pytest.mark.timeout(120)
async def test_broker_that_refuses_at_the_start_fails_the_start(place: Place) -> None:
    place.proxy.refuse()
    with pytest.raises(ConnectFailedError) as caught:
        await Broker.create(a_config(place.url, place.vhost))
    assert "guest:***@" in str(caught.value)
    place.proxy.accept()
    async with Broker.create(a_config(place.url, place.vhost)):
        pass


@pytest.mark.timeout(120)
async def test_publish_that_times_out_while_down_never_arrives(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="60s")) as broker:
        broker.on("error", lambda error, vhost: None)
        paused: list[str] = []
        broker.on("paused", paused.append)
        place.proxy.refuse()
        place.proxy.cut()
        await eventually(lambda: paused)
        late = await broker.publish("a", "late", message_id="late", timeout=0.3)
        patient = await broker.publish("a", "patient", message_id="patient")
        with pytest.raises(PublishTimeoutError, match=r"link down for .* last error: .*connect"):
            await late
        place.proxy.accept()
        await patient
    assert await drained_ids(place) == ["patient"]


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_blocked_broker_pauses_publishing_until_it_is_unblocked(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="50s")) as broker:
        app = App(broker)
        heard: list[str] = []
        broker.on("blocked", lambda reason, vhost: heard.append(f"blocked: {reason}"))
        broker.on("unblocked", lambda vhost: heard.append("unblocked"))
        await app.publish(1)
        await app.publications[0]
        await asyncio.to_thread(place.server.block)
        try:
            await app.publish(1)  # RabbitMQ tells a connection when it next publishes
            await eventually(lambda: heard)
            assert "memory" in heard[0]
            assert broker.stats().vhosts[place.vhost].publish_queue.paused
            await app.publish(500)
            unsent = broker.stats().vhosts[place.vhost].publish_queue.waiting
            assert unsent >= 500, "it went on sending into a socket that is not read"
        finally:
            await asyncio.to_thread(place.server.unblock)
        for publication in app.publications:
            await publication
        assert heard[1:] == ["unblocked"]
        app.check_ends()
    app.check_record(await drained(place.server.url(), place.vhost, "record"))
