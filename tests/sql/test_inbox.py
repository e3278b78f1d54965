"""The inbox: a message changes the database once, however often it is delivered."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from broker_client import Message
from broker_client.errors import InvalidMessageError
from broker_client.message import Delivery, Properties
from broker_client.sql import Inbox


def a_message(message_id: str | None = "m1", queue: str = "orders") -> Message:
    delivery = Delivery("c", 1, False, "", queue, b"", Properties(message_id=message_id))
    return Message(delivery, queue=queue, vhost="/", touch=lambda tag: 0.0)


async def test_message_is_accepted_once_by_each_consumer(engine: AsyncEngine, inbox: Inbox) -> None:
    async with AsyncSession(engine) as session, session.begin():
        assert await inbox.accept(session, a_message())
        assert not await inbox.accept(session, a_message())
    async with engine.begin() as connection:
        assert not await inbox.accept(connection, a_message())
        assert await inbox.accept(connection, a_message("m2"))
        assert await inbox.accept(connection, a_message(queue="other"))
        assert await inbox.accept(connection, a_message(), consumer="mails")


async def test_message_of_a_handler_that_failed_is_accepted_again(
    engine: AsyncEngine, inbox: Inbox
) -> None:
    async with AsyncSession(engine) as session:
        assert await inbox.accept(session, a_message())
        await session.rollback()
        assert await inbox.accept(session, a_message())


async def test_duplicates_at_the_same_time_are_accepted_once(
    engine: AsyncEngine, inbox: Inbox
) -> None:
    handled: list[int] = []

    async def handle(number: int) -> None:
        async with engine.begin() as connection:
            if await inbox.accept(connection, a_message()):
                await asyncio.sleep(0)  # the other transaction waits for ours
                handled.append(number)

    await asyncio.gather(*(handle(number) for number in range(4)))
    assert len(handled) == 1


async def test_message_without_an_id_is_refused(engine: AsyncEngine, inbox: Inbox) -> None:
    async with engine.begin() as connection:
        with pytest.raises(InvalidMessageError, match="no message id"):
            await inbox.accept(connection, a_message(None))


async def test_what_was_handled_long_ago_is_forgotten(engine: AsyncEngine, inbox: Inbox) -> None:
    now = datetime.now(UTC)
    async with engine.begin() as connection:
        await inbox.accept(connection, a_message())
        assert await inbox.forget(connection, now - timedelta(minutes=1)) == 0
        assert await inbox.forget(connection, now + timedelta(minutes=1)) == 1
        left = await connection.scalar(select(func.count()).select_from(inbox.table))
    assert left == 0


def test_session_without_asyncio_accepts_once(tmp_path: Any) -> None:
    metadata = MetaData()
    inbox = Inbox(metadata, prefix="app_")
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        assert inbox.accept_sync(session, a_message())
    with engine.begin() as connection:
        assert not inbox.accept_sync(connection, a_message())
    engine.dispose()
