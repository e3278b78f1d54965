"""A Broker whose built-in broker listens: other programs use the queues of the application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aio_pika
import pytest

from broker_client import Broker, ConfigError
from broker_client.errors import ListenError


def listening(connection: str, listen: object = "127.0.0.1:0") -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {"connection": connection, "queues": ["q"], "publications": {"q": {"queue": "q"}}}
        },
        "node": {"listen": listen},
    }


@pytest.mark.parametrize("where", ["memory", "file"])
async def test_another_program_gets_what_the_application_published(
    where: str, tmp_path: Path
) -> None:
    connection = "embedded://" if where == "memory" else f"embedded://{tmp_path}/broker.db"
    async with Broker.create(listening(connection)) as broker:
        await (await broker.publish("q", "from the application"))
        [address] = broker.listening_on
        async with await aio_pika.connect(
            address.replace("amqp://", "amqp://guest:guest@")
        ) as other:
            channel = await other.channel()
            queue = await channel.get_queue("q")
            received = await queue.get()
            assert received is not None
            assert received.body == b"from the application"
            await received.ack()


async def test_several_built_in_brokers_cannot_share_the_address() -> None:
    config = listening("embedded://one")
    config["vhosts"]["other"] = {"connection": "embedded://two"}
    with pytest.raises(ConfigError, match="the vhosts have several built-in brokers"):
        await Broker.create(config)


async def test_an_address_that_is_taken_is_said_at_the_start() -> None:
    async with Broker.create(listening("embedded://")) as broker:
        with pytest.raises(ListenError, match="another program listens there"):
            await Broker.create(listening("embedded://", list(broker.listening_on)))
