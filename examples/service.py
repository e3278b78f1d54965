"""A small service: orders come in by HTTP, wait in a file, and are handled one after the other.

    BROKER_URL=embedded:///var/lib/app/broker.db PORT=8080 python examples/service.py
    curl -d '{"id": 7}' http://127.0.0.1:8080/orders

`/health/live` and `/health/ready` answer probes, `/metrics/` is for Prometheus. SIGTERM and Ctrl-C
shut it down gracefully: running handlers finish, waiting messages stay in the file. Its tests are
in test_service.py; docs/operating.md describes how to run it.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from broker_client import BrokerClientError, Router
from broker_client.asgi import health, lifespan

log = logging.getLogger("service")
router = Router(Path(__file__).parents[1] / "config" / "service.yaml")
registry = CollectorRegistry()


@router.handle("fulfil")
async def fulfil(order: dict[str, int]) -> None:
    log.info("order %s is on its way", order["id"])


async def take_order(request: Request) -> Response:
    try:
        await (await request.state.broker.publish("orders", await request.json()))
    except ValueError:
        return PlainTextResponse("the body is not JSON\n", 400)
    except BrokerClientError as error:
        return PlainTextResponse(f"{error}\n", 503)
    return Response(status_code=202)  # on the disk: it will be handled


app = Starlette(
    routes=[
        Route("/orders", take_order, methods=["POST"]),
        Mount("/health", health),
        Mount("/metrics", make_asgi_app(registry)),
    ],
    lifespan=lifespan(router, registry=registry),
)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    uvicorn.run(app, port=int(os.environ.get("PORT", "8080")), log_config=None)
