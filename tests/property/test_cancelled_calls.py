"""Every call of a Broker, cancelled at each of its steps, leaves the Broker working."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.errors import BrokerClientError, ConnectionLostError
from broker_client.message import Message
from broker_client.subscription import Subscription
from tests.support.fake_client import FakeBroker
from tests.support.warp import WarpLoop, settle

MOST_STEPS = 60  # turns of the loop; a call that needs more waits for a timer
PATIENCE = 60.0  # seconds of virtual time

Call = Callable[[FakeBroker, Subscription], Awaitable[Any]]


async def _published(broker: FakeBroker, **more: Any) -> None:
    await (await broker.publish("p", 1, **more))


async def _paused_and_resumed(subscription: Subscription) -> None:
    for _ in range(2):
        await subscription.pause()
        await subscription.resume()


CALLS: dict[str, Call] = {
    "publish": lambda broker, subscription: _published(broker),
    "publish later": lambda broker, subscription: _published(broker, delay=5.0),
    "publish_many": lambda broker, subscription: broker.publish_many("p", range(50), window=10),
    "request": lambda broker, subscription: broker.request("p", 1),
    "pause": lambda broker, subscription: _paused_and_resumed(subscription),
    "prefetch": lambda broker, subscription: subscription.set_channel_prefetch(3),
    "cancel": lambda broker, subscription: subscription.cancel(),
    "unsubscribe_all": lambda broker, subscription: broker.unsubscribe_all(),
    "bounce": lambda broker, subscription: broker.bounce(timeout=20),
    "purge": lambda broker, subscription: broker.purge(),
    "nuke": lambda broker, subscription: broker.nuke(),
    "shutdown": lambda broker, subscription: broker.shutdown(),
}
GOES_ON_AFTER = {"pause", "prefetch", "publish", "publish_many", "request", "purge"}


@pytest.fixture(autouse=True)
def _no_noise() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def _cut_short(work: Awaitable[Any], step: int) -> bool:
    """Cancel `work` after `steps` steps; True if it had ended before."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for _ in range(step):
        await asyncio.sleep(0)
    had_ended, now = task.done(), loop.time()
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.done(), "it does not end"
    assert loop.time() - now < 0.5, "who cancels waits"
    if not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, BrokerClientError), repr(error)
    return had_ended


async def _one_step(call: Call, step: int, *, is_down: bool, handling: float) -> bool:
    broker = await FakeBroker.up()

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await asyncio.sleep(handling)
        await ack_or_nack()

    subscription = await broker.subscribe("s", handle)
    await settle()
    for _ in range(4):
        broker.link.consuming().deliver()
    if is_down:
        broker.connector.always = ConnectionLostError("fake", "down")
        broker.link.lose()
        await settle()
    had_ended = await _cut_short(call(broker, subscription), step)
    if call in [CALLS[name] for name in GOES_ON_AFTER]:
        await subscription.resume()
        broker.connector.always = None
        await asyncio.sleep(PATIENCE)
        assert subscription.is_subscribed, subscription
        await _published(broker)
    async with asyncio.timeout(PATIENCE):
        await broker.shutdown()
    assert subscription.is_ended
    assert [link for link in broker.connector.links if link.is_open] == []
    await settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return had_ended


@pytest.mark.parametrize("handling", [0.0, 3.0], ids=["idle", "handling"])
@pytest.mark.parametrize("is_down", [False, True], ids=["up", "down"])
@pytest.mark.parametrize("name", CALLS)
def test_call_cancelled_at_any_step_does_no_harm(name: str, is_down: bool, handling: float) -> None:
    for step in range(MOST_STEPS):
        with asyncio.Runner(loop_factory=WarpLoop) as runner:
            work = _one_step(CALLS[name], step, is_down=is_down, handling=handling)
            try:
                had_ended = runner.run(work)
            except BaseException as error:
                error.add_note(f"cancelled at step {step}")
                raise
        if had_ended:
            return
