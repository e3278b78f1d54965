"""FastStream on RabbitMQ: `broker.publish` in a window, and a subscriber that acks."""

from __future__ import annotations

import importlib
from typing import Any

from bench.peers.load import BODY, PREFETCH, QUEUE, Countdown, Seconds, in_window, run, timed

# Imported by name, since it may not be installed.
faststream: Any = importlib.import_module("faststream")
rabbit: Any = importlib.import_module("faststream.rabbit")


async def measure(url: str, count: int) -> Seconds:
    countdown = Countdown(count)
    queue = rabbit.RabbitQueue(QUEUE, durable=True)
    channel = rabbit.Channel(prefetch_count=PREFETCH)
    broker = rabbit.RabbitBroker(url, default_channel=channel, logger=None)

    async def publish() -> None:
        await broker.publish(BODY, queue, persist=True)

    async def handle(message: Any) -> None:
        await message.ack()
        countdown.one()

    async def consume_all() -> None:
        subscriber = broker.subscriber(queue, ack_policy=faststream.AckPolicy.MANUAL)
        subscriber(_annotated(handle))
        await subscriber.start()
        await countdown.wait()

    await broker.start()
    await broker.declare_queue(queue)
    try:
        return Seconds(await timed(in_window(publish, count)), await timed(consume_all()))
    finally:
        await broker.stop()


def _annotated(handle: Any) -> Any:
    """FastStream gives a handler the raw message by the annotation of its argument."""
    handle.__annotations__["message"] = rabbit.RabbitMessage
    return handle


if __name__ == "__main__":
    run(measure, ["faststream", "aio-pika"])
