"""Claims on publications: one relay at a time publishes through each, which keeps its order.

Where the database has ``FOR UPDATE SKIP LOCKED``, a relay locks the publication's row for the
transaction in which it publishes a batch; the lock of a relay that dies goes with its connection.
SQLite has one lock for all of its file, which must not be held while a broker answers. There a
relay writes its name and a time into the row, and the next takes over when that time has passed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from sqlalchemy import insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker_client.sql.tables import OutboxTables

Transaction = Callable[[], AbstractAsyncContextManager[AsyncConnection]]
"""Begins the transaction that a relay uses while it holds a claim."""

_HAVE_SKIP_LOCKED = ("postgresql", "mysql", "mariadb")


class Claims:
    """The claims of one relay."""

    def __init__(
        self, engine: AsyncEngine, tables: OutboxTables, holder: str, seconds: float
    ) -> None:
        """
        Args:
            engine: of the database.
            tables: of the outbox.
            holder: unique name of the relay.
            seconds: after which another may take over, where rows cannot be locked.
        """
        self._engine = engine
        self._row = tables.publications
        self._holder = holder
        self._seconds = seconds
        self._locks_rows = engine.dialect.name in _HAVE_SKIP_LOCKED
        self._known: set[str] = set()

    @asynccontextmanager
    async def claim(self, publication: str) -> AsyncIterator[Transaction | None]:
        """A block in which this relay holds `publication`, or has None if another does."""
        await self._add_row(publication)
        hold = self._lock if self._locks_rows else self._lease
        async with hold(publication) as transaction:
            yield transaction

    async def _add_row(self, publication: str) -> None:
        if publication in self._known:
            return
        async with self._engine.connect() as connection:
            found = select(self._row).where(self._row.c.publication == publication)
            if (await connection.execute(found)).first() is None:
                try:
                    await connection.execute(insert(self._row).values(publication=publication))
                    await connection.commit()
                except IntegrityError:
                    await connection.rollback()  # another relay was faster
        self._known.add(publication)

    @asynccontextmanager
    async def _lock(self, publication: str) -> AsyncIterator[Transaction | None]:
        row = self._row.c.publication
        async with self._engine.begin() as connection:
            chosen = select(row).where(row == publication).with_for_update(skip_locked=True)
            locked = await connection.scalar(chosen)
            yield None if locked is None else lambda: nullcontext(connection)

    @asynccontextmanager
    async def _lease(self, publication: str) -> AsyncIterator[Transaction | None]:
        row, now = self._row.c, time.time()
        mine = update(self._row).where(row.publication == publication)
        free = or_(row.held_by.is_(None), row.held_until < now)
        async with self._engine.begin() as connection:
            taken = await connection.execute(
                mine.where(free).values(held_by=self._holder, held_until=now + self._seconds)
            )
        if not taken.rowcount:
            yield None
            return
        try:
            yield self._engine.begin
        finally:
            async with self._engine.begin() as connection:
                await connection.execute(
                    mine.where(row.held_by == self._holder).values(held_by=None, held_until=None)
                )
