"""The possible outcomes of a publish, as events and by awaiting it.

python examples/returns.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

from broker_client import Broker, MessageReturnedError, Publication

URL = sys.argv[1] if len(sys.argv) > 1 else "embedded://"
CONFIG = {
    "vhosts": {
        "/": {
            "connection": URL,
            "exchanges": ["returns-example"],
            "queues": {"returns-example": {"purge": True}},
            "bindings": ["returns-example[order.*] -> returns-example"],
            "publications": {"orders": {"exchange": "returns-example"}},
        }
    }
}


def listen(publication: Publication, name: str) -> Publication:
    return (
        publication.on("success", lambda message_id: print(f"{name}: success"))
        .on("return", lambda message: print(f"{name}: return, {message.reply_text}"))
        .on("error", lambda error, message_id: print(f"{name}: error, {error}"))
        .on("paused", lambda message_id: print(f"{name}: paused"))
    )


async def main() -> None:
    async with Broker.create(CONFIG) as broker:
        await listen(await broker.publish("orders", "tea", "order.new"), "bound key")

        try:
            await listen(await broker.publish("orders", "tea", "nobody.cares"), "unbound key")
        except MessageReturnedError as error:
            print(f"unbound key: awaiting it raises {type(error).__name__}")

        # While the link is down, a publish waits; it is sent when the link is up again.
        down = asyncio.Event()
        broker.on("disconnect", lambda vhost, url: down.set()).on("error", lambda *error: None)
        bounced = asyncio.create_task(broker.bounce())
        await down.wait()
        await listen(await broker.publish("orders", "tea", "order.new"), "link down")
        await bounced
        print(f"{await broker.purge()} messages were in the queue")


asyncio.run(main())
