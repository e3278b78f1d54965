"""Requests and their answers, on both brokers; a request whose answer cannot come fails."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker_client import Broker, Message
from broker_client.errors import RequestFailedError, RequestTimeoutError
from tests.client.conftest import StartBroker

RETRY = [{"strategy": "republish", "attempts": 2}, {"strategy": "nack"}]


async def asking(start: StartBroker, **subscription: Any) -> Broker:
    return await start(
        {
            "queues": ["work"],
            "publications": {"work": {"queue": "work"}},
            "subscriptions": {"work": {"queue": "work", **subscription}},
        }
    )


async def test_handler_that_returns_nothing_answers_without_content(start: StartBroker) -> None:
    broker = await asking(start)

    @broker.handle("work")
    async def handle(content: Any) -> None: ...

    reply = await broker.request("work", "x", timeout=30)
    assert (reply.content, reply.message.body) == (None, b"")


@pytest.mark.parametrize("recovery", [None, RETRY, [{"strategy": "ack"}]])
async def test_handler_that_fails_is_told_of_with_the_class_of_its_error(
    start: StartBroker, recovery: Any
) -> None:
    broker = await asking(start, recovery=recovery)
    tries: list[int] = []

    @broker.handle("work")
    async def handle(content: Any, message: Message) -> None:
        tries.append(message.tries)
        raise LookupError("secret")

    began = time.monotonic()
    with pytest.raises(RequestFailedError, match="handler failed with LookupError") as failed:
        await broker.request("work", "x", timeout=60)
    assert failed.value.kind == "LookupError"
    assert "secret" not in str(failed.value)
    assert time.monotonic() - began < 30
    assert tries[0:3:2] == [1, 3] if recovery is RETRY else tries[0] == 1


async def test_content_that_does_not_fit_is_a_failure_too(start: StartBroker) -> None:
    broker = await asking(start)

    @broker.handle("work")
    async def handle(content: dict[str, int]) -> None: ...

    with pytest.raises(RequestFailedError, match="InvalidContentError"):
        await broker.request("work", "x", timeout=30)


async def test_retry_that_succeeds_is_the_answer(start: StartBroker) -> None:
    broker = await asking(start, recovery=RETRY)

    @broker.handle("work")
    async def handle(content: int, message: Message) -> int:
        if message.tries < 3:
            raise LookupError
        return content + 1

    assert (await broker.request("work", 1, timeout=30)).content == 2


@pytest.mark.parametrize(("replies", "answered"), [("results", [7]), ("none", [])])
async def test_answers_can_be_turned_off(
    start: StartBroker, replies: str, answered: list[int]
) -> None:
    broker = await asking(start, replies=replies, recovery=[{"strategy": "nack"}])

    @broker.handle("work")
    async def handle(content: Any) -> Any:
        if content == "fail":
            raise ValueError
        return content

    got: list[Any] = []
    for content in ("fail", None, 7):
        try:
            timeout = 30 if content in answered else 0.5
            got.append((await broker.request("work", content, timeout=timeout)).content)
        except RequestTimeoutError:
            continue
    assert got == answered
