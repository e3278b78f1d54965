"""Middleware around publishing and around handlers, on both brokers."""

from __future__ import annotations

import asyncio
import os
import sys
from types import FrameType
from typing import Any

import pytest

from broker_client import (
    AckOrNack,
    Broker,
    HandleCall,
    HandleNext,
    Message,
    Publication,
    PublishCall,
    PublishNext,
    publishing,
)
from broker_client.errors import InvalidMiddlewareError, UnknownNameError
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually


def a_config(**more: Any) -> dict[str, Any]:
    return {
        "exchanges": ["dead"],
        "queues": {
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "other": {},
            "cemetery": {},
        },
        "bindings": ["dead[#] -> cemetery"],
        "publications": {"work": {"queue": "work"}, "other": {"queue": "other"}},
        "subscriptions": {
            "work": {"queue": "work", "recovery": [{"strategy": "nack"}]},
            "other": {"queue": "other"},
            "cemetery": {"queue": "cemetery"},
        },
        **more,
    }


async def the_next(broker: Broker, subscription: str) -> Message:
    async with asyncio.timeout(30.0):
        async for message, _, ack_or_nack in await broker.subscribe(subscription):
            await ack_or_nack()
            return message
    raise AssertionError("cancelled")


# --------------------------------------------------------------------------- publishing


