"""Typical mistakes in a first program, and their errors."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker_client.broker import Broker
from broker_client.errors import (
    BrokerClientError,
    ConfigError,
    InvalidHandlerError,
    InvalidMessageError,
    UnknownNameError,
)
from tests.support.eventually import eventually

CONFIG = {
    "vhosts": {
        "/": {
            "exchanges": ["orders"],
            "queues": ["q"],
            "bindings": ["orders[new] -> q"],
            "publications": {"orders": {"exchange": "orders", "routing_key": "new"}},
            "subscriptions": {"q": {"queue": "q"}},
        }
    }
}


async def refuses(make: Callable[[Broker], Any], kind: type[BrokerClientError]) -> str:
    """The text of the error that `make` raises."""
    async with Broker.create(CONFIG) as broker:
        with pytest.raises(kind) as caught:
            await make(broker)
    return str(caught.value)


# --------------------------------------------------------------------------- creating


def test_broker_that_was_not_awaited_says_how_to_write_it() -> None:
    with pytest.raises(AttributeError, match=r"no 'publish': write `async with Broker.create"):
        Broker.create(CONFIG).publish("orders", {})


async def test_address_in_place_of_a_configuration_is_reported_without_its_password() -> None:
    with pytest.raises(ConfigError) as caught:
        await Broker.create("amqp://app:secret@rabbit/")
    assert "is an address; give a file or a mapping" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_text_of_a_configuration_in_place_of_its_path_is_reported() -> None:
    with pytest.raises(ConfigError, match="is YAML, where the path of a file is expected"):
        await Broker.create("vhosts:\n  /:\n")


# --------------------------------------------------------------------------- publishing


@pytest.mark.parametrize("name", [None, 7])
async def test_name_that_is_no_text_is_an_unknown_name(name: Any) -> None:
    text = await refuses(lambda broker: broker.publish(name, {}), UnknownNameError)
    assert text == f"unknown publication {name!r} (declared: orders)"


async def test_unknown_option_of_a_publish_is_reported_with_those_there_are() -> None:
    text = await refuses(
        lambda broker: broker.publish("orders", {}, header={}),  # type: ignore[call-arg]
        InvalidMessageError,
    )
    assert "'header' is not an option of a publish (did you mean 'headers'?; " in text
    assert "allowed: app_id, " in text


NOT_GIVEN = ["message_id", "headers", "persistent", "mandatory", "timeout", "delay"]


@pytest.mark.parametrize("name", NOT_GIVEN)
async def test_option_of_none_counts_as_not_given(name: str) -> None:
    async with Broker.create(CONFIG) as broker:
        options: Any = {name: None}
        publication = await broker.publish("orders", {}, **options)
        await publication
        subscription = await broker.subscribe("q")
        message, _, ack_or_nack = await anext(aiter(subscription))
        await ack_or_nack()
    assert message.message_id == publication.message_id
    assert message.message_id
    assert message.properties.delivery_mode == 2


@pytest.mark.parametrize("many", ["text", b"bytes", {"id": 7}, 7])
async def test_publish_many_of_a_single_content_is_refused(many: Any) -> None:
    text = await refuses(lambda broker: broker.publish_many("orders", many), InvalidMessageError)
    assert "which is one content; give a list" in text


async def test_publish_that_came_back_unnoticed_is_reported_before_the_program_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker.create(CONFIG) as broker:
        await broker.publish("orders", {}, "nobody.is.bound")
    gc.collect()
    assert "a publication failed, and nothing awaited it or listened" in caplog.text
    assert "nobody.is.bound" in caplog.text


# --------------------------------------------------------------------------- handlers


async def of_two(message: Any, content: Any) -> None: ...


async def of_all(message: Any, content: Any, ack_or_nack: Any) -> None: ...


@pytest.mark.parametrize("handler", [of_two, lambda content: None, "handler"])
async def test_handler_that_cannot_be_called_is_refused_as_it_is_given(handler: Any) -> None:
    text = await refuses(lambda broker: broker.subscribe("q", handler), InvalidHandlerError)
    assert "handler(message, content, ack_or_nack)" in text or "a function is needed" in text


async def test_coroutine_in_place_of_a_handler_is_refused() -> None:
    called = of_all(None, None, None)
    text = await refuses(lambda broker: broker.subscribe("q", called), InvalidHandlerError)  # type: ignore[arg-type]
    called.close()
    assert "function" in text


@pytest.mark.parametrize("handler", [of_all, lambda *args: None, lambda m, c, a, more=1: None])
async def test_handler_that_can_be_called_is_taken(handler: Any) -> None:
    async with Broker.create(CONFIG) as broker:
        assert (await broker.subscribe("q", handler)).has_listener("message")


async def test_handle_without_the_name_of_a_subscription_says_so() -> None:
    async def give(broker: Broker) -> None:
        broker.handle(of_two)  # type: ignore[arg-type]

    text = await refuses(give, InvalidHandlerError)
    assert 'of_two cannot handle messages: name the subscription: @broker.handle("...")' in text


async def test_handler_that_raises_is_logged_with_the_way_to_where_it_did(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(message: Any, content: Any, ack_or_nack: Any) -> None:
        raise KeyError("price")

    async with Broker.create(CONFIG) as broker:
        await broker.subscribe("q", handle)
        await broker.publish("orders", {})
        await eventually(lambda: "raised KeyError" in caplog.text)
    record = next(each for each in caplog.records if each.levelno == logging.ERROR)
    assert "raised KeyError: 'price'" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], KeyError)
