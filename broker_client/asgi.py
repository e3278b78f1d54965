"""A Broker in an ASGI application, with Starlette, FastAPI or without a framework.

::

    app = FastAPI(lifespan=lifespan("app.yaml", router))
    app.mount("/health", health)

    @app.post("/orders")
    async def order(request: Request) -> None:
        await (await request.state.broker.publish("orders", await request.json()))
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import TYPE_CHECKING, Any

from broker_client.broker import Broker
from broker_client.config.loader import Source
from broker_client.router import Router

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]


def lifespan(
    source: Source | Router, *routers: Router, registry: CollectorRegistry | None = None
) -> Lifespan:
    """The `lifespan` of a Starlette or FastAPI application, with a Broker that is open while it
    runs.

    Requests have it as ``request.state.broker``. If it cannot be created, the application sends
    ``lifespan.startup.failed``, and its server exits.

    Args:
        source: a configuration, or a `Router` that has one.
        routers: included in the Broker.
        registry: registers the Broker's metrics while it runs (extra `prometheus`);
            ``prometheus_client.make_asgi_app(registry)`` serves them.
    """
    if isinstance(source, Router):
        routers = (source, *routers)
        source = configuration_of(source)
    config = source

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        async with Broker.create(config) as broker:
            with nullcontext() if registry is None else _measured(broker, registry):
                for router in routers:
                    broker.include(router)
                yield {"broker": broker}

    return run


@contextmanager
def _measured(broker: Broker, registry: CollectorRegistry) -> Iterator[None]:
    from broker_client.metrics import BrokerCollector

    collector = BrokerCollector(broker)
    registry.register(collector)
    try:
        yield
    finally:
        registry.unregister(collector)


def configuration_of(router: Router) -> Source:
    """The configuration of a router that can run as a program.

    Raises:
        ValueError: it has none.
    """
    if router.config is None:
        raise ValueError("this Router has no configuration: write Router('app.yaml')")
    return router.config


async def health(scope: Scope, receive: Receive, send: Send) -> None:
    """An ASGI application with the probes ``/live`` and ``/ready``, to be mounted.

    It answers 200 or 503 with the state of each connection as JSON, without passwords. It
    reports the Broker of `lifespan`; without one it answers 503.
    """
    if scope["type"] != "http":
        return
    path = scope["path"].rpartition("/")[2]
    if path not in ("live", "ready") or scope["method"] not in ("GET", "HEAD"):
        await _answer(send, 404, {"error": "GET /live or /ready"})
        return
    broker = scope.get("state", {}).get("broker")
    if broker is None:
        await _answer(send, 503, {path: False, "error": "no Broker: use its lifespan"})
        return
    state = broker.health()
    is_well = state.live if path == "live" else state.ready
    connections = [
        {"vhost": name, "role": each.role, "url": each.url, "state": each.state}
        | ({"last_error": each.last_error} if each.last_error else {})
        | ({"blocked": each.blocked} if each.blocked else {})
        for name, vhost in state.vhosts.items()
        for each in vhost.connections
    ]
    await _answer(send, 200 if is_well else 503, {path: is_well, "connections": connections})


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
