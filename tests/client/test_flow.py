"""Circuit breaker, rate and batches of a subscription, on both brokers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from broker_client import AckOrNack, Broker, ConfigError, HandleCall, HandleNext, Message
from broker_client.errors import InvalidHandlerError
from tests.client.conftest import StartBroker
from tests.docs.documents import ROOT
from tests.support.eventually import eventually


def a_config(**subscription: Any) -> dict[str, Any]:
    return {
        "exchanges": ["dead"],
        "queues": {
            "work": {"options": {"dead_letter_exchange": "dead"}},
            "cemetery": {},
        },
        "bindings": ["dead[#] -> cemetery"],
        "publications": {"work": {"queue": "work"}},
        "subscriptions": {
            "work": {"queue": "work", "recovery": [{"strategy": "nack"}], **subscription},
            "cemetery": {"queue": "cemetery"},
        },
    }


def acked(broker: Broker) -> int:
    return broker.stats().subscriptions["work"].acked


def nacked(broker: Broker) -> int:
    return broker.stats().subscriptions["work"].nacked


# --------------------------------------------------------------------------- circuit breaker

BREAKER = {"ratio": 0.5, "min": 4, "pause": "200ms"}


async def test_breaker_pauses_after_failures_and_consumes_again_when_they_end(
    start: StartBroker,
) -> None:
    broker = await start(a_config(breaker={**BREAKER, "pause": "2s"}, prefetch=1))
    heard: list[Any] = []
    outage = True
    subscription = await broker.subscribe("work")
    subscription.on("tripped", lambda failures, calls: heard.append((failures, calls)))
    subscription.on("restored", lambda: heard.append("restored"))
    subscription.on("error", lambda error: None)

    @subscription.handle
    async def work(number: int) -> None:
        if outage and number != 0:
            raise ConnectionError("the database is away")

    await broker.publish_many("work", range(10))
    await eventually(lambda: bool(heard) and subscription.is_paused)
    assert heard == [(3, 4)]  # not the other six
    handled_before = subscription.stats().nacked
    assert handled_before <= 4
    outage = False
    await eventually(lambda: "restored" in heard)
    await eventually(lambda: acked(broker) + subscription.stats().nacked == 10)
    assert heard == [(3, 4), "restored"]
    assert not subscription.is_paused


async def test_breaker_opens_again_when_the_first_message_after_the_pause_fails(
    start: StartBroker,
) -> None:
    broker = await start(a_config(breaker={**BREAKER, "pause": "20ms"}, prefetch=1))
    heard: list[Any] = []
    subscription = await broker.subscribe("work")
    subscription.on("tripped", lambda failures, calls: heard.append((failures, calls)))
    subscription.on("error", lambda error: None)

    @subscription.on("message")
    async def work(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack("told to fail")

    await broker.publish_many("work", range(20))
    await eventually(lambda: len(heard) >= 3)
    assert heard[:3] == [(4, 4), (1, 1), (1, 1)]


async def test_breaker_leaves_a_pause_of_the_application_alone(start: StartBroker) -> None:
    broker = await start(a_config(breaker={**BREAKER, "pause": "20ms"}, prefetch=1))
    tripped = asyncio.Event()
    subscription = await broker.subscribe("work")
    subscription.on("tripped", lambda failures, calls: tripped.set())
    subscription.on("error", lambda error: None)

    @subscription.handle
    async def work(number: int) -> None:
        if number < 4:
            raise ValueError

    await broker.publish_many("work", range(5))
    await tripped.wait()
    await subscription.pause()
    later = asyncio.get_running_loop().time() + 0.2
    await eventually(lambda: asyncio.get_running_loop().time() > later)
    assert subscription.is_paused
    await subscription.resume()
    await eventually(lambda: acked(broker) == 1)


async def test_broker_ends_at_once_while_a_breaker_is_open(start: StartBroker) -> None:
    broker = await start(a_config(breaker={**BREAKER, "pause": "1h"}, prefetch=1))
    tripped = asyncio.Event()
    subscription = await broker.subscribe("work")
    subscription.on("tripped", lambda failures, calls: tripped.set())
    subscription.on("error", lambda error: None)

    @subscription.handle
    async def work(number: int) -> None:
        raise ValueError

    await broker.publish_many("work", range(5))
    await tripped.wait()
    await asyncio.wait_for(broker.shutdown(), 30)


# --------------------------------------------------------------------------- rate


async def test_rate_spreads_messages_and_all_are_handled_in_order(start: StartBroker) -> None:
    broker = await start(a_config(rate="4/150ms"))
    handled: list[int] = []

    @broker.handle("work")
    async def work(number: int) -> None:
        handled.append(number)

    began = asyncio.get_running_loop().time()
    await broker.publish_many("work", range(10))
    await eventually(lambda: acked(broker) == 10)
    assert asyncio.get_running_loop().time() - began >= 0.3
    assert handled == list(range(10))


async def test_message_that_waits_for_the_rate_goes_back_at_a_pause(start: StartBroker) -> None:
    broker = await start(a_config(rate="1/h"))
    handled: list[int] = []

    @broker.handle("work")
    async def work(number: int) -> None:
        handled.append(number)

    await broker.publish_many("work", range(3))
    await eventually(lambda: broker.stats().subscriptions["work"].waiting == 2)
    [subscription] = broker.subscriptions
    await subscription.pause()
    assert (subscription.stats().unsettled, subscription.stats().given_back) == (0, 2)
    assert handled == [0]


# --------------------------------------------------------------------------- batches


class Order(BaseModel):
    id: int


async def test_batch_is_handled_when_it_is_full_and_when_its_time_is_over(
    start: StartBroker,
) -> None:
    broker = await start(a_config(batch={"size": 3, "wait": "100ms"}))
    batches: list[list[int]] = []

    @broker.handle("work")
    async def work(orders: list[Order], messages: list[Message]) -> None:
        assert [each.body for each in messages] == [
            f'{{"id":{each.id}}}'.encode() for each in orders
        ]
        batches.append([each.id for each in orders])

    await broker.publish_many("work", [{"id": number} for number in range(7)])
    await eventually(lambda: acked(broker) == 7)
    assert [number for batch in batches for number in batch] == list(range(7))
    assert max(map(len, batches)) == 3
    assert len(batches) >= 3


async def test_plain_function_gets_batches_in_a_thread(start: StartBroker) -> None:
    broker = await start(a_config(batch={"size": 2, "wait": "1h"}))
    batches: list[list[Any]] = []

    @broker.handle("work")
    def work(orders: list[Any]) -> None:
        batches.append(orders)

    await broker.publish_many("work", range(4))
    await eventually(lambda: acked(broker) == 4)
    assert batches == [[0, 1], [2, 3]]


async def test_content_that_does_not_fit_is_refused_and_leaves_the_batch(
    start: StartBroker,
) -> None:
    broker = await start(a_config(batch={"size": 2, "wait": "1h"}))
    batches: list[list[int]] = []

    @broker.handle("work")
    async def work(orders: list[Order]) -> None:
        batches.append([each.id for each in orders])

    await broker.publish_many("work", [{"id": 1}, {"id": "none"}, {"id": 2}])
    await eventually(lambda: (acked(broker), nacked(broker)) == (2, 1))
    assert batches == [[1, 2]]


async def test_batch_that_fails_goes_to_recovery_message_by_message(start: StartBroker) -> None:
    broker = await start(a_config(batch={"size": 3, "wait": "1h"}))
    buried: list[int] = []
    subscription = await broker.subscribe("work")
    subscription.on("error", lambda error: None)

    @subscription.handle
    async def work(numbers: list[int]) -> None:
        raise ValueError("told to fail")

    @broker.handle("cemetery")
    async def bury(number: int) -> None:
        buried.append(number)

    await broker.publish_many("work", range(3))
    await eventually(lambda: sorted(buried) == [0, 1, 2])


async def test_batch_of_a_lost_link_is_delivered_again_and_not_handled_before(
    start: StartBroker,
) -> None:
    broker = await start(a_config(batch={"size": 3, "wait": "1h"}))
    batches: list[list[int]] = []

    @broker.handle("work")
    async def work(numbers: list[int]) -> None:
        batches.append(numbers)

    await broker.publish_many("work", [1, 2])
    await eventually(lambda: broker.stats().subscriptions["work"].unsettled == 2)
    await broker.bounce()
    await broker.publish_many("work", [3, 4])  # lost messages count for the size
    await eventually(lambda: acked(broker) == 4)
    assert sorted(number for batch in batches for number in batch) == [1, 2, 3, 4]


async def test_batch_of_a_process_that_is_killed_is_delivered_again(
    url: str, tmp_path: Path
) -> None:
    if url == "embedded://":
        url = f"embedded://{tmp_path}/broker.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests" / "client" / "collecting_program.py"),
        url,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"collected\n"
    process.kill()
    await process.communicate()
    handled: list[int] = []
    async with Broker.create({"vhosts": {"/": {"connection": url, "queues": ["work"]}}}) as broker:

        @broker.handle("/work")
        async def work(number: int) -> None:
            handled.append(number)

        await eventually(lambda: sorted(handled) == [0, 1, 2])


async def test_end_of_the_subscription_flushes_the_batch(start: StartBroker) -> None:
    broker = await start(a_config(batch={"size": 10, "wait": "1h"}))
    batches: list[list[int]] = []

    @broker.handle("work")
    async def work(numbers: list[int]) -> None:
        batches.append(numbers)

    await broker.publish_many("work", [1, 2])
    await eventually(lambda: broker.stats().subscriptions["work"].unsettled == 2)
    [subscription] = broker.subscriptions
    await asyncio.wait_for(subscription.cancel(), 30)
    assert (batches, subscription.stats().acked) == ([[1, 2]], 2)


async def test_middleware_runs_for_each_message_of_a_batch(start: StartBroker) -> None:
    broker = await start(a_config(batch={"size": 2, "wait": "1h"}))
    seen: list[int] = []

    @broker.middleware("handle")
    async def note(call: HandleCall, call_next: HandleNext) -> Any:
        result = await call_next(call)
        seen.append(call.content)
        return result

    @broker.handle("work")
    async def work(numbers: list[int]) -> None: ...

    await broker.publish_many("work", range(2))
    await eventually(lambda: acked(broker) == 2)
    assert sorted(seen) == [0, 1]


async def test_batch_that_the_prefetch_cannot_fill_is_refused(start: StartBroker) -> None:
    with pytest.raises(ConfigError, match=r"batch.size \(20\) is above prefetch \(10\)"):
        await start(a_config(batch={"size": 20}))


async def test_handler_of_batches_that_takes_no_list_is_refused(start: StartBroker) -> None:
    broker = await start(a_config(batch={"size": 2}))

    with pytest.raises(InvalidHandlerError, match="annotate 'order' as a list"):

        @broker.handle("work")
        async def work(order: Order) -> None: ...
