"""A RabbitMQ with a proxy before it, in a vhost of one's own."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ


@dataclass(frozen=True, slots=True)
class Place:
    """A vhost of the shared server, reached through a proxy."""

    server: RabbitMQ
    vhost: str
    proxy: Proxy

    @property
    def url(self) -> str:
        """By way of the proxy."""
        return f"amqp://guest:guest@127.0.0.1:{self.proxy.port}"


@pytest.fixture
async def place(rabbitmq: RabbitMQ) -> AsyncIterator[Place]:
    vhost = rabbitmq.make_vhost()
    async with Proxy("127.0.0.1", rabbitmq.port) as proxy:
        yield Place(rabbitmq, vhost, proxy)
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def chance() -> random.Random:
    """Seeded anew each time; the seed is printed, and FAULTS_SEED in the environment repeats it."""
    seed = int(os.environ.get("FAULTS_SEED") or random.SystemRandom().randrange(2**32))
    print(f"FAULTS_SEED={seed}")  # noqa: T201 - pytest shows it with a failure
    return random.Random(seed)
