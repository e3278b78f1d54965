"""Handlers as plain functions."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any, cast

import pytest
from pydantic import BaseModel

from broker_client.ackornack import AckOrNack
from broker_client.config import SubscriptionConfig
from broker_client.consuming.handler_signature import Handler
from broker_client.consuming.handlers import listener_from
from broker_client.consuming.threads import HandlerThreads
from broker_client.errors import BrokerClientError, InvalidHandlerError
from broker_client.message import Delivery, Message, Properties
from broker_client.publishing.publisher import Publisher
from tests.support.consuming import RecordingPublisher


class Order(BaseModel):
    id: int


class RecordedSettling:
    """A fake ack_or_nack that keeps its arguments."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @property
    def is_begun(self) -> bool:
        return bool(self.calls)

    async def __call__(self, error: object = None, recovery: object = None) -> None:
        self.calls.append(error)


class HandlerHarness:
    """Calls a handler with one message and keeps the results."""

    def __init__(self, handler: Handler) -> None:
        self.publisher = RecordingPublisher()
        self.refused: list[BrokerClientError] = []
        self.settle = RecordedSettling()
        self._listen = listener_from(
            handler,
            cast(Publisher, self.publisher),
            HandlerThreads(SubscriptionConfig(name="s", queue="q")),
        )

    @property
    def answers(self) -> list[bytes]:
        return [answer.body for answer in self.publisher.republished]

    async def give(self, content: Any, *, reply_to: str | None = None) -> None:
        properties = Properties(content_type="application/json", reply_to=reply_to)
        delivery = Delivery("c", 1, False, "", "q", b"", properties)
        message = Message(delivery, queue="q", vhost="/", touch=lambda tag: 0.0)
        refusal = await self._listen(message, content, cast(AckOrNack, self.settle))
        if refusal is not None:
            self.refused.append(refusal.error)


async def test_return_acks() -> None:
    seen: list[Any] = []

    async def handler(content: Any) -> None:
        seen.append(content)

    harness = HandlerHarness(handler)
    await harness.give({"id": 7})
    assert seen == [{"id": 7}]
    assert harness.settle.calls == [None]


async def test_exception_leaves_it_to_recovery() -> None:
    async def handler(content: Any) -> None:
        raise KeyError("no")

    harness = HandlerHarness(handler)
    with pytest.raises(KeyError):
        await harness.give({})
    assert harness.settle.calls == []


async def test_content_becomes_what_the_annotation_says() -> None:
    seen: list[Order] = []

    async def handler(order: Order, message: Message) -> None:
        seen.append(order)

    await HandlerHarness(handler).give({"id": "7"})
    assert seen == [Order(id=7)]


async def test_content_that_does_not_fit_is_rejected_and_not_handed_over() -> None:
    seen: list[Order] = []

    async def handler(order: Order) -> None:
        seen.append(order)

    harness = HandlerHarness(handler)
    await harness.give({"id": "secret-seven"})
    assert seen == []
    assert harness.settle.calls == []
    assert "id: Input should be a valid integer" in str(harness.refused[0])
    assert "secret-seven" not in str(harness.refused[0])


async def test_plain_function_runs_in_a_thread_and_acks() -> None:
    threads: list[threading.Thread] = []

    def handler(content: Any) -> None:
        threads.append(threading.current_thread())

    harness = HandlerHarness(handler)
    await harness.give(1)
    assert threads != [threading.current_thread()]
    assert harness.settle.calls == [None]


async def test_result_answers_only_who_asks() -> None:
    async def handler(content: int) -> int:
        return content + 1

    harness = HandlerHarness(handler)
    await harness.give(1)
    await harness.give(2, reply_to="answers")
    assert harness.answers == [b"3"]


def _decorated(function: Handler) -> Handler:
    """As wrapped by a decorator that is not made for coroutines."""

    def wrapper(*args: Any, **by_name: Any) -> Any:
        return function(*args, **by_name)

    return wrapper


