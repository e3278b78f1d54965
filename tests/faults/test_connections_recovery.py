"""Queues and consumers lost with a connection are restored on the next one, and nothing is
leaked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.errors import ConnectFailedError, TopologyMismatchError
from broker_client.message import Message
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.faults.app import QUICK, App, a_config
from tests.faults.conftest import Place
from tests.support.eventually import eventually

WITHIN = 10.0  # seconds from the broker's return to a handled message


async def consumers_of(place: Place, queue: str) -> int:
    """By a passive declaration that bypasses the proxy."""
    link = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
    try:
        return (await (await link.open_channel()).check_queue(queue)).consumer_count
    finally:
        await link.close()


# --------------------------------------------------------------------------- B1


@pytest.mark.served
@pytest.mark.timeout(150)
@pytest.mark.parametrize("loss", ["closed by the broker", "reset", "stall", "reset and refused"])
async def test_consumer_is_back_soon_after_the_broker(place: Place, loss: str) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["connection"]["heartbeat"] = "1s"
    async with Broker.create(config) as broker:
        errors: list[Exception] = []
        broker.on("error", lambda error, vhost: errors.append(error))
        app = App(broker)
        subscription = await app.consume()
        await eventually(lambda: subscription.is_subscribed)
        lost = asyncio.Event()
        broker.on("consumers_disconnected", lambda vhost, url: lost.set())
        match loss:
            case "closed by the broker":
                await asyncio.to_thread(place.server.close_connections)
            case "reset":
                place.proxy.cut()
            case "stall":
                place.proxy.stall()
            case "reset and refused":
                place.proxy.refuse()
                place.proxy.cut()
        async with asyncio.timeout(30.0):
            await lost.wait()
        if loss == "stall":
            place.proxy.cut()
            place.proxy.resume()
        if loss == "reset and refused":
            await eventually(lambda: sum(isinstance(e, ConnectFailedError) for e in errors) >= 2)
            place.proxy.accept()
        began = time.monotonic()
        await app.publish(1)
        await app.all_handled(timeout=WITHIN)
        assert time.monotonic() - began < WITHIN
        assert await consumers_of(place, "work") == 1


# --------------------------------------------------------------------------- B7


@pytest.mark.timeout(120)
async def test_queue_of_ones_own_comes_back_with_its_binding_and_gets_one_copy(
    place: Place,
) -> None:
    config = a_config(place.url, place.vhost)
    vhost = config["vhosts"][place.vhost]
    vhost["exchanges"].append({"name": "news", "type": "fanout"})
    vhost["queues"]["mine"] = {"reply_to": True, "options": {"exclusive": True}}
    vhost["bindings"].append("news -> mine")
    vhost["publications"]["news"] = {"exchange": "news", "vhost": place.vhost}
    vhost["subscriptions"]["mine"] = {"queue": "mine", "retry": QUICK}
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        got: list[int] = []

        async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
            got.append(content)
            await ack_or_nack()

        subscription = await broker.subscribe("mine", handle)
        subscription.on("error", lambda error: None)
        for number in range(4):
            await eventually(lambda: subscription.is_subscribed)
            publication = await broker.publish("news", number)
            await publication
            await eventually(lambda: got)
            assert got == [number]
            got.clear()
            if number < 3:
                gone = asyncio.Event()
                broker.on("consumers_disconnected", lambda vhost, url, gone=gone: gone.set())
                place.proxy.cut()
                async with asyncio.timeout(30.0):
                    await gone.wait()

        async def has_one() -> bool:  # those of the links that were cut go with them
            queues = await asyncio.to_thread(place.server.api, "GET", f"queues/{place.vhost}")
            return len([queue for queue in queues if queue["name"].startswith("mine:")]) == 1

        await eventually(has_one)
        assert len(broker._vhosts[place.vhost]._declarations.topology._queues) == 3


# --------------------------------------------------------------------------- B8


async def declare(place: Place, queue: str, **arguments: int) -> None:
    link = await NetworkConnector(place.server.url(), vhost=place.vhost).connect(timeout=30.0)
    await (await link.open_channel()).declare_queue(queue, arguments=arguments)
    await link.close()


@pytest.mark.timeout(120)
async def test_mismatch_at_the_start_names_both_within_a_second(place: Place) -> None:
    await declare(place, "odd", **{"x-max-length": 1})
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["queues"]["odd"] = {"options": {"max_length": 2}}
    with pytest.raises(TopologyMismatchError) as caught:
        await Broker.create(config)
    error = caught.value
    assert (error.argument, error.wanted, error.current) == ("x-max-length", "'2'", "'1'")
    assert "queue 'odd'" in str(error)


@pytest.mark.timeout(120)
async def test_mismatch_leaves_the_other_subscriptions_and_the_processor_alone(
    place: Place,
) -> None:
    await declare(place, "odd", **{"x-max-length": 1})
    config = a_config(place.url, place.vhost)
    vhost = config["vhosts"][place.vhost]
    vhost["queues"]["odd"] = {"options": {"max_length": 2}}
    vhost |= {"startup": "retry", "startup_timeout": "20s"}
    async with Broker.create(config) as broker:
        [problem] = broker.health().vhosts[place.vhost].problems
        assert "queue 'odd' has x-max-length '1' on the broker but '2'" in problem
        app = App(broker)
        await app.consume()
        await app.publish(20)
        await app.all_handled(timeout=30.0)
        before = time.process_time()
        await asyncio.sleep(2.0)  # the interval that is measured
        assert time.process_time() - before < 0.4
        place.proxy.cut()
        broker.on("error", lambda error, vhost: None)
        await app.publish(20)
        await app.all_handled(timeout=30.0)


# --------------------------------------------------------------------------- B10


@pytest.mark.timeout(150)
async def test_counts_return_to_where_they_were(place: Place) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["connection"]["retry"] = {**QUICK, "stable_after": "1ms"}
    async with Broker.create(config) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        subscription = await app.consume()
        await app.publish(2)
        await app.all_handled(timeout=30.0)

        def counts() -> tuple[int, ...]:
            vhost = broker._vhosts[place.vhost]
            links: list[Any] = [each.link for _, each in vhost._connections()]
            if not subscription.is_subscribed or not all(links):
                return ()
            channels = [len(link._channels) + len(link._underlay.channels) for link in links]
            listeners = sum(len(each) for each in (broker._listeners or {}).values())
            return len(asyncio.all_tasks()), sum(channels), listeners, len(links)

        await eventually(counts)  # messages may come before the answer to basic.consume
        before = counts()
        link = await broker.connect(place.vhost)
        for _ in range(300):
            await (await link.open_channel()).close()
        await link.close()
        for _ in range(20):
            connects = broker.stats().vhosts[place.vhost].connects
            place.proxy.cut()
            await eventually(_more(broker, place.vhost, connects))
            await eventually(lambda: subscription.is_subscribed)
        await app.publish(2)
        await app.all_handled(timeout=30.0)

        def is_back() -> bool:
            now = counts()
            return bool(now) and all(abs(a - b) <= 2 for a, b in zip(now, before, strict=True))

        await eventually(is_back, message=f"{before} again")


def _more(broker: Broker, vhost: str, connects: int) -> Callable[[], bool]:
    def look() -> bool:
        states = [each.state for each in broker.stats().vhosts[vhost].connections]
        return broker.stats().vhosts[vhost].connects > connects and set(states) == {"up"}

    return look


# --------------------------------------------------------------------------- blocked


@pytest.mark.served
@pytest.mark.timeout(150)
async def test_acks_go_on_while_publishers_are_blocked(place: Place) -> None:
    config = a_config(place.url, place.vhost, timeout="60s")
    config["vhosts"][place.vhost]["subscriptions"]["work"]["prefetch"] = 5
    async with Broker.create(config) as broker:
        app = App(broker)
        blocked, unblocked = asyncio.Event(), asyncio.Event()
        broker.on("blocked", lambda reason, vhost: blocked.set())
        broker.on("unblocked", lambda vhost: unblocked.set())
        await app.publish(200)
        for publication in app.publications:
            await publication
        await asyncio.to_thread(place.server.block)
        try:
            held = await broker.publish("a", {"id": "held"}, message_id="held")
            async with asyncio.timeout(30.0):
                await blocked.wait()
            assert not broker.health().ready
            # Five unacked at a time: the last of 200 comes only if acks reach the broker.
            await app.consume()
            await app.all_handled(timeout=30.0)
            assert not held.is_ended
            assert not unblocked.is_set()
        finally:
            await asyncio.to_thread(place.server.unblock)
        await held
        assert broker.health().ready


# --------------------------------------------------------------------------- life


@pytest.mark.timeout(120)
async def test_everything_ends_in_time_while_the_broker_is_away(place: Place) -> None:
    config = a_config(place.url, place.vhost)
    config["vhosts"][place.vhost]["connection"]["connect_timeout"] = "2s"
    broker = await Broker.create(config)
    broker.on("error", lambda error, vhost: None)
    down = asyncio.Event()
    broker.on("disconnect", lambda *args: down.set())
    app = App(broker)
    await app.consume()
    await app.publish(1)
    await app.all_handled(timeout=30.0)
    place.proxy.stall()
    place.proxy.cut()
    async with asyncio.timeout(30.0):
        await down.wait()
    for call in (broker.connect(place.vhost), broker.purge(), broker.bounce(timeout=1.0)):
        async with asyncio.timeout(30.0):
            with pytest.raises(ConnectFailedError, match=r"guest:\*\*\*@"):
                await call
    async with asyncio.timeout(30.0):
        with pytest.raises(ConnectFailedError):
            await broker.nuke()
    assert not broker.health().live
    place.proxy.resume()


@pytest.mark.timeout(120)
async def test_shutdown_while_the_broker_is_away_ends_in_time_and_tells_each_publish(
    place: Place,
) -> None:
    broker = await Broker.create(a_config(place.url, place.vhost, timeout="60s"))
    broker.on("error", lambda error, vhost: None)
    down = asyncio.Event()
    broker.on("disconnect", lambda *args: down.set())
    place.proxy.refuse()
    place.proxy.cut()
    async with asyncio.timeout(30.0):
        await down.wait()
    publication = await broker.publish("a", "x")
    async with asyncio.timeout(10.0):
        await broker.shutdown(timeout=0.5)
    with pytest.raises(Exception, match="shut down"):
        await publication


@pytest.mark.timeout(120)
async def test_broker_that_closes_in_order_is_reported_as_close(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost)) as broker:
        heard: list[str] = []
        broker.on("error", lambda error, vhost: heard.append(f"error {error}"))
        broker.on("close", lambda error, vhost: heard.append(f"close {error}"))
        broker.on("disconnect", lambda vhost, url: heard.append("disconnect"))
        await asyncio.to_thread(place.server.close_connections, "maintenance")
        await eventually(lambda: len(heard) >= 2)
        assert heard[0] == "disconnect"
        assert heard[1].startswith("close")
        assert "maintenance" in heard[1]
        await broker._vhosts[place.vhost].connection.wait_up()
