"""A small service: orders come in by HTTP, wait in a file, and are handled one after the other.

    BROKER_URL=embedded:///var/lib/app/broker.db PORT=8080 python examples/service.py
    curl -d '{"id": 7}' http://127.0.0.1:8080/orders

`/live` and `/ready` answer probes, `/metrics` is for Prometheus. SIGTERM and ctrl-C end it in
order: what is being handled is finished, what waits stays in the file. See docs/operating.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from broker_client import Broker, BrokerClientError, ConfigError
from broker_client.metrics import BrokerCollector

CONFIG = Path(__file__).parents[1] / "config" / "service.yaml"
LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"  # the journal knows the time

log = logging.getLogger("service")


async def respond(
    broker: Broker, metrics: CollectorRegistry, method: str, path: str, body: bytes
) -> tuple[int, str]:
    """Status and text of the answer to one request."""
    match method, path:
        case "GET", "/live":
            return (200 if broker.health().live else 503), ""
        case "GET", "/ready":
            return (200 if broker.health().ready else 503), ""
        case "GET", "/metrics":
            return 200, generate_latest(metrics).decode()
        case "POST", "/orders":
            try:
                await (await broker.publish("orders", json.loads(body)))
            except ValueError:
                return 400, "the body is no JSON\n"
            except BrokerClientError as error:
                log.warning("order not taken: %s", error)
                return 503, f"{error}\n"
            return 202, ""  # on the disk: it will be handled
    return 404, ""


async def serve(
    broker: Broker,
    metrics: CollectorRegistry,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Answer one request; a real service has a web framework for this."""
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, OSError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, *_ = head[0].split(" ")
        status, text = await respond(broker, metrics, method, path, body)
        writer.write(
            f"HTTP/1.1 {status} \r\nContent-Length: {len(text.encode())}\r\n"
            f"Connection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async with Broker.create(CONFIG) as broker:
        metrics = CollectorRegistry()
        metrics.register(BrokerCollector(broker))
        broker.on("error", lambda error, vhost: log.error("vhost %s: %s", vhost, error))

        @broker.handle("fulfil")
        async def fulfil(order: dict[str, int]) -> None:
            log.info("order %s is on its way", order["id"])

        port = int(os.environ.get("PORT", "8080"))
        server = await asyncio.start_server(partial(serve, broker, metrics), "127.0.0.1", port)
        async with server:
            log.info("listening on port %d", server.sockets[0].getsockname()[1])
            await stop.wait()
        log.info("ending")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # says what our events say, longer
    try:
        asyncio.run(main())
    except ConfigError as error:
        sys.exit(str(error))
    except BrokerClientError as error:
        sys.exit(f"cannot start: {error}")
