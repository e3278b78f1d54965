"""Handlers and listeners that raise unusual exceptions, do not end, or call from other threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker_client.ackornack import AckOrNack
from broker_client.broker import Broker
from broker_client.errors import BrokerClosedError, HandlerError, WrongLoopError
from broker_client.message import Message
from broker_client.subscription import Subscription
from tests.support.eventually import eventually

CONFIG = {
    "vhosts": {
        "/": {
            "queues": {"q": {"options": {"dead_letter_exchange": ""}}},
            "publications": {"p": {"queue": "q"}},
            "subscriptions": {
                "s": {"queue": "q", "close_timeout": "1s", "recovery": [{"strategy": "ack"}]}
            },
        }
    }
}


class OddError(BaseException):
    """A BaseException that is not an Exception, as those of test libraries."""


def _raising(error: BaseException) -> Callable[..., None]:
    def listener(*args: Any) -> None:
        raise error

    return listener


def _raising_later(error: BaseException) -> Callable[..., Any]:
    async def listener(*args: Any) -> None:
        await asyncio.sleep(0)
        raise error

    return listener


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker.create(CONFIG) as broker:
        yield broker


@pytest.fixture
async def subscription(broker: Broker) -> Subscription:
    return await broker.subscribe("s")


async def _failure_of_one(broker: Broker, subscription: Subscription) -> HandlerError:
    """The error reported for the handler of one message; the broker must keep working."""
    errors: list[HandlerError] = []
    subscription.on("error", errors.append)
    async with asyncio.timeout(30):
        await (await broker.publish("p", "first"))
        await eventually(lambda: errors)
        await (await broker.publish("p", "second"))
        await eventually(lambda: len(errors) == 2)
    await eventually(lambda: subscription.stats().unsettled == 0)
    return errors[0]


@pytest.mark.parametrize("kind", [_raising, _raising_later])
@pytest.mark.parametrize("cause", [OddError("odd"), asyncio.CancelledError("inner")])
async def test_handler_that_raises_no_exception_is_recovered_like_any_other(
    broker: Broker,
    subscription: Subscription,
    kind: Callable[[BaseException], Callable[..., Any]],
    cause: BaseException,
) -> None:
    subscription.on("message", kind(cause))
    assert (await _failure_of_one(broker, subscription)).__cause__ is cause


@pytest.mark.parametrize("cause", [OddError("odd"), StopIteration("none left")])
async def test_plain_function_that_raises_in_its_thread_is_recovered(
    broker: Broker, subscription: Subscription, cause: BaseException
) -> None:
    @subscription.handle
    def handle(content: str) -> None:
        raise cause

    assert type(cause).__name__ in str(await _failure_of_one(broker, subscription))


@pytest.mark.parametrize("kind", [_raising, _raising_later])
async def test_listener_that_raises_no_exception_is_isolated(
    broker: Broker, kind: Callable[[BaseException], Callable[..., Any]]
) -> None:
    errors: list[BaseException] = []
    broker.on("error", lambda error, vhost: errors.append(error))
    broker.on("resumed", kind(OddError("odd")))
    await broker.bounce()
    await (await broker.publish("p", "x"))
    assert [type(error) for error in errors if isinstance(error, OddError)] == [OddError]


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("event", ["message", "success"])
def test_end_of_the_program_out_of_a_plain_listener_ends_it_in_order(
    ending: BaseException, event: str
) -> None:
    closed = False

    async def program() -> None:
        nonlocal closed
        async with asyncio.timeout(30):
            async with Broker.create(CONFIG) as broker:
                subscription = await broker.subscribe("s")
                if event == "message":
                    subscription.on("message", _raising(ending))
                publication = await broker.publish("p", "x")
                if event == "success":
                    publication.on("success", _raising(ending))
                try:
                    await asyncio.Event().wait()
                finally:
                    await publication  # the built-in broker still works
            closed = True

    with pytest.raises(type(ending)):
        asyncio.run(program())
    assert not closed  # by its own end: `shutdown` ran as the block was left


async def test_plain_function_may_ask_for_more_time_from_its_thread(
    broker: Broker, subscription: Subscription
) -> None:
    left: list[float] = []

    @subscription.handle
    def handle(content: str, message: Message) -> None:
        left.append(message.touch())

    await (await broker.publish("p", "x"))
    await eventually(lambda: subscription.stats().acked)
    assert len(left) == 1
    assert left[0] > 0


async def test_settling_in_another_event_loop_is_refused_and_can_be_made_up_for(
    broker: Broker, subscription: Subscription
) -> None:
    refused: list[str] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        async def settle_there() -> None:
            await ack_or_nack()

        def settle_without_a_loop() -> None:
            with contextlib.closing(ack_or_nack()) as settling:
                settling.send(None)

        with pytest.raises(WrongLoopError) as caught:
            await asyncio.to_thread(asyncio.run, settle_there())
        refused.append(str(caught.value))
        with pytest.raises(WrongLoopError) as caught:
            await asyncio.to_thread(settle_without_a_loop)
        refused.append(str(caught.value))
        await ack_or_nack()

    subscription.on("message", handle)
    await (await broker.publish("p", "x"))
    await eventually(lambda: subscription.stats().acked)
    assert len(refused) == 2


def test_publish_from_a_thread_whose_loop_ends_is_told_so() -> None:
    ends: list[BaseException] = []

    async def program() -> None:
        config = {"vhosts": {"/": {**CONFIG["vhosts"]["/"], "subscriptions": {}}}}
        broker = await Broker.create(config)
        broker._publishers["/"].queue.pause()

        def publish() -> None:
            try:
                broker.publish_sync("p", "x")
            except BaseException as error:  # noqa: BLE001 - it is looked at
                ends.append(error)

        asyncio.get_running_loop().run_in_executor(None, publish)
        await eventually(lambda: broker.stats().vhosts["/"].publish_queue.waiting)
        broker._forgotten.detach()  # type: ignore[union-attr] # forgotten on purpose

    asyncio.run(program())
    assert [type(end) for end in ends] == [BrokerClosedError]
