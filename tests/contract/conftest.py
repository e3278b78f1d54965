"""Every contract test runs on the built-in broker, in this process and on a port, and on RabbitMQ,
in a vhost of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from broker_client.core.settings import NEWEST, EngineSettings
from broker_client.transport.base import Channel, Connector, Link
from broker_client.transport.embedded.nodes import EmbeddedNodes, NodeAddress
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.contract.observers import Watch
from tests.support.listening import Listening
from tests.support.rabbitmq import RabbitMQ

TRANSPORTS = ["embedded", "file", "server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)]
EVERY_VERSION = ["embedded as 3.10", *TRANSPORTS]
"""Parameters for `place`, including the built-in broker with the behaviour of an older RabbitMQ."""

IN_THIS_PROCESS = ["embedded", "file"]
"""Parameters for `place`, for what AMQP has no word for."""

CONNECT_TIMEOUT = 30.0

EMBEDDED_FOLLOWS = NEWEST
"""The RabbitMQ version that the built-in broker follows, where versions differ."""


@dataclass(frozen=True, slots=True)
class Place:
    """An empty vhost of one of the brokers."""

    transport: str
    connector: Connector
    cut: Callable[[], Awaitable[Any]]
    """Close all its connections from the broker's side."""
    version: tuple[int, ...] = EMBEDDED_FOLLOWS
    """Version of this RabbitMQ, or of the one that the built-in broker follows."""


@pytest.fixture(params=TRANSPORTS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "embedded":
        nodes = EmbeddedNodes()
        yield Place("embedded", nodes.connector("embedded://", "/"), nodes.close)
        await nodes.close()
        return
    if request.param == "embedded as 3.10":
        nodes = EmbeddedNodes(settings=EngineSettings(compatibility=(3, 10)))
        yield Place("embedded", nodes.connector("embedded://", "/"), nodes.close, (3, 10))
        await nodes.close()
        return
    if request.param == "file":
        # The same broker, with every message on disk only, as soon as possible.
        nodes = EmbeddedNodes(settings=EngineSettings(memory_limit=0))
        path = request.getfixturevalue("tmp_path") / "node.db"

        async def cut() -> None:
            (await nodes.open(NodeAddress("", str(path)))).stop()

        yield Place("embedded", nodes.connector(f"embedded://{path}", "/"), cut)
        await nodes.close()
        return
    if request.param == "server":
        # The built-in broker on a port; the client's side is the one that speaks to RabbitMQ.
        async with Listening.started() as listening:

            async def cut_server() -> None:
                listening.server.close_connections()

            yield Place(
                "server",
                NetworkConnector(listening.url, vhost="/", heartbeat=10),
                cut_server,
            )
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    connector = NetworkConnector(server.url(), vhost=vhost, heartbeat=10)
    yield Place(
        "rabbitmq",
        connector,
        lambda: asyncio.to_thread(server.close_connections),
        server.version,
    )
    server.delete_vhost(vhost)


@pytest.fixture
def connector(place: Place) -> Connector:
    return place.connector


@pytest.fixture
async def link(connector: Connector) -> AsyncIterator[Link]:
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    yield link
    await link.close()


@pytest.fixture
async def other_link(connector: Connector) -> AsyncIterator[Link]:
    """A second connection, as of another application."""
    link = await connector.connect(timeout=CONNECT_TIMEOUT)
    yield link
    await link.close()


@pytest.fixture
async def watch(link: Link) -> Watch:
    """A channel with confirms, and its observer."""
    return await Watch.open(link)


@pytest.fixture
def channel(watch: Watch) -> Channel:
    """The observed channel itself."""
    return watch.channel


@pytest.fixture
async def queue(channel: Channel) -> str:
    """A plain queue, ``q``."""
    await channel.declare_queue("q")
    return "q"
