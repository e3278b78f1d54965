"""broker_client as an application uses it: `Broker.publish`, and a handler that acks."""

from __future__ import annotations

from typing import Any

from bench.peers.load import BODY, PREFETCH, QUEUE, WINDOW, Countdown, Seconds, run, timed
from broker_client import AckOrNack, Broker, Message


def config(url: str) -> dict[str, Any]:
    vhost = {
        "connection": url,
        "queues": [QUEUE],
        "publish_queue": {"max_in_flight": WINDOW},
        "publications": {"bench": {"queue": QUEUE, "timeout": "2m"}},
        "subscriptions": {"bench": {"queue": QUEUE, "prefetch": PREFETCH}},
    }
    return {"vhosts": {"/": vhost}}


async def measure(url: str, count: int) -> Seconds:
    countdown = Countdown(count)

    async def publish_all() -> None:
        publications = [await broker.publish("bench", BODY) for _ in range(count)]
        for publication in publications:
            await publication

    async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        countdown.one()

    async def consume_all() -> None:
        await broker.subscribe("bench", handle)
        await countdown.wait()

    async with Broker.create(config(url)) as broker:
        return Seconds(await timed(publish_all()), await timed(consume_all()))


if __name__ == "__main__":
    run(measure, ["aio-pika", "aiormq", "pamqp"])
