"""A process with an outbox: prints `up`, publishes on request, and prints each accepted message."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from broker_client import Broker

MESSAGES = 2_000


def a_config(url: str, outbox: str) -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {
                "connection": {"url": url, "retry": {"min": "20ms", "max": "100ms"}},
                "queues": ["record"],
                "publications": {"orders": {"queue": "record"}},
                "publish_queue": {"outbox": outbox},
            }
        }
    }


async def main(url: str, outbox: str) -> None:
    broker = await Broker.create(a_config(url, outbox))
    broker.on("error", lambda error, vhost: None)
    say("up")
    await asyncio.to_thread(sys.stdin.readline)
    for number in range(MESSAGES):
        await broker.publish("orders", number, message_id=f"m{number}")
        say(f"m{number}")
    say("done")
    await asyncio.Event().wait()


def say(word: str) -> None:
    print(word, flush=True)  # noqa: T201 - the other side reads it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
