"""kill -9 after the commit, and in the middle of relaying: each order is handled, and once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from broker_client import Broker, Message
from broker_client.sql import Inbox, TransactionalOutbox
from tests.docs.documents import ROOT
from tests.sql.outbox_child import BATCH, a_config
from tests.support.eventually import eventually
from tests.support.listening import Listening
from tests.support.rabbitmq import RabbitMQ

ORDERS = 120
KILLS = int(os.environ.get("KILL_ROUNDS", "1"))


@pytest.fixture
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "server":
        async with Listening.started() as listening:
            yield listening.url
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    yield server.url(vhost)
    server.delete_vhost(vhost)


@asynccontextmanager
async def a_child(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    program = "tests.sql.outbox_child"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", program, *arguments, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("database_url", "url"),
    [
        ("sqlite", "server"),
        pytest.param(
            "postgresql", "rabbitmq", marks=[pytest.mark.postgresql, pytest.mark.rabbitmq]
        ),
    ],
    indirect=True,
)
async def test_killed_after_the_commit_and_while_relaying_nothing_is_lost_or_done_twice(
    engine: AsyncEngine,
    database_url: str,
    metadata: MetaData,
    outbox: TransactionalOutbox,
    inbox: Inbox,
    url: str,
) -> None:
    done = Table("done", metadata, Column("number", Integer))
    async with engine.begin() as connection:
        await connection.run_sync(done.create)
    received: list[str | None] = []

    async def number_done() -> Any:
        async with engine.connect() as connection:
            return await connection.scalar(select(func.count()).select_from(done))

    async with a_child("commit", database_url, url, str(ORDERS)) as child:
        assert await child.wait() == -signal.SIGKILL
    assert await number_done() == 0

    async with Broker.create(a_config(url)) as broker:

        @broker.handle("orders")
        async def handle(number: int, message: Message) -> None:
            received.append(message.message_id)
            async with engine.begin() as connection:
                if await inbox.accept(connection, message):
                    await connection.execute(insert(done).values(number=number))

        for _ in range(KILLS):
            enough = min(len(received) + random.randrange(1, 2 * BATCH), ORDERS)
            async with a_child("relay", database_url, url, "0") as child:
                await eventually(lambda n=enough: len(received) >= n, timeout=40)
                child.kill()
            if engine.dialect.name == "sqlite":  # in that case another one waits for a minute
                async with engine.begin() as connection:
                    rows = outbox.tables.publications
                    await connection.execute(rows.update().values(held_until=0.0))
        async with outbox.relay(broker, engine, interval=0.02):
            await eventually(lambda: len(set(received)) == ORDERS, timeout=40)
        await broker.unsubscribe_all()
    assert len(received) <= ORDERS + KILLS * BATCH
    async with engine.connect() as connection:
        numbers = (await connection.execute(select(done.c.number))).scalars().all()
    assert sorted(numbers) == list(range(ORDERS))
    assert set(received) == {f"m{number}" for number in range(ORDERS)}
