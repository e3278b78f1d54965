"""A cancellation within a handler stays there; one by the application is raised."""

from __future__ import annotations

import asyncio

import pytest

from broker_client.broker import Broker
from broker_client.errors import BrokerClientError
from tests.faults.app import App, a_config
from tests.faults.conftest import Place
from tests.support.eventually import eventually

_LARGE = 8 * 1024 * 1024


@pytest.mark.served
@pytest.mark.timeout(120)
async def test_cut_amid_a_large_publish_is_never_a_cancellation(place: Place) -> None:
    async with Broker.create(a_config(place.url, place.vhost, timeout="60s")) as broker:
        broker.on("error", lambda error, vhost: None)
        before = place.proxy.bytes_to_server
        publication = await broker.publish("a", b"x" * _LARGE, message_id="large")
        asking = asyncio.create_task(broker.purge())
        await eventually(lambda: place.proxy.bytes_to_server > before + 65_536)
        assert place.proxy.bytes_to_server < before + _LARGE, "all of it was written at once"
        place.proxy.cut()
        ends = await asyncio.gather(publication, asking, return_exceptions=True)
        for end in ends:
            assert not isinstance(end, asyncio.CancelledError)
            assert not isinstance(end, BaseException) or isinstance(end, BrokerClientError)
        await (await broker.publish("a", {"id": "after"}, message_id="after"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("what", "limit"), [("subscription", 7.0), ("broker", 7.0)])
async def test_end_that_is_cancelled_at_a_stalled_broker_is_soon_over(
    place: Place, what: str, limit: float
) -> None:
    broker = await Broker.create(a_config(place.url, place.vhost))
    broker.on("error", lambda error, vhost: None)
    app = App(broker)
    subscription = await app.consume()
    await app.publish(5)
    await app.all_handled(timeout=30.0)
    await eventually(lambda: subscription.stats().unsettled == 0)
    place.proxy.stall()
    end = broker.shutdown() if what == "broker" else subscription.cancel()
    ending = asyncio.create_task(end)
    done, _ = await asyncio.wait([ending], timeout=0.2)
    assert not done, "it did not wait for the broker at all"
    ending.cancel()
    began = asyncio.get_running_loop().time()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert asyncio.get_running_loop().time() - began < limit
    assert subscription.is_cancelled
    place.proxy.cut()
    place.proxy.resume()
    async with asyncio.timeout(30.0):
        await broker.shutdown()
    left = {each for each in asyncio.all_tasks() if not each.get_name().startswith("proxy")}
    assert left <= {asyncio.current_task(), *place.proxy._serving}
