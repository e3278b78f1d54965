"""Every public call ends soon when it is cancelled, or the broker shut down, at any of its
steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker_client import Broker
from broker_client.errors import BrokerClientError
from tests.support.eventually import eventually

MOST_STEPS = 60
LIMIT = 30.0  # seconds within which everything has to end

Call = Callable[[Broker], Awaitable[Any]]


async def _publish(broker: Broker) -> None:
    await (await broker.publish("p", 1))


async def _subscribe(broker: Broker) -> None:
    subscription = await broker.subscribe("s", lambda message, content, settle: settle())
    await eventually(lambda: subscription.is_subscribed)


async def _open_and_close_a_link(broker: Broker) -> None:
    link = await broker.connect("/")
    await link.close()


CALLS: dict[str, Call] = {
    "publish": _publish,
    "publish_many": lambda broker: broker.publish_many("p", range(50), window=10),
    "request": lambda broker: broker.request("p", 1, timeout=0.2),
    "subscribe": _subscribe,
    "connect": _open_and_close_a_link,
    "purge": lambda broker: broker.purge(),
    "bounce": lambda broker: broker.bounce(),
    "nuke": lambda broker: broker.nuke(),
    "shutdown": lambda broker: broker.shutdown(),
}


def a_config(url: str) -> dict[str, Any]:
    connection = {"url": url, "retry": {"min": "20ms", "max": "100ms"}}
    return {
        "vhosts": {
            "/": {
                "connection": connection,
                "queues": ["q"],
                "publications": {"p": {"queue": "q"}},
                "subscriptions": {"s": {"queue": "q"}},
            }
        }
    }


async def _steps(step: int) -> None:
    """Let `step` steps pass: turns of the loop at first, then milliseconds."""
    for _ in range(min(step, MOST_STEPS // 2)):
        await asyncio.sleep(0)
    if step > MOST_STEPS // 2:
        await asyncio.sleep((step - MOST_STEPS // 2) / 1000)


async def _ends(work: asyncio.Future[Any], what: str) -> None:
    await asyncio.wait([work], timeout=LIMIT)
    assert work.done(), f"{what} does not end"
    if not work.cancelled() and (error := work.exception()) is not None:
        assert isinstance(error, BrokerClientError), repr(error)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["cancelled", "shut down"])
@pytest.mark.parametrize("name", CALLS)
async def test_call_cut_short_at_any_step_ends_soon_and_so_does_shutdown(
    url: str, name: str, how: str
) -> None:
    for step in range(0, MOST_STEPS, 3):
        broker = await Broker.create(a_config(url))
        broker.on("error", lambda error, vhost: None)
        call = asyncio.ensure_future(CALLS[name](broker))
        await _steps(step)
        had_ended = call.done()
        if how == "cancelled":
            call.cancel()
            await _ends(call, f"{name}, cancelled at step {step},")
        await _ends(asyncio.ensure_future(broker.shutdown(timeout=1.0)), f"shutdown, step {step},")
        await _stop(call)
        if had_ended:
            return


async def _stop(call: asyncio.Future[Any]) -> None:
    call.cancel()
    await _ends(call, "a call after the shutdown")


@pytest.mark.timeout(600)
async def test_create_cancelled_at_any_step_ends_soon_and_leaves_nothing(url: str) -> None:
    for step in range(MOST_STEPS):
        creating = asyncio.ensure_future(_created(url))
        await _steps(step)
        asked = creating.cancel()
        await _ends(creating, f"create, cancelled at step {step},")
        assert creating.cancelled() == asked, f"step {step}: {creating}"
        if not asked:
            await creating.result().shutdown()


async def _created(url: str) -> Broker:
    return await Broker.create(a_config(url))


@pytest.mark.timeout(600)
async def test_shutdown_soon_after_the_first_subscribe_ends(url: str) -> None:
    for step in range(MOST_STEPS):
        broker = await Broker.create(a_config(url))
        await broker.subscribe("s", lambda message, content, settle: settle())
        await _steps(step)
        await _ends(asyncio.ensure_future(broker.shutdown()), f"shutdown at step {step}")
