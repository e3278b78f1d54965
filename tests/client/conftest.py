"""The client on the built-in broker, in its process and on a port, and on RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from broker_client import Broker
from tests.support.listening import Listening
from tests.support.rabbitmq import RabbitMQ

BROKERS = ["embedded", "server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)]


@pytest.fixture(params=BROKERS)
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """An address whose vhost is empty."""
    if request.param == "embedded":
        yield "embedded://"
        return
    if request.param == "server":
        async with Listening.started() as listening:
            yield listening.url
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    yield server.url(vhost)
    server.delete_vhost(vhost)


StartBroker = Callable[[Mapping[str, Any]], Awaitable[Broker]]


@pytest.fixture
async def start(url: str) -> AsyncIterator[StartBroker]:
    """Starts a Broker on `url`; takes its vhost ``/`` and further root keys of the
    configuration."""
    brokers: list[Broker] = []

    async def start(config: Mapping[str, Any]) -> Broker:
        root = {key: value for key, value in config.items() if key in ROOT_KEYS}
        vhost = {key: value for key, value in config.items() if key not in ROOT_KEYS}
        retry = {"min": "20ms", "max": "100ms"}
        connection = {"url": url, "retry": retry}
        broker = await Broker.create({**root, "vhosts": {"/": {"connection": connection, **vhost}}})
        brokers.append(broker)
        return broker

    yield start
    for broker in brokers:
        await broker.shutdown()


ROOT_KEYS = (
    "encryption",
    "schedules",
    "recovery",
    "shovels",
    "redeliveries",
    "node",
    "defaults",
    "tracing",
)
