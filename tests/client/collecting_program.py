"""A program that publishes three messages and collects them in a batch that is never full."""

from __future__ import annotations

import asyncio
import sys

from broker_client import Broker
from tests.support.eventually import eventually


async def main(url: str) -> None:
    config = {
        "vhosts": {
            "/": {
                "connection": url,
                "queues": ["work"],
                "subscriptions": {"work": {"queue": "work", "batch": {"size": 10, "wait": "1h"}}},
            }
        }
    }
    async with Broker.create(config) as broker:

        @broker.handle("work")
        async def work(numbers: list[int]) -> None:
            raise AssertionError(numbers)

        await broker.publish_many("/work", range(3))
        await eventually(lambda: broker.stats().subscriptions["work"].unsettled == 3)
        sys.stdout.write("collected\n")
        sys.stdout.flush()
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
