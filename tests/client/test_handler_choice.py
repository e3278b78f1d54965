"""Handlers for some of the messages, with dependencies, and with results that are published."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import pytest
from fast_depends import Depends, dependency_provider
from pydantic import BaseModel

from broker_client import Broker, Message, Router
from broker_client.errors import InvalidHandlerError, NoHandlerError, UnknownNameError
from tests.client.conftest import StartBroker
from tests.support.eventually import eventually

CONFIG: dict[str, Any] = {
    "exchanges": ["dead"],
    "queues": {
        "orders": {"options": {"dead_letter_exchange": "dead"}},
        "dead": {},
        "invoices": {},
    },
    "bindings": ["dead[#] -> dead"],
    "publications": {"orders": {"queue": "orders"}, "invoices": {"queue": "invoices"}},
    "subscriptions": {
        "orders": {"queue": "orders", "recovery": [{"strategy": "nack"}]},
        "dead": {"queue": "dead"},
        "invoices": {"queue": "invoices"},
        "batches": {"queue": "orders", "batch": {"size": 2}},
    },
}


class Placed(BaseModel):
    id: int


async def publish(broker: Broker, content: Any = 1, **options: Any) -> str:
    outcome = await (await broker.publish("orders", content, **options))
    return outcome.message_id


def arrivals(broker: Broker, name: str) -> list[tuple[Any, Message]]:
    found: list[tuple[Any, Message]] = []

    @broker.handle(name)
    async def handle(content: Any, message: Message) -> None:
        found.append((content, message))

    return found


# --------------------------------------------------------------------------- by type and header


@pytest.mark.parametrize("by_router", [False, True])
async def test_message_goes_to_the_first_handler_that_is_for_it(
    start: StartBroker, by_router: bool
) -> None:
    broker = await start(CONFIG)
    handled: list[tuple[str, Any]] = []
    to: Any = Router() if by_router else broker

    handle: Callable[..., Callable[[Any], Any]] = to.handle

    @handle("orders", type="placed", headers={"test": True})
    async def tested(order: Placed) -> None:
        handled.append(("tested", order))

    @handle("orders", type="placed")
    async def placed(order: Placed) -> None:
        handled.append(("placed", order))

    @handle("orders", headers={"kind": "refund", "level": 2})
    def refund(content: int) -> None:  # in a thread
        handled.append(("refund", content))

    @handle("orders")
    async def rest(content: Any) -> None:
        handled.append(("rest", content))

    if by_router:
        broker.include(to)
    assert len([each for each in broker.subscriptions if each.name == "orders"]) == 1
    published: list[tuple[Any, dict[str, Any]]] = [
        ({"id": 1}, {"type": "placed", "headers": {"test": True}}),
        ({"id": 2}, {"type": "placed"}),
        (3, {"headers": {"kind": "refund", "level": 2}}),
        (4, {"headers": {"kind": "refund", "level": 1}}),
        (5, {"type": "changed"}),
    ]
    for number, (content, options) in enumerate(published, 1):
        await publish(broker, content, **options)
        await eventually(lambda n=number: len(handled) == n)
    assert handled == [
        ("tested", Placed(id=1)),
        ("placed", Placed(id=2)),
        ("refund", 3),
        ("rest", 4),
        ("rest", 5),
    ]


async def test_content_is_checked_by_the_handler_that_it_is_for(start: StartBroker) -> None:
    broker = await start(CONFIG)
    dead = arrivals(broker, "dead")
    handled = []

    @broker.handle("orders", type="placed")
    async def placed(order: Placed) -> None: ...

    @broker.handle("orders", type="note")
    async def note(text: str) -> None:
        handled.append(text)

    await publish(broker, "hello", type="note")
    await publish(broker, "hello", type="placed")
    await eventually(lambda: dead and handled)
    assert handled == ["hello"]


async def test_message_that_no_handler_is_for_is_dead_lettered_and_reported(
    start: StartBroker,
) -> None:
    broker = await start(CONFIG)
    dead, errors = arrivals(broker, "dead"), list[Exception]()

    @broker.handle("orders", type="placed")
    async def placed(order: Placed) -> None: ...

    placed.subscription.on("error", errors.append)  # type: ignore[attr-defined]
    message_id = await publish(broker, type="changed")
    await eventually(lambda: dead and errors)
    assert dead[0][1].message_id == message_id
    assert isinstance(errors[0], NoHandlerError)
    assert errors[0].type == "changed"


async def test_handler_that_would_get_no_message_is_refused(start: StartBroker) -> None:
    broker = await start(CONFIG)

    async def handler(content: Any) -> None: ...

    broker.handle("orders", type="a")(handler)
    with pytest.raises(InvalidHandlerError, match="already"):
        broker.handle("orders", type="a")(handler)
    broker.handle("orders")(handler)
    for kind in ("b", None):
        with pytest.raises(InvalidHandlerError, match="comes last"):
            broker.handle("orders", type=kind)(handler)
    broker.handle("dead")(handler)
    with pytest.raises(InvalidHandlerError, match="all messages"):
        broker.handle("dead", type="a")(handler)


async def test_two_handlers_for_all_messages_share_them_as_before(start: StartBroker) -> None:
    broker = await start(CONFIG)
    first, second = arrivals(broker, "orders"), arrivals(broker, "orders")
    await eventually(lambda: all(each.is_subscribed for each in broker.subscriptions))
    for number in range(20):
        await publish(broker, number)
    await eventually(lambda: len(first) + len(second) == 20)
    assert first
    assert second


# --------------------------------------------------------------------------- results


async def test_result_is_published_and_confirmed_before_the_ack(start: StartBroker) -> None:
    broker = await start(CONFIG)
    invoices = arrivals(broker, "invoices")

    @broker.handle("orders", publish="invoices")
    async def order(content: int) -> dict[str, int] | None:
        return {"order": content} if content else None

    await publish(broker, 0)  # None is no result
    message_id = await publish(broker, 7, correlation_id="c7")
    await publish(broker, 8, message_id="m8")
    await publish(broker, 8, message_id="m8")
    await eventually(lambda: len(invoices) == 3)
    assert [content for content, _ in invoices] == [{"order": 7}, {"order": 8}, {"order": 8}]
    correlations = [message.properties.correlation_id for _, message in invoices]
    assert correlations == ["c7", "m8", "m8"]
    ids = [message.message_id for _, message in invoices]
    assert ids[1] == ids[2] != ids[0]
    assert message_id not in ids


async def test_message_whose_result_cannot_be_published_is_not_acked(start: StartBroker) -> None:
    broker = await start({**CONFIG, "exchanges": ["dead", "nowhere"]})
    dead = arrivals(broker, "dead")

    @broker.handle("orders", publish="/nowhere")
    async def order(content: int) -> int:
        return content

    message_id = await publish(broker)
    await eventually(lambda: dead)
    assert dead[0][1].message_id == message_id


async def test_result_without_a_publication_for_it_is_refused(start: StartBroker) -> None:
    broker = await start(CONFIG)

    async def handler(content: Any) -> None: ...

    with pytest.raises(UnknownNameError, match="invoices"):
        broker.handle("orders", publish="invoice")(handler)
    with pytest.raises(InvalidHandlerError, match="batch"):
        broker.handle("batches", publish="invoices")(handler)


# --------------------------------------------------------------------------- dependencies


class Database:
    def __init__(self) -> None:
        self.events: list[str] = []


DATABASE = Database()


async def session() -> AsyncIterator[Database]:
    DATABASE.events.append("open")
    try:
        yield DATABASE
    finally:
        DATABASE.events.append("close")


def tenant(message: Message) -> str:
    return str(message.headers.get("tenant"))


async def test_dependencies_are_made_for_each_message_and_closed_before_the_ack(
    start: StartBroker,
) -> None:
    broker = await start(CONFIG)
    DATABASE.events.clear()

    @broker.handle("orders")
    async def order(
        order: Placed,
        db: Annotated[Database, Depends(session)],
        name: str = Depends(tenant),
    ) -> None:
        db.events.append(f"{name} {order.id}")

    @broker.handle("invoices")
    def invoice(content: int, name: Annotated[str, Depends(tenant)]) -> None:  # in a thread
        DATABASE.events.append(f"invoice of {name}")

    await publish(broker, {"id": 1}, headers={"tenant": "acme"})
    await eventually(lambda: len(DATABASE.events) == 3)
    assert DATABASE.events == ["open", "acme 1", "close"]
    await (await broker.publish("invoices", 1, headers={"tenant": "acme"}))
    await eventually(lambda: DATABASE.events[-1] == "invoice of acme")


async def broken() -> None:
    raise OSError("no database")


async def test_dependency_that_fails_starts_recovery(start: StartBroker) -> None:
    broker = await start(CONFIG)
    dead = arrivals(broker, "dead")

    @broker.handle("orders")
    async def order(content: Any, db: Annotated[None, Depends(broken)]) -> None: ...

    await publish(broker)
    await eventually(lambda: dead)


async def test_dependency_can_be_replaced_in_a_test(start: StartBroker) -> None:
    broker = await start(CONFIG)
    handled: asyncio.Queue[str] = asyncio.Queue()

    @broker.handle("orders")
    async def order(content: Any, name: Annotated[str, Depends(tenant)]) -> None:
        handled.put_nowait(name)

    with dependency_provider.scope(tenant, lambda: "somebody"):
        await publish(broker)
        async with asyncio.timeout(30.0):
            assert await handled.get() == "somebody"
