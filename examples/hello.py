import asyncio
from typing import Any

from broker_client import AckOrNack, Broker, Message

VHOST = {
    "connection": "embedded://",
    "exchanges": ["orders", "dead-letters"],
    "queues": {"kitchen": {"options": {"dead_letter_exchange": "dead-letters"}}, "failed": {}},
    "bindings": ["orders[order.*] -> kitchen", "dead-letters -> failed"],
    "publications": {"orders": {"exchange": "orders"}},
    "subscriptions": {
        "kitchen": {
            "queue": "kitchen",
            "recovery": [  # if the handler raises
                {"strategy": "republish", "defer": "100ms", "attempts": 2},
                {"strategy": "nack"},  # to the dead letters
            ],
        }
    },
}


async def main() -> None:
    cooked = asyncio.Event()

    async def cook(message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        print(message.routing_key, content)
        await ack_or_nack()
        cooked.set()

    async with Broker.create({"vhosts": {"/": VHOST}}) as broker:
        await broker.subscribe("kitchen", cook)
        publication = await broker.publish("orders", {"pizza": 2}, "order.new")
        await publication  # the broker has it
        await cooked.wait()


asyncio.run(main())
