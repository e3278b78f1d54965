"""A small service: orders come in by HTTP, wait in a file, and are handled one after the other.

    BROKER_URL=embedded:///var/lib/app/broker.db PORT=8080 python examples/service.py
    curl -d '{"id": 7}' http://127.0.0.1:8080/orders

`/live` and `/ready` answer probes, `/metrics` is for Prometheus. SIGTERM and ctrl-C end it in
order: what is being handled is finished, what waits stays in the file. See docs/operating.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from broker_client import Broker, BrokerClientError, ConfigError, Router
from broker_client.asgi import health
from broker_client.metrics import BrokerCollector

CONFIG = Path(__file__).parents[1] / "config" / "service.yaml"
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"  # the journal knows the time

log = logging.getLogger("service")
router = Router(CONFIG)


@router.handle("fulfil")
async def fulfil(order: dict[str, int]) -> None:
    log.info("order %s is on its way", order["id"])


async def take_order(request: Request) -> Response:
    try:
        await (await request.state.broker.publish("orders", await request.json()))
    except ValueError:
        return PlainTextResponse("the body is no JSON\n", 400)
    except BrokerClientError as error:
        log.warning("order not taken: %s", error)
        return PlainTextResponse(f"{error}\n", 503)
    return Response(status_code=202)  # on the disk: it will be handled


async def show_metrics(request: Request) -> Response:
    return PlainTextResponse(generate_latest(request.state.metrics))


ROUTES = [
    Route("/orders", take_order, methods=["POST"]),
    Route("/metrics", show_metrics),
    Mount("/", health),  # /live and /ready
]


async def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again at its end
        asyncio.get_running_loop().add_signal_handler(number, log.info, "ending")

    async with Broker.create(CONFIG) as broker:
        metrics = CollectorRegistry()
        metrics.register(BrokerCollector(broker))
        broker.on("error", lambda error, vhost: log.error("vhost %s: %s", vhost, error))
        broker.include(router)

        @asynccontextmanager
        async def state(app: Starlette) -> AsyncIterator[dict[str, Any]]:
            yield {"broker": broker, "metrics": metrics}

        port = int(os.environ.get("PORT", "8080"))
        app = Starlette(routes=ROUTES, lifespan=state)
        await uvicorn.Server(uvicorn.Config(app, port=port, log_config=None)).serve()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # says what our events say, longer
    try:
        asyncio.run(main())
    except ConfigError as error:
        sys.exit(str(error))
    except BrokerClientError as error:
        sys.exit(f"cannot start: {error}")
