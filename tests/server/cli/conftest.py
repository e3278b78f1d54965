"""Brokers for commands: a server of ours, and RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.command_line import ChannelTo
from tests.support.rabbitmq import RabbitMQ
from tests.support.served import Served


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.fixture(params=["server", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker with the empty queues ``q``, ``other`` and ``dead``; ``q`` dead-
    letters to ``dead``."""
    if request.param == "server":
        url = request.getfixturevalue("served").url()
        asyncio.run(_prepare(url))
        yield url
        return
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = rabbitmq.make_vhost()
    url = rabbitmq.url(vhost)
    asyncio.run(_prepare(url))
    yield url
    rabbitmq.delete_vhost(vhost)


async def _prepare(url: str) -> None:
    async with ChannelTo(url) as channel:
        for name in ("q", "other", "dead"):
            await channel.queue_delete(name)
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await channel.queue_declare("q", durable=True, arguments=to_dead)
        for name in ("other", "dead"):
            await channel.queue_declare(name, durable=True)