async def test_publish_middleware_added_first_is_outermost_and_sees_the_outcome(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    steps: list[str] = []

    @broker.middleware("publish")
    async def outer(call: PublishCall, call_next: PublishNext) -> Publication:
        steps.append(f"outer {call.publication} {call.content}")
        publication = await call_next(call)
        steps.append("outer done")
        return publication

    @broker.middleware("publish")
    async def inner(call: PublishCall, call_next: PublishNext) -> Publication:
        steps.append("inner")
        publication = await call_next(call)
        await publication
        steps.append("confirmed")
        return publication

    await (await broker.publish("work", {"id": 1}))
    assert steps == ["outer work {'id': 1}", "inner", "confirmed", "outer done"]


async def test_publish_middleware_changes_what_is_sent_and_not_what_the_caller_gave(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    given = {"mine": "kept"}

    @broker.middleware("publish", "work")
    async def stamp(call: PublishCall, call_next: PublishNext) -> Publication:
        call.headers["tenant"] = "acme"
        call.options["message_id"] = "stamped"
        call.content = {**call.content, "more": True}
        return await call_next(call)

    publication = await broker.publish("work", {"id": 1}, headers=given)
    await publication
    message = await the_next(broker, "work")
    assert (message.message_id, message.body) == ("stamped", b'{"id":1,"more":true}')
    assert (message.headers["mine"], message.headers["tenant"]) == ("kept", "acme")
    assert given == {"mine": "kept"}
    assert publication.message_id == "stamped"


async def test_publish_middleware_for_one_publication_leaves_the_others_alone(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    seen: list[str] = []

    @broker.middleware("publish", "other")
    async def note(call: PublishCall, call_next: PublishNext) -> Publication:
        seen.append(call.publication)
        return await call_next(call)

    await (await broker.publish("work", 1))
    await (await broker.publish("other", 2))
    await broker.publish_many("other", [3, 4])
    assert seen == ["other", "other", "other"]


async def test_publish_middleware_sees_each_message_in_order_however_it_is_published(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    seen: list[int] = []

    @broker.middleware("publish", "other")
    async def note(call: PublishCall, call_next: PublishNext) -> Publication:
        seen.append(call.content)
        call.content = -call.content
        return await call_next(call)

    await broker.publish("other", 1)
    report = await broker.publish_many("other", range(2, 50))
    await (await broker.publish("other", 50))
    assert (report.published, report.failed) == (48, 0)
    assert seen == list(range(1, 51))
    handled: list[int] = []
    async with asyncio.timeout(15):
        async for _, content, ack_or_nack in await broker.subscribe("other"):
            await ack_or_nack()
            handled.append(content)
            if len(handled) == 50:
                break
    assert handled == [-each for each in seen]


async def test_publish_middleware_for_one_publication_costs_the_others_no_call(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    many = [b"x"] * 200
    await broker.publish_many("work", many)  # one-time set-up is done
    before = await calls_to_publish(broker, "work", many)

    @broker.middleware("publish", "other")
    async def around_other(call: PublishCall, call_next: PublishNext) -> Publication:
        return await call_next(call)

    after = await calls_to_publish(broker, "work", many)
    assert after - before < len(many) / 2
    around = await calls_to_publish(broker, "other", many)
    assert around - before > len(many)  # the figure distinguishes the two paths


async def calls_to_publish(broker: Broker, name: str, many: list[bytes]) -> int:
    """Calls of Python functions in the room `publishing` during a `publish_many`."""
    room, calls = os.path.dirname(publishing.__file__), 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(room):
            calls += 1

    sys.setprofile(count)
    try:
        await broker.publish_many(name, many)
    finally:
        sys.setprofile(None)
    return calls


async def test_publish_middleware_that_raises_publishes_nothing(start: StartBroker) -> None:
    broker = await start(a_config())

    @broker.middleware("publish")
    async def refuse(call: PublishCall, call_next: PublishNext) -> Publication:
        raise PermissionError(call.publication)

    with pytest.raises(PermissionError, match="work"):
        await broker.publish("work", 1)
    assert broker.stats().vhosts["/"].publish_queue.published == 0


async def test_publish_middleware_that_loses_the_publication_is_reported(
    start: StartBroker,
) -> None:
    broker = await start(a_config())

    @broker.middleware("publish")
    async def forgetful(call: PublishCall, call_next: PublishNext) -> Any:
        await (await call_next(call))

    with pytest.raises(InvalidMiddlewareError, match="return await call_next"):
        await broker.publish("work", 1)


async def test_publish_middleware_runs_around_what_a_shovel_moves(start: StartBroker) -> None:
    shovels = {"move": {"subscription": "work", "publication": "other"}}
    broker = await start(a_config(shovels=shovels))
    moved: list[bytes] = []

    @broker.middleware("publish", "other")
    async def stamp(call: PublishCall, call_next: PublishNext) -> Publication:
        assert call.message is not None
        moved.append(call.message.body)
        call.headers["moved"] = "yes"
        return await call_next(call)

    await (await broker.publish("work", "text"))
    message = await the_next(broker, "other")
    assert (moved, message.headers["moved"]) == ([b"text"], "yes")


async def test_publish_middleware_sees_the_request_and_not_the_answer(start: StartBroker) -> None:
    broker = await start(a_config())
    seen: list[Any] = []

    @broker.middleware("publish")
    async def note(call: PublishCall, call_next: PublishNext) -> Publication:
        seen.append(call.content)
        return await call_next(call)

    @broker.handle("work")
    async def double(number: int) -> int:
        return 2 * number

    assert (await broker.request("work", 21)).content == 42
    assert seen == [21]


# --------------------------------------------------------------------------- handling


async def test_handle_middleware_runs_around_the_handler_and_before_the_ack(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    steps: list[str] = []
    settled: list[str] = []

    @broker.middleware("handle")
    async def outer(call: HandleCall, call_next: HandleNext) -> Any:
        call.when_settled(settled.append)
        steps.append(f"begin {call.subscription} {call.content}")
        result = await call_next(call)
        steps.append(f"commit, {broker.stats().subscriptions['work'].acked} acked")
        return result

    @broker.middleware("handle", "work")
    async def inner(call: HandleCall, call_next: HandleNext) -> Any:
        call.content = call.content["id"]
        return await call_next(call)

    @broker.handle("work")
    async def work(content: Any) -> None:
        steps.append(f"handle {content}")

    await (await broker.publish("work", {"id": 7}))
    await eventually(lambda: settled == ["acked"])
    assert steps == ["begin work {'id': 7}", "handle 7", "commit, 0 acked"]


async def test_handle_middleware_changes_the_answer(start: StartBroker) -> None:
    broker = await start(a_config())

    @broker.middleware("handle", "work")
    async def wrap(call: HandleCall, call_next: HandleNext) -> Any:
        return {"result": await call_next(call)}

    @broker.handle("work")
    def work(number: int, message: Message) -> int:  # in a thread
        return number + 1

    assert (await broker.request("work", 1)).content == {"result": 2}


async def test_handle_middleware_that_raises_starts_recovery(start: StartBroker) -> None:
    broker = await start(a_config())
    outcomes: list[str] = []
    handled: list[Any] = []

    @broker.middleware("handle", "work")
    async def refuse(call: HandleCall, call_next: HandleNext) -> Any:
        call.when_settled(outcomes.append)
        raise PermissionError("not today")

    (await broker.subscribe("work", lambda *args: handled.append(args))).on("error", print)
    await (await broker.publish("work", 1))
    message = await the_next(broker, "cemetery")
    assert (message.body, handled, outcomes) == (b"1", [], ["nacked"])


@pytest.mark.parametrize("kind", ["handle", "listener"])
async def test_handle_middleware_that_deals_with_the_error_leaves_the_message_acked(
    start: StartBroker, kind: str
) -> None:
    broker = await start(a_config())
    outcomes: list[str] = []

    @broker.middleware("handle", "work")
    async def forgive(call: HandleCall, call_next: HandleNext) -> Any:
        call.when_settled(outcomes.append)
        try:
            return await call_next(call)
        except ValueError:
            return None

    async def listener(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        raise ValueError(content)

    async def handler(content: Any) -> None:
        raise ValueError(content)

    subscription = await broker.subscribe("work")
    if kind == "handle":
        subscription.handle(handler)
    else:
        subscription.on("message", listener)
    await (await broker.publish("work", 1))
    await eventually(lambda: outcomes == ["acked"])
    assert subscription.stats().handler_errors == 0


async def test_handle_middleware_skips_the_handler_and_the_message_is_acked(
    start: StartBroker,
) -> None:
    broker = await start(a_config())
    handled: list[Any] = []

    @broker.middleware("handle", "work")
    async def only_odd(call: HandleCall, call_next: HandleNext) -> Any:
        return await call_next(call) if call.content % 2 else None

    @broker.handle("work")
    async def work(number: int) -> None:
        handled.append(number)

    await broker.publish_many("work", range(4))
    await eventually(lambda: broker.stats().subscriptions["work"].acked == 4)
    assert handled == [1, 3]


async def test_listener_inside_middleware_settles_when_it_likes(start: StartBroker) -> None:
    broker = await start(a_config())
    kept: list[AckOrNack] = []
    returned: list[str] = []

    @broker.middleware("handle")
    async def around(call: HandleCall, call_next: HandleNext) -> Any:
        await call_next(call)
        returned.append(call.subscription)

    subscription = await broker.subscribe(
        "work", lambda m, c, ack_or_nack: kept.append(ack_or_nack)
    )
    await (await broker.publish("work", 1))
    await eventually(lambda: returned == ["work"])
    assert subscription.stats().unsettled == 1
    await kept[0]()
    assert subscription.stats().acked == 1


async def test_listener_inside_middleware_is_taken_off(start: StartBroker) -> None:
    broker = await start(a_config())
    heard: list[tuple[str, Any]] = []

    @broker.middleware("handle")
    async def around(call: HandleCall, call_next: HandleNext) -> Any:
        return await call_next(call)

    async def first(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        heard.append(("first", content))

    async def second(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        heard.append(("second", content))
        await ack_or_nack()

    subscription = await broker.subscribe("work", first)
    subscription.on("message", second)
    subscription.off("message", first)
    await (await broker.publish("work", 1))
    await eventually(lambda: subscription.stats().acked == 1)
    assert heard == [("second", 1)]


async def test_outcome_of_a_lost_delivery_is_reported(start: StartBroker) -> None:
    broker = await start(a_config())
    outcomes: list[str] = []
    first, over = asyncio.Event(), asyncio.Event()

    @broker.middleware("handle", "work")
    async def watch(call: HandleCall, call_next: HandleNext) -> Any:
        call.when_settled(outcomes.append)
        return await call_next(call)

    @broker.handle("work")
    async def work(number: int) -> None:
        if not first.is_set():
            first.set()
            await over.wait()

    await (await broker.publish("work", 1))
    await first.wait()
    await broker.bounce()
    await eventually(lambda: outcomes == ["lost", "acked"])
    over.set()


# --------------------------------------------------------------------------- mistakes


async def test_middleware_that_comes_after_its_subscription_is_refused(start: StartBroker) -> None:
    broker = await start(a_config())

    @broker.handle("work")
    async def work(content: Any) -> None: ...

    async def around(call: HandleCall, call_next: HandleNext) -> Any:
        return await call_next(call)

    with pytest.raises(InvalidMiddlewareError, match="subscription 'work' was made before it"):
        broker.middleware("handle")(around)
    broker.middleware("handle", "other")(around)  # which has no handler yet


@pytest.mark.parametrize(
    "wrong",
    [lambda call, call_next: None, "text", pytest.param(print, id="print")],
)
async def test_middleware_that_is_not_async_is_refused(start: StartBroker, wrong: Any) -> None:
    broker = await start(a_config())
    with pytest.raises(InvalidMiddlewareError, match="async def"):
        broker.middleware("publish")(wrong)


async def test_middleware_with_other_arguments_is_refused(start: StartBroker) -> None:
    broker = await start(a_config())

    async def one(call: PublishCall) -> None: ...

    with pytest.raises(InvalidMiddlewareError, match=r"middleware\(call, call_next\)"):
        broker.middleware("publish")(one)  # type: ignore[type-var]


@pytest.mark.parametrize("around", ["publish", "handle", "both"])
async def test_middleware_for_an_unknown_name_is_refused(start: StartBroker, around: str) -> None:
    broker = await start(a_config())
    middleware: Any = broker.middleware

    async def any_middleware(call: Any, call_next: Any) -> Any:
        return await call_next(call)

    with pytest.raises(UnknownNameError, match="publish" if around == "both" else "did you mean"):
        middleware(around, "wrok")(any_middleware)
