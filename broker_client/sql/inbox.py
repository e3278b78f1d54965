"""`Inbox`: recognises messages that were handled before, within the handler's transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, CursorResult, Insert, MetaData, Result, Table, delete
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from broker_client.errors import InvalidMessageError, UnsupportedError
from broker_client.message import Message
from broker_client.sql.tables import AsyncExecutor, SyncExecutor, inbox_table


class Inbox:
    """Stores the ids of handled messages in the transaction of their handlers.

    ::

        async with Session.begin() as session:
            if await inbox.accept(session, message):
                session.add(Shipment(order=order["id"]))

    A message that is delivered twice, because it was sent twice or its ack was lost, changes the
    database only once. The table is added to `metadata`.
    """

    def __init__(
        self, metadata: MetaData, *, prefix: str = "broker_", schema: str | None = None
    ) -> None:
        """
        metadata: of the application's tables.
        prefix: of the name of the table.
        schema: of the database, if not the metadata's.
        """
        self.table: Table = inbox_table(metadata, prefix, schema)

    def __repr__(self) -> str:
        return f"<Inbox {self.table.fullname}>"

    async def accept(
        self, session: AsyncExecutor, message: Message, *, consumer: str | None = None
    ) -> bool:
        """Record `message` as handled; False if it was handled before and must be skipped.

        If another open transaction has recorded the same message, this waits for it (on SQLite, for
        at most its ``timeout``).

        Args:
            session: an `AsyncSession` or `AsyncConnection` with the handler's transaction.
            message: what is handled.
            consumer: name of the consumer; by default, the queue. Each consumer handles a message
                once.

        Raises:
            InvalidMessageError: it has no message id.
            UnsupportedError: the database is not PostgreSQL, SQLite, MySQL or MariaDB.
        """
        connection = session if isinstance(session, AsyncConnection) else await session.connection()
        dialect = connection.dialect.name
        return _count(await connection.execute(self._insert(dialect, message, consumer))) > 0

    def accept_sync(
        self, session: SyncExecutor, message: Message, *, consumer: str | None = None
    ) -> bool:
        """`accept` in a `Session` or `Connection` without asyncio."""
        connection = session if isinstance(session, Connection) else session.connection()
        dialect = connection.dialect.name
        return _count(connection.execute(self._insert(dialect, message, consumer))) > 0

    async def forget(self, session: AsyncExecutor, before: datetime) -> int:
        """Delete messages handled before a time; returns how many.

        A duplicate is recognised as long as its row exists: keep rows for longer than a message
        may wait in a queue or in the outbox.
        """
        old = self.table.c.handled_at < before.astimezone(UTC)
        return _count(await session.execute(delete(self.table).where(old)))

    def _insert(self, dialect: str, message: Message, consumer: str | None) -> Insert:
        if not message.message_id:
            raise InvalidMessageError(
                "the message", "has no message id, by which a duplicate could be recognised"
            )
        row = {"consumer": consumer or message.queue, "message_id": message.message_id}
        if dialect == "postgresql":
            return postgresql.insert(self.table).values(row).on_conflict_do_nothing()
        if dialect == "sqlite":
            return sqlite.insert(self.table).values(row).on_conflict_do_nothing()
        if dialect in ("mysql", "mariadb"):
            return mysql.insert(self.table).values(row).prefix_with("IGNORE")
        raise UnsupportedError(f"an inbox on {dialect}", "use PostgreSQL, SQLite, MySQL or MariaDB")


def _count(result: Result[Any]) -> int:
    """Rows that a statement has added or deleted."""
    assert isinstance(result, CursorResult)
    return result.rowcount
