"""aio-pika: its plain connection, a channel with confirms, publishes in a window."""

from __future__ import annotations

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from bench.peers.load import BODY, PREFETCH, QUEUE, Countdown, Seconds, in_window, run, timed


async def measure(url: str, count: int) -> Seconds:
    countdown = Countdown(count)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(QUEUE, durable=True)

        async def publish() -> None:
            message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, QUEUE)

        async def handle(message: AbstractIncomingMessage) -> None:
            await message.ack()
            countdown.one()

        async def consume_all() -> None:
            await queue.consume(handle)
            await countdown.wait()

        return Seconds(await timed(in_window(publish, count)), await timed(consume_all()))


if __name__ == "__main__":
    run(measure, ["aio-pika", "aiormq", "pamqp"])
