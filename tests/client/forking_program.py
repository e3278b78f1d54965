"""A program with a Broker that forks: the child exits, the parent continues, and prints its results
as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings

from broker_client import AckOrNack, Broker, Message
from tests.support.eventually import eventually

_COUNT = 20


async def main(url: str, how: str) -> None:
    vhost = {
        "connection": {"url": url, "heartbeat": "5s"},
        "queues": {"q": {"options": {"dead_letter_exchange": ""}}},
        "subscriptions": {"q": {"queue": "q"}},
    }
    handled: list[int] = []
    async with Broker.create({"vhosts": {"/": vhost}}) as broker:

        async def handle(message: Message, content: int, ack_or_nack: AckOrNack) -> None:
            await ack_or_nack()
            handled.append(content)

        await broker.subscribe("q", handle)
        await broker.publish_many("/q", [0])
        await eventually(lambda: handled == [0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: threads and fork
            child = os.fork()
        if not child:
            if how == "exits":
                sys.exit(7)
            return  # unwinds the block, and the loop with it
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        for number in range(1, _COUNT):
            await (await broker.publish("/q", number))
        await eventually(lambda: len(handled) == _COUNT)
        connects = broker.stats().vhosts["/"].connects
    seen = {
        "child": os.waitstatus_to_exitcode(status),
        "in_order": handled == list(range(_COUNT)),
        "connects": connects,
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
