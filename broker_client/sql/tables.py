"""The tables, in the application's metadata, where its migrations find them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    func,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.schema import SchemaItem

AsyncExecutor = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection
"""Objects with an open transaction in an async application."""

SyncExecutor = Session | scoped_session[Session] | Connection
"""The same without asyncio."""

_NAME_LENGTH = 255  # an AMQP short string; also what a publication may be called here


class OutboxTables:
    """The tables of one outbox.

    Attributes:
        waiting: publishes that the broker has not confirmed yet, in order of `id`.
        failed: publishes that the broker refused for good, and why.
        publications: one row for each publication, which relays lock so that only one of them
            publishes through it at a time.
    """

    def __init__(self, metadata: MetaData, prefix: str, schema: str | None) -> None:
        """
        metadata: of the application.
        prefix: of the names of the tables.
        schema: of the database; None for the metadata's.
        """

        def table(name: str, *items: SchemaItem) -> Table:
            return Table(prefix + name, metadata, *items, schema=schema)

        name = f"{prefix}outbox"
        self.waiting: Table = table(
            "outbox",
            # SQLite counts up by itself in an INTEGER alone.
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            *_message_columns(),
            Index(f"{name}_in_order", "publication", "id"),
        )
        self.failed: Table = table(
            "outbox_failed",
            Column("id", BigInteger, primary_key=True, autoincrement=False),
            *_message_columns(),
            Column("error", Text, nullable=False),
            Column("failed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        )
        self.publications: Table = table(
            "outbox_publications",
            Column("publication", String(_NAME_LENGTH), primary_key=True),
            Column("held_by", String(32)),
            Column("held_until", Float(53)),  # seconds since 1970; see `claims`
        )


def inbox_table(metadata: MetaData, prefix: str, schema: str | None) -> Table:
    """One row for each message that a consumer has handled."""
    return Table(
        f"{prefix}inbox",
        metadata,
        Column("consumer", String(_NAME_LENGTH), primary_key=True),
        Column("message_id", String(_NAME_LENGTH), primary_key=True),
        Column(
            "handled_at",
            DateTime(timezone=True),
            nullable=False,
            server_default=func.now(),
            index=True,
        ),
        schema=schema,
    )


def _message_columns() -> tuple[Column[object], ...]:
    return (
        Column("publication", String(_NAME_LENGTH), nullable=False),
        Column("message_id", String(_NAME_LENGTH), nullable=False),
        Column("routing_key", String(_NAME_LENGTH)),
        Column("content_type", String(_NAME_LENGTH)),
        Column("body", LargeBinary, nullable=False),
        # The other arguments of the publish as an AMQP table, which loses none of their types.
        Column("options", LargeBinary, nullable=False),
        Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    )


MESSAGE_COLUMNS = tuple(column.name for column in _message_columns())
