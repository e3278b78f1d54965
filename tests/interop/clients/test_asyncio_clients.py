"""aio-pika's robust connection and FastStream, unchanged, on the built-in broker's port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aio_pika
import aio_pika.abc
import pytest
from faststream.rabbit import RabbitBroker

from tests.support.eventually import eventually
from tests.support.served import Served


async def test_a_robust_connection_is_back_after_a_kill_of_the_server(tmp_path: Path) -> None:
    server = Served(data=tmp_path / "broker.db")
    await asyncio.to_thread(server.start)
    got: list[bytes] = []
    try:
        connection = await aio_pika.connect_robust(server.url(), reconnect_interval=0.2)
        channel = await connection.channel()
        queue = await channel.declare_queue("robust", durable=True)

        async def handle(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                got.append(message.body)

        await queue.consume(handle)
        await channel.default_exchange.publish(aio_pika.Message(b"before"), "robust")
        await eventually(lambda: got == [b"before"])
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await connection.connected.wait()

        async def publish() -> bool:
            try:
                await channel.default_exchange.publish(aio_pika.Message(b"after"), "robust")
            except Exception:  # noqa: BLE001 - while it connects again, of several kinds
                return False
            return True

        await eventually(publish)
        await eventually(lambda: got[-1] == b"after")
        await connection.close()
    finally:
        await asyncio.to_thread(server.close)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_faststream_publishes_consumes_and_requests(url: str) -> None:
    broker = RabbitBroker(url)
    got: list[int] = []

    @broker.subscriber("faststream-numbers")
    async def handle(number: int) -> None:
        got.append(number)

    @broker.subscriber("faststream-doubles")
    async def double(number: int) -> int:
        return 2 * number

    async with broker:
        await broker.start()
        for number in range(5):
            await broker.publish(number, "faststream-numbers")
        await eventually(lambda: sorted(got) == [0, 1, 2, 3, 4])
        answer = await broker.request(21, "faststream-doubles", timeout=10)
        assert await answer.decode() == 42
