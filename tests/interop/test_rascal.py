"""Queues shared with node's rascal 21: bodies encrypted by one are read by the other, and each
knows of the other's failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker_client import AckOrNack, Broker, Message
from tests.interop.conftest import RunRascal
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served

pytestmark = pytest.mark.timeout(180)

KEY = "0123456789abcdef" * 4
TEXTS: list[Any] = ["", "plain text with ü and 😀", {"order": 7, "lines": [1, 2.5, None]}]


@pytest.fixture(params=[pytest.param("rabbitmq", marks=pytest.mark.rabbitmq), "server"])
def server(request: pytest.FixtureRequest) -> Iterator[RabbitMQ | Served]:
    """RabbitMQ, or the built-in broker on a port."""
    if request.param == "rabbitmq":
        yield request.getfixturevalue("rabbitmq")
        return
    with Served() as served:
        yield served


@pytest.fixture
def vhost(server: RabbitMQ | Served) -> Iterator[str]:
    if isinstance(server, Served):
        yield "/"
        return
    name = server.make_vhost()
    yield name
    server.delete_vhost(name)


@pytest.fixture
async def broker(server: RabbitMQ | Served, vhost: str) -> AsyncIterator[Broker]:
    config = {
        "encryption": {"v1": {"key": KEY, "algorithm": "aes-256-cbc", "iv_length": 16}},
        "vhosts": {
            "/": {
                "connection": server.url(vhost),
                "exchanges": ["orders"],
                "queues": ["q"],
                "bindings": ["orders[order.#] -> q"],
                "publications": {
                    "orders": {"exchange": "orders"},
                    "secret": {"exchange": "orders", "encryption": "v1"},
                },
                "subscriptions": {"q": {"queue": "q", "close_timeout": "200ms"}},
            }
        },
    }
    async with Broker.create(config) as broker:
        yield broker


def rascal_config(server: RabbitMQ | Served, vhost: str) -> dict[str, Any]:
    return {
        "encryption": {"v1": {"key": KEY, "algorithm": "aes-256-cbc", "ivLength": 16}},
        "vhosts": {
            vhost: {
                "connection": {"url": server.url(vhost)},
                "exchanges": ["orders"],
                "queues": ["q"],
                "bindings": ["orders[order.#] -> q"],
                "publications": {
                    "orders": {"exchange": "orders"},
                    "secret": {"exchange": "orders", "encryption": "v1"},
                },
                "subscriptions": {"q": {"queue": "q", "closeTimeout": 200}},
            }
        },
    }


async def received(broker: Broker, count: int) -> list[tuple[Message, Any]]:
    """The first `count` messages, acked."""
    seen: list[tuple[Message, Any]] = []

    async def keep(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        seen.append((message, content))
        await ack_or_nack()

    subscription = await broker.subscribe("q", keep)
    await eventually(lambda: len(seen) >= count)
    await subscription.cancel()
    return seen


async def test_body_encrypted_by_rascal_is_read_here(
    broker: Broker, server: RabbitMQ | Served, vhost: str, run_rascal: RunRascal
) -> None:
    messages = [{"body": body, "key": "order.secret"} for body in TEXTS]
    job = {"do": "publish", "publication": "secret", "messages": messages}
    await run_rascal({**job, "config": rascal_config(server, vhost)})
    seen = await received(broker, len(TEXTS))
    assert [content for _, content in seen] == TEXTS
    assert all(message.content_type == "application/octet-stream" for message, _ in seen)


async def test_body_encrypted_here_is_read_by_rascal(
    broker: Broker, server: RabbitMQ | Served, vhost: str, run_rascal: RunRascal
) -> None:
    for body in TEXTS:
        await (await broker.publish("secret", body, "order.secret"))
    job = {"do": "consume", "subscription": "q", "count": len(TEXTS)}
    seen = await run_rascal({**job, "config": rascal_config(server, vhost)})
    assert [each["content"] for each in seen] == TEXTS


async def test_message_republished_by_rascal_shows_its_past_here(
    broker: Broker, server: RabbitMQ | Served, vhost: str, run_rascal: RunRascal
) -> None:
    await (await broker.publish("orders", "poison", "order.new", message_id="m1"))
    job = {
        "do": "consume",
        "subscription": "q",
        "count": 2,
        "fail": [{"strategy": "republish", "defer": 10, "attempts": 5}],
    }
    await run_rascal({**job, "config": rascal_config(server, vhost)})
    [(message, content)] = await received(broker, 1)
    assert (content, message.message_id, message.republished) == ("poison", "m1", 2)
    assert (message.exchange, message.routing_key) == ("orders", "order.new")
    assert message.headers["rascal"]["error"]["message"] == "failed in node"


async def test_message_republished_here_shows_its_past_to_rascal(
    broker: Broker, server: RabbitMQ | Served, vhost: str, run_rascal: RunRascal
) -> None:
    seen = 0
    done = asyncio.Event()

    async def fail(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        nonlocal seen
        seen += 1
        if seen > 2:
            return  # unsettled: requeued when the subscription ends
        await ack_or_nack(ValueError("failed in Python"), {"strategy": "republish", "attempts": 5})
        if message.republished == 1:
            done.set()

    subscription = await broker.subscribe("q")
    await (await broker.publish("orders", "poison", "order.new", message_id="m1"))
    subscription.on("message", fail)
    await asyncio.wait_for(done.wait(), 60.0)
    await subscription.cancel()
    job = {"do": "consume", "subscription": "q", "count": 1}
    [message] = await run_rascal({**job, "config": rascal_config(server, vhost)})
    assert (message["exchange"], message["key"]) == ("orders", "order.new")
    history = message["properties"]["headers"]["rascal"]
    assert history["recovery"]["q"]["republished"] == 2
    assert history["error"]["message"] == "failed in Python"
    assert message["properties"]["messageId"] == "m1"
