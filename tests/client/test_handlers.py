"""Handlers of every kind: their messages are settled and answered as documented."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message, Republish
from broker_client.errors import HandlerError
from broker_client.subscription import Subscription
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually

RETRY = [{"strategy": "republish", "attempts": 1}, {"strategy": "nack"}]


def a_config(**subscription: Any) -> dict[str, Any]:
    return {
        "queues": {
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "cemetery": {},
        },
        "exchanges": ["dead"],
        "bindings": ["dead[#] -> cemetery"],
        "publications": {"work": {"queue": "work"}},
        "subscriptions": {"work": {"queue": "work", "prefetch": 1, **subscription}},
    }


async def publish(broker: Broker, *contents: object) -> None:
    for content in contents:
        await (await broker.publish("work", content))


# --------------------------------------------------------------------------- how handlers end


class UnprintableError(Exception):
    code = property(lambda self: 1 / 0)

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def cancelled_by_its_program() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(60)


async def cancelled_after_a_swallowed_cancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def raising_what_cannot_be_printed() -> None:
    raise UnprintableError


async def raising_generator_exit() -> None:
    raise GeneratorExit


async def raising_a_foreign_cancel() -> None:
    raise asyncio.CancelledError


FATES = [
    cancelled_by_its_program,
    cancelled_after_a_swallowed_cancel,
    raising_what_cannot_be_printed,
    raising_generator_exit,
    raising_a_foreign_cancel,
]


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.__name__)
@pytest.mark.parametrize("kind", ["listener", "handle"])
async def test_message_is_recovered_and_the_next_one_comes_however_its_handler_ends(
    start: StartBroker,
    fate: Callable[[], Any],
    kind: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = await start(a_config(recovery=RETRY))
    subscription = await broker.subscribe("work")
    seen: list[Any] = []

    async def handle(content: Any, message: Message) -> None:
        seen.append(content)
        if content == "bad":
            await fate()

    async def listen(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await handle(content, message)
        await ack_or_nack()

    with caplog.at_level(logging.ERROR, "broker_client.subscription"):
        if kind == "handle":
            subscription.handle(handle)
        else:
            subscription.on("message", listen)
        await publish(broker, "bad", "good")
        await eventually(lambda: seen.count("bad") == 2 and "good" in seen)
        await eventually(lambda: subscription.stats().unsettled == 0)
        stats = subscription.stats()
    assert (stats.republished, stats.nacked, stats.acked, stats.handler_errors) == (1, 1, 1, 2)
    assert "handler of message" in caplog.text


async def test_handler_that_fails_is_an_error_event(start: StartBroker) -> None:
    broker = await start(a_config(recovery=[{"strategy": "nack"}]))
    subscription = await broker.subscribe("work")
    errors: list[HandlerError] = []
    subscription.on("error", errors.append)
    subscription.handle(lambda content: cancelled_by_its_program())
    await publish(broker, "bad")
    await eventually(lambda: errors)
    assert isinstance(errors[0].__cause__, asyncio.CancelledError)


async def test_recovery_goes_on_when_the_handler_that_began_it_is_cancelled(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    seen: list[Any] = []

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append(message.republished)
        if message.republished:
            await ack_or_nack()
        else:
            async with asyncio.timeout(0.01):
                await ack_or_nack("failed", Republish(defer=0.1))

    subscription = await broker.subscribe("work", handle)
    subscription.on("error", lambda error: None)
    await publish(broker, "x")
    await eventually(lambda: seen == [0, 1] and subscription.stats().acked == 1)


# --------------------------------------------------------------------------- limits


async def busy_subscription(
    broker: Broker,
) -> tuple[Subscription, list[Any], asyncio.Event]:
    running: list[Any] = []
    go = asyncio.Event()

    async def handle(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        running.append(content)
        await go.wait()
        running.remove(content)
        await ack_or_nack()

    return await broker.subscribe("work", handle), running, go


async def test_pausing_and_resuming_does_not_add_to_what_the_prefetch_allows(
    start: StartBroker,
) -> None:
    broker = await start(a_config(prefetch=3))
    subscription, running, go = await busy_subscription(broker)
    await publish(broker, *range(20))
    await eventually(lambda: len(running) == 3)
    for _ in range(4):
        await subscription.pause()
        await subscription.resume()
    await publish(broker, *range(20, 25))
    assert (subscription.stats().unsettled, sorted(running)) == (3, [0, 1, 2])
    go.set()
    await eventually(lambda: subscription.stats().acked == 25)


async def test_cuts_do_not_add_to_the_handlers_that_the_prefetch_allows(
    start: StartBroker,
) -> None:
    broker = await start(a_config(prefetch=3))
    subscription, running, go = await busy_subscription(broker)
    await publish(broker, *range(10))
    await eventually(lambda: len(running) == 3)
    for _ in range(3):
        await broker.bounce()
        await publish(broker, "more")
    assert sorted(running) == [0, 1, 2]
    go.set()
    await eventually(lambda: subscription.stats().acked == 13)


async def test_prefetch_is_whole_again_once_what_was_held_before_a_pause_is_settled(
    start: StartBroker,
) -> None:
    broker = await start(a_config(prefetch=3))
    subscription, running, go = await busy_subscription(broker)
    await publish(broker, 0)
    await eventually(lambda: running == [0])
    await subscription.pause()
    await subscription.resume()
    await publish(broker, *range(1, 10))
    await eventually(lambda: sorted(running) == [0, 1, 2])
    assert subscription.stats().unsettled == 3
    go.set()
    await eventually(lambda: subscription.stats().acked == 10)
    go.clear()
    await eventually(lambda: not running and subscription.is_subscribed)
    await publish(broker, *range(10, 20))
    await eventually(lambda: len(running) == 3)
    assert subscription.stats().unsettled == 3
    go.set()
    await eventually(lambda: subscription.stats().acked == 20)


# --------------------------------------------------------------------------- contexts

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_message_has_a_context_of_its_own(start: StartBroker) -> None:
    """The context of the subscribe call, not of the publisher or of an earlier message."""
    broker = await start(a_config(prefetch=10))
    seen: list[str] = []
    who.set("subscriber")

    def plain(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append(who.get())
        who.set(f"plain listener of {content}")

    async def late(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append(who.get())
        who.set(f"listener of {content}")
        await asyncio.sleep(0)
        await ack_or_nack()

    subscription = await broker.subscribe("work", plain)
    subscription.on("message", late)
    who.set("publisher")
    await publish(broker, 1, 2, 3)
    await eventually(lambda: subscription.stats().acked == 3)
    assert seen == ["subscriber"] * 6
    assert who.get() == "publisher"


# --------------------------------------------------------------------------- threads


async def test_plain_functions_run_as_many_at_a_time_as_is_declared(start: StartBroker) -> None:
    broker = await start(a_config(prefetch=30, concurrency=20))
    running, go = threading.Semaphore(0), threading.Event()
    subscription = await broker.subscribe("work")

    @subscription.handle
    def block(content: Any) -> None:
        running.release()
        go.wait(60)

    await publish(broker, *range(25))
    try:
        for _ in range(20):
            assert await asyncio.to_thread(running.acquire, timeout=30)
        assert not running.acquire(blocking=False)
    finally:
        go.set()
    await eventually(lambda: subscription.stats().acked == 25)


async def test_stores_do_not_wait_for_the_threads_of_the_program(
    start: StartBroker, tmp_path: Path
) -> None:
    counter = {"name": "file", "type": "sqlite", "path": str(tmp_path / "counts.db")}
    broker = await start(
        a_config(
            redeliveries={"counter": "file", "limit": 3},
            requeue_defer={"min": "10ms", "max": "10ms"},
            deduplicate={"store": "sqlite", "path": str(tmp_path / "handled.db")},
        )
        | {"redeliveries": {"counters": {"file": {k: counter[k] for k in ("type", "path")}}}}
    )
    subscription = await broker.subscribe("work")
    errors: list[Exception] = []
    subscription.on("error", errors.append)
    seen: list[bool] = []

    @subscription.handle
    async def handle(content: Any, message: Message) -> None:
        seen.append(message.redelivered)
        if not message.redelivered:
            raise ValueError("once")

    go = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, go.wait, 60) for _ in range(64)]
    try:
        await publish(broker, "x")
        await eventually(lambda: subscription.stats().acked == 1)
    finally:
        go.set()
        await asyncio.gather(*busy)
    assert seen == [False, True]
    # A store that does not answer in time is an error, and the message is handled nevertheless.
    assert [type(error) for error in errors] == [HandlerError]


# --------------------------------------------------------------------------- access


async def test_two_handlers_of_one_queue_stand_beside_each_other(start: StartBroker) -> None:
    broker = await start(a_config(prefetch=1))

    @broker.handle("work")
    async def one(content: Any) -> None: ...

    @broker.handle("work")
    async def other(content: Any) -> None: ...

    subscriptions = broker.subscriptions
    assert [one.subscription, other.subscription] == list(subscriptions)  # type: ignore[attr-defined] # set by `handle`
    await eventually(lambda: all(each.is_subscribed for each in subscriptions))
    await publish(broker, *range(10))
    await eventually(
        lambda: sum(each.acked for each in broker.stats().subscriptions.values()) == 10
    )
    assert list(broker.stats().subscriptions) == ["work", "work (2)"]
    await subscriptions[0].cancel()
    assert broker.subscriptions == subscriptions[1:]
