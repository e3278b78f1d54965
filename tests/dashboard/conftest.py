"""The dashboard on a port, in front of a node of ours and of a RabbitMQ, and browsers of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from broker_client.dashboard.api import Account, ManagementApi
from broker_client.dashboard.application import make_application
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.dashboard import Dashboard
from broker_client.node.node import Node
from broker_client.server.http.listener import AsgiListener
from tests.support.rabbitmq import RabbitMQ
from tests.support.served_node import served_node

GUEST = httpx.BasicAuth("guest", "guest")


class Page:
    """A client like a browser: it keeps the cookie, and sends the token."""

    def __init__(self, url: str) -> None:
        self.client = httpx.AsyncClient(base_url=f"{url}/ui/", timeout=60)
        self.csrf = ""

    async def log_in(self, user: str = "guest", password: str = "guest") -> dict[str, Any]:
        """The answer to a login, which must succeed."""
        response = await self.client.post("login", json={"user": user, "password": password})
        assert response.status_code == 200, response.text
        session: dict[str, Any] = response.json()
        self.csrf = session["csrf"]
        return session

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The response, of any status."""
        headers = {} if method == "GET" else {"x-csrf-token": self.csrf}
        return await self.client.request(method, path, json=body, headers=headers)

    async def get(self, path: str) -> Any:
        """The JSON answer; the status must be 200."""
        response = await self.ask("GET", path)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None) -> Any:
        """The JSON answer; the status must be one of success."""
        response = await self.ask("POST", path, body or {})
        assert response.status_code in (200, 201, 202, 204), response.text
        return response.json() if response.content else None


@dataclass
class Shown:
    """A served dashboard, and access to its broker."""

    dashboard: Dashboard
    url: str
    management: httpx.AsyncClient
    """A client of the management API, logged in as guest."""
    amqp_port: int
    vhost: str
    """A new one, for this test."""
    is_rabbitmq: bool
    page: Page
    """Logged in as guest."""
    node: Node | None = None

    @property
    def v(self) -> str:
        """The vhost as a part of a path."""
        return encoded(self.vhost)

    def amqp_url(self, user: str = "guest") -> str:
        return f"amqp://{user}:{user}@127.0.0.1:{self.amqp_port}/{self.v}"

    async def declare(self, name: str, **body: Any) -> None:
        """A queue of the test's vhost."""
        path = f"/api/queues/{self.v}/{encoded(name)}"
        response = await self.management.put(path, json=body)
        assert response.status_code in (201, 204), response.text

    async def publish(self, key: str, payload: str = "x", exchange: str = "", **more: Any) -> bool:
        """Publish a message through the API."""
        body = {"properties": {}, "routing_key": key, "payload": payload, **more}
        body.setdefault("payload_encoding", "string")
        path = f"/api/exchanges/{self.v}/{encoded(exchange or 'amq.default')}/publish"
        response = await self.management.post(path, json=body)
        assert response.status_code == 200, response.text
        return bool(response.json()["routed"])

    async def user(self, name: str, tags: str, *, permitted: bool = True) -> None:
        """Add a user whose password is its name."""
        response = await self.management.put(
            f"/api/users/{name}", json={"password": name, "tags": tags}
        )
        assert response.status_code in (201, 204), response.text
        if permitted:
            every = {"configure": ".*", "write": ".*", "read": ".*"}
            response = await self.management.put(f"/api/permissions/{self.v}/{name}", json=every)
            assert response.status_code in (201, 204), response.text

    @contextlib.asynccontextmanager
    async def another_page(self, user: str = "") -> AsyncIterator[Page]:
        """Another browser, logged in as `user` if one is given."""
        page = Page(self.url)
        async with page.client:
            if user:
                await page.log_in(user, user)
            yield page


def encoded(name: str) -> str:
    """`name` as a part of a path."""
    return quote(name, safe="")


@contextlib.asynccontextmanager
async def shown_node(base_path: str = "") -> AsyncIterator[Shown]:
    """The dashboard of a node of ours."""
    async with served_node(base_path) as served:
        client = httpx.AsyncClient(base_url=served.url, auth=GUEST, timeout=60)
        around = served.dashboard, served.url, served.amqp_port, base_path
        async with client, _in_a_vhost(client, *around) as shown:
            shown.node = served.node
            yield shown


@contextlib.asynccontextmanager
async def shown_rabbitmq(server: RabbitMQ, watching: str = "guest") -> AsyncIterator[Shown]:
    """The dashboard of a running RabbitMQ; a `watching` user other than guest is added, with the
    tag monitoring."""
    url = f"http://127.0.0.1:{server.management_port}"
    api = ManagementApi.over_http(url)
    account = Account(Credentials(watching, watching))
    if watching != "guest":
        async with httpx.AsyncClient(base_url=url, auth=GUEST) as client:
            body = {"password": watching, "tags": "monitoring"}
            await client.put(f"/api/users/{watching}", json=body)
    dashboard = Dashboard(api, api, account, amqp=f"amqp://127.0.0.1:{server.port}")
    listener = AsgiListener(make_application(dashboard), "127.0.0.1", 0)
    await listener.start()
    dashboard.start()
    client = httpx.AsyncClient(base_url=url, auth=GUEST, timeout=60)
    try:
        async with client, _in_a_vhost(client, dashboard, listener.url, server.port, "") as shown:
            shown.is_rabbitmq = True
            yield shown
    finally:
        await dashboard.stop()
        await listener.stop()


@contextlib.asynccontextmanager
async def _in_a_vhost(
    client: httpx.AsyncClient, dashboard: Dashboard, url: str, amqp_port: int, base_path: str
) -> AsyncIterator[Shown]:
    vhost = f"test/{uuid4().hex[:8]} %"
    response = await client.put(f"/api/vhosts/{encoded(vhost)}")
    assert response.status_code == 201, response.text
    page = Page(url + base_path)
    async with page.client:
        await page.log_in()
        yield Shown(dashboard, url + base_path, client, amqp_port, vhost, False, page)
    await client.delete(f"/api/vhosts/{encoded(vhost)}")


@pytest.fixture
async def ours() -> AsyncIterator[Shown]:
    async with shown_node() as shown:
        yield shown


@pytest.fixture
async def on_rabbitmq(rabbitmq: RabbitMQ) -> AsyncIterator[Shown]:
    async with shown_rabbitmq(rabbitmq) as shown:
        yield shown


@pytest.fixture(params=["ours", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def shown(request: pytest.FixtureRequest) -> AsyncIterator[Shown]:
    """Both, one after the other."""
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "ours":
            yield await stack.enter_async_context(shown_node())
        else:
            server: RabbitMQ = request.getfixturevalue("rabbitmq")
            yield await stack.enter_async_context(shown_rabbitmq(server))
