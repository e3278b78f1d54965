"""A new database for each test, on SQLite and on PostgreSQL, with the outbox's tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from broker_client.sql import Inbox, TransactionalOutbox
from tests.support.postgresql import PostgreSQL

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)]


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/app.db"
    server: PostgreSQL = request.getfixturevalue("postgresql")
    return server.make_schema()


@pytest.fixture
def metadata() -> MetaData:
    return MetaData()


@pytest.fixture
def outbox(metadata: MetaData) -> TransactionalOutbox:
    return TransactionalOutbox(metadata)


@pytest.fixture
def inbox(metadata: MetaData) -> Inbox:
    return Inbox(metadata)


@pytest.fixture
async def engine(
    database_url: str, metadata: MetaData, outbox: TransactionalOutbox, inbox: Inbox
) -> AsyncIterator[AsyncEngine]:
    """The address of a database with the tables of outbox and inbox."""
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    yield engine
    await engine.dispose()
