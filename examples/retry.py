"""A handler that fails, and the recovery chain of its subscription.

The first order succeeds at its third delivery. The second never does: after two retries it goes
to the dead-letter exchange, with the history of what happened in its headers.

    python examples/retry.py [URL]
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from broker_client import AckOrNack, Broker, Message

URL = sys.argv[1] if len(sys.argv) > 1 else "embedded://"
CONFIG = {
    "vhosts": {
        "/": {
            "connection": URL,
            "exchanges": ["dead-letters"],
            "queues": {
                "retry-example": {
                    "purge": True,
                    "options": {"dead_letter_exchange": "dead-letters"},
                },
                "retry-example-failed": {"purge": True},
            },
            "bindings": ["dead-letters[retry-example] -> retry-example-failed"],
            "publications": {"order": {"queue": "retry-example"}},
            "subscriptions": {
                "fulfil": {"queue": "retry-example", "recovery": "patient"},
                "failed": {"queue": "retry-example-failed"},
            },
        }
    },
    "recovery": {
        "patient": [
            {"strategy": "republish", "defer": "100ms", "attempts": 2},
            {"strategy": "nack"},
        ]
    },
}


async def main() -> None:
    open_orders = {"tea", "unicorn"}
    all_done = asyncio.Event()

    def done(item: str) -> None:
        open_orders.discard(item)
        if not open_orders:
            all_done.set()

    async def fulfil(message: Message, item: str, ack_or_nack: AckOrNack) -> None:
        attempt = message.republished + 1
        if item == "unicorn" or attempt < 3:
            print(f"{item}: attempt {attempt} fails")
            raise LookupError("out of stock")  # not settled: the recovery chain runs
        print(f"{item}: attempt {attempt} succeeds")
        await ack_or_nack()
        done(item)

    async def failed(message: Message, item: str, ack_or_nack: AckOrNack) -> None:
        why: Any = message.headers["rascal"]["error"]["message"]
        print(f"{item}: dead-lettered after {message.headers['x-death'][0]['reason']}: {why}")
        await ack_or_nack()
        done(item)

    async with Broker.create(CONFIG) as broker:
        subscription = await broker.subscribe("fulfil", fulfil)
        subscription.on("error", lambda error: None)  # without a listener it would be logged
        await broker.subscribe("failed", failed)
        for item in sorted(open_orders):
            await broker.publish("order", item)
        await all_done.wait()


asyncio.run(main())
