"""A client of a server that is killed repeatedly; every line that it prints was confirmed.

    python -m tests.faults.amqp_child URL NAME publish    prints ``c N`` for each confirmed message
    python -m tests.faults.amqp_child URL NAME consume    prints ``o`` as it has connected, and
                                                          ``d PUBLISHER N`` before each ack

Messages of one publisher are numbered in the order in which they are published, on one channel
of one connection after the other; none is published twice. It ends when its standard input is
closed.
"""

from __future__ import annotations

import asyncio
import sys

import aio_pika
import aio_pika.abc

QUEUE = "killed"
_BATCH = 50


async def _publish(url: str, name: str) -> None:
    number = 0
    while True:
        try:
            connection = await aio_pika.connect(url, timeout=5)
            async with connection:
                channel = await connection.channel()
                await channel.declare_queue(QUEUE, durable=True)
                while True:
                    numbers = range(number, number + _BATCH)
                    number += _BATCH
                    async with asyncio.TaskGroup() as group:
                        for each in numbers:
                            group.create_task(_publish_one(channel, name, each))
        except* Exception:  # noqa: BLE001 - the server is gone: of many kinds
            await asyncio.sleep(0.05)


async def _publish_one(channel: aio_pika.abc.AbstractChannel, name: str, number: int) -> None:
    body = f"{name} {number}".encode().ljust(256)
    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, QUEUE, timeout=10)
    print(f"c {number}", flush=True)  # noqa: T201 - what the test reads


async def _consume(url: str, _name: str) -> None:
    while True:
        try:
            connection = await aio_pika.connect(url, timeout=5)
            async with connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=20)
                queue = await channel.declare_queue(QUEUE, durable=True)
                print("o", flush=True)  # noqa: T201 - what the test reads
                async with queue.iterator() as messages:
                    async for message in messages:
                        text = message.body.decode().strip()
                        print(f"d {text}", flush=True)  # noqa: T201 - what the test reads
                        await message.ack()
        except Exception:  # noqa: BLE001 - the server is gone: of many kinds
            await asyncio.sleep(0.05)


async def _main(url: str, name: str, job: str) -> None:
    work = asyncio.create_task((_publish if job == "publish" else _consume)(url, name))
    await asyncio.to_thread(sys.stdin.read)
    work.cancel()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4]))
