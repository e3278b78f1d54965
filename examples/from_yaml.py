"""Orders with a YAML file, config/embedded.yaml: the program declares nothing.

python examples/from_yaml.py [FILE]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from broker_client import AckOrNack, Broker, Message, Nack

CONFIG = Path(__file__).parents[1] / "config" / "embedded.yaml"


async def main(config: Path) -> None:
    open_orders = {1, 2, 3}
    all_done = asyncio.Event()

    def done(number: int) -> None:
        open_orders.discard(number)
        if not open_orders:
            all_done.set()

    async def fulfil(message: Message, order: dict[str, Any], ack_or_nack: AckOrNack) -> None:
        if order["item"] == "unicorn":
            # A retry would not help: dead-letter it, instead of the file's recovery chain.
            await ack_or_nack("there are none", Nack())
            return
        print(f"order {order['number']}: {order['item']} ({message.routing_key})")
        await ack_or_nack()
        done(order["number"])

    async def failed(message: Message, order: dict[str, Any], ack_or_nack: AckOrNack) -> None:
        print(f"order {order['number']}: {order['item']} cannot be had")
        await ack_or_nack()
        done(order["number"])

    async with Broker.create(config) as broker:
        await broker.subscribe("fulfil", fulfil)
        await broker.subscribe("failed", failed)
        await broker.publish("orders", {"number": 1, "item": "tea"})
        await broker.publish("orders", {"number": 2, "item": "milk"}, "order.changed")
        await broker.publish("orders", {"number": 3, "item": "unicorn"})
        await all_done.wait()


asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else CONFIG))
