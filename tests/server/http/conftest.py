"""The management API in front of a node in this process, and RabbitMQ's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from broker_client.config.listen import parse_listen_address
from broker_client.config.server import ServerConfig
from broker_client.node.node import Node
from broker_client.server.http.listener import HttpListener
from broker_client.server.http.management import Management
from broker_client.server.server import Server
from tests.support.rabbitmq import RabbitMQ

GUEST = httpx.BasicAuth("guest", "guest")


@dataclass
class Api:
    """A node with a server and the management API, and a client of it."""

    node: Node
    server: Server
    management: Management
    client: httpx.AsyncClient
    """Logged in as guest."""
    url: str

    def amqp_url(self, vhost: str = "/", user: str = "guest") -> str:
        port = self.server.addresses[0].port
        return f"amqp://{user}:{user}@127.0.0.1:{port}/{quote(vhost, safe='')}"

    def login(self, user: str, *tags: str, vhost: str | None = "/") -> httpx.BasicAuth:
        """A new user, whose password is its name."""
        self.node.access.add_user(user, user, tags=tags)
        if vhost is not None:
            self.node.access.set_permissions(user, vhost, configure=".*", write=".*", read=".*")
        return httpx.BasicAuth(user, user)


@contextlib.asynccontextmanager
async def an_api() -> AsyncIterator[Api]:
    node = Node()
    node.administration.add_vhost("/")
    node.access.add_default_user()
    server = Server(node, [parse_listen_address("amqp://127.0.0.1:0")], ServerConfig())
    await server.start()
    listening = [(each.scheme, each.host, each.port) for each in server.addresses]
    management = Management(node, server, listening)
    listener = HttpListener(management, "127.0.0.1", 0)
    await listener.start()
    async with httpx.AsyncClient(base_url=listener.url, auth=GUEST, timeout=60) as client:
        yield Api(node, server, management, client, listener.url)
    await listener.stop()
    await server.stop()
    await node.close()


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with an_api() as made:
        yield made


@dataclass
class Managed:
    """A management API, ours or RabbitMQ's, with a vhost of the test."""

    client: httpx.AsyncClient
    vhost: str
    is_rabbitmq: bool
    version: tuple[int, ...] = ()
    """Of RabbitMQ."""

    @property
    def is_rabbitmq_4(self) -> bool:
        return self.is_rabbitmq and self.version >= (4, 0)

    def path(self, text: str) -> str:
        """`text` under /api, with ``{v}`` for the vhost."""
        return f"/api/{text.format(v=quote(self.vhost, safe=''))}"


@pytest.fixture(params=["ours", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def managed(request: pytest.FixtureRequest) -> AsyncIterator[Managed]:
    vhost = f"test/{uuid4().hex[:8]} %"
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "ours":
            client = (await stack.enter_async_context(an_api())).client
        else:
            server: RabbitMQ = request.getfixturevalue("rabbitmq")
            url = f"http://127.0.0.1:{server.management_port}"
            client = httpx.AsyncClient(base_url=url, auth=GUEST, timeout=60)
            await stack.enter_async_context(client)
        is_rabbitmq = request.param == "rabbitmq"
        version = request.getfixturevalue("rabbitmq").version if is_rabbitmq else ()
        managed = Managed(client, vhost, is_rabbitmq, version)
        response = await client.put(managed.path("vhosts/{v}"))
        assert response.status_code == 201, response.text
        yield managed
        await client.delete(managed.path("vhosts/{v}"))
