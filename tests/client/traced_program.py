"""A program of two roles, which prints its spans: publishes one message, or handles one."""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from broker_client import Broker


async def main(role: str, url: str) -> None:
    provider = TracerProvider()
    exporter = ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    config = {
        "tracing": {"process": "parent"},
        "vhosts": {
            "/": {
                "connection": url,
                "queues": {"orders": None},
                "publications": {"orders": {"queue": "orders"}},
                "subscriptions": {"orders": {"queue": "orders"}},
            }
        },
    }
    async with Broker.create(config) as broker:
        if role == "publish":
            with trace.get_tracer("app").start_as_current_span("request"):
                await (await broker.publish("orders", {"id": 7}))
        else:
            handled = asyncio.Event()

            @broker.handle("orders")
            async def handle(order: dict[str, int]) -> None:
                handled.set()

            await asyncio.wait_for(handled.wait(), 30)
    provider.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
