"""broker_client's transport alone: batches written to a channel, acks from a callback."""

from __future__ import annotations

import asyncio

from bench.peers.load import BODY, PREFETCH, QUEUE, WINDOW, Countdown, Seconds, run, timed
from broker_client.message import PERSISTENT, Delivery, Outgoing, Properties
from broker_client.transport.base import Channel, ConsumerCallbacks
from broker_client.transport.rabbitmq.connector import NetworkConnector

BATCH = 200


async def publish_all(channel: Channel, count: int) -> None:
    message = Outgoing("", QUEUE, BODY, Properties(delivery_mode=PERSISTENT), mandatory=True)
    unconfirmed: set[int] = set()
    confirmed = asyncio.Event()

    def on_confirm(first: int, last: int, acked: bool) -> None:
        unconfirmed.difference_update(range(first, last + 1))
        confirmed.set()

    channel.on_confirm = on_confirm
    left = count
    while left or unconfirmed:
        size = min(BATCH, left, WINDOW - len(unconfirmed))
        if size <= 0:
            confirmed.clear()
            await confirmed.wait()
            continue
        first = channel.next_publish_seq
        unconfirmed.update(range(first, first + size))
        await channel.publish([message] * size)
        left -= size


async def consume_all(channel: Channel, count: int) -> None:
    countdown = Countdown(count)

    def on_delivery(delivery: Delivery) -> None:
        channel.ack(delivery.delivery_tag)
        countdown.one()

    await channel.qos(PREFETCH)
    await channel.consume(QUEUE, ConsumerCallbacks(on_delivery, lambda tag: None, lambda tag: None))
    await countdown.wait()


async def measure(url: str, count: int) -> Seconds:
    vhost = url.rsplit("/", 1)[1].replace("%2F", "/")
    link = await NetworkConnector(url, vhost=vhost).connect(timeout=10)
    channel = await link.open_channel(confirm=True)
    await channel.declare_queue(QUEUE)
    seconds = Seconds(
        await timed(publish_all(channel, count)), await timed(consume_all(channel, count))
    )
    await channel.close()
    await link.close()
    return seconds


if __name__ == "__main__":
    run(measure, ["aio-pika", "aiormq", "pamqp"])