class AsyncCallable:
    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    async def __call__(self, content: int) -> int:
        self.threads.append(threading.current_thread())
        return content + 1


async def _add_one(content: int) -> int:
    await asyncio.sleep(0)
    return content + 1


@pytest.mark.parametrize(
    "handler",
    [
        _decorated(_add_one),
        AsyncCallable(),
        lambda content: _add_one(content),
        functools.partial(_add_one),
    ],
    ids=["decorated", "async-call", "lambda", "partial"],
)
async def test_whatever_is_awaitable_is_awaited_before_the_ack(handler: Handler) -> None:
    harness = HandlerHarness(handler)
    await harness.give(1, reply_to="answers")
    assert (harness.answers, harness.settle.calls) == ([b"2"], [None])


async def test_object_with_an_async_call_runs_in_the_loop() -> None:
    handler = AsyncCallable()
    await HandlerHarness(handler).give(1)
    assert handler.threads == [threading.current_thread()]


seen: list[Any] = []


async def _content_alone(content: Any) -> None:
    seen.append((content, None))


async def _in_order(first: Any, second: Any) -> None:
    seen.append((first, second))


async def _message_by_name_first(message: Any, content: Any) -> None:
    seen.append((content, message))


async def _message_annotated_first(asked: Message, order: Order) -> None:
    seen.append((order, asked))


async def _message_may_be_none(order: Order, asked: Message | None = None) -> None:
    seen.append((order, asked))


async def _message_by_keyword(content: Any, *, message: Message) -> None:
    seen.append((content, message))


async def _defaults_besides(content: Any, retries: int = 3) -> None:
    seen.append((content, None))
    assert retries == 3


async def _message_alone(asked: Message) -> None:
    seen.append((None, asked))


async def _default_between(content: Any, retries: int = 3, message: Any = None) -> None:
    seen.append((content, message))
    assert retries == 3


@pytest.mark.parametrize(
    ("handler", "content", "takes_message"),
    [
        (_content_alone, {"id": 7}, False),
        (_in_order, {"id": 7}, True),
        (_message_by_name_first, {"id": 7}, True),
        (_message_annotated_first, Order(id=7), True),
        (_message_may_be_none, Order(id=7), True),
        (_message_by_keyword, {"id": 7}, True),
        (_defaults_besides, {"id": 7}, False),
        (_message_alone, None, True),
        (_default_between, {"id": 7}, True),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_arguments_are_told_apart_by_annotation_and_by_name(
    handler: Handler, content: Any, takes_message: bool
) -> None:
    seen.clear()
    await HandlerHarness(handler).give({"id": 7})
    [(given, message)] = seen
    assert given == content
    assert isinstance(message, Message) is takes_message


class Foreign:
    """A type that pydantic cannot check."""


def _takes_a_foreign_class(content: Foreign) -> None: ...


def test_annotation_that_cannot_be_checked_is_refused_in_our_words() -> None:
    with pytest.raises(InvalidHandlerError, match=r"Foreign.*annotate it as Any"):
        HandlerHarness(_takes_a_foreign_class)


def _takes_none() -> None: ...


def _takes_three(a: Any, b: Any, c: Any) -> None: ...


def _takes_a_name(a: Any, *, b: Any) -> None: ...


def _takes_two_messages(a: Message, b: Message) -> None: ...


def _takes_two_contents(a: int, b: str) -> None: ...


def _takes_ack_or_nack(content: Any, message: Message, ack_or_nack: AckOrNack) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [
        _takes_none,
        _takes_three,
        _takes_a_name,
        _takes_two_messages,
        _takes_two_contents,
        _takes_ack_or_nack,
    ],
)
def test_function_of_another_shape_is_refused(handler: Handler) -> None:
    with pytest.raises(InvalidHandlerError, match=r"_takes_.* write it as handler\(content\)"):
        HandlerHarness(handler)
