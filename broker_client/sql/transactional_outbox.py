"""`TransactionalOutbox`: publishes that are part of a transaction of the application."""

from __future__ import annotations

from collections.abc import Sequence
from os import urandom
from typing import Any, Unpack

from sqlalchemy import MetaData, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from broker_client.amqp.encode import check_publish
from broker_client.amqp.tables import encode_arguments, encode_short
from broker_client.broker import Broker
from broker_client.codec import content as contents
from broker_client.config.loader import Source, load_config
from broker_client.errors import UnknownNameError
from broker_client.message import Outgoing, Properties
from broker_client.publishing.encoding import encoders_of
from broker_client.publishing.template import PublishOverrides, check_overrides, given
from broker_client.sql.outbox_relay import OutboxRelay, unconfirmed
from broker_client.sql.tables import (
    MESSAGE_COLUMNS,
    AsyncExecutor,
    OutboxTables,
    SyncExecutor,
)

Row = dict[str, Any]


class TransactionalOutbox:
    """Publishes messages in the transaction of the application's own changes.

    `publish` adds a row in the caller's transaction. Once that is committed, a relay in this or
    another process publishes it, and deletes the row when the broker has confirmed it. A publish is
    never lost, but may be sent more than once, with the same message id: see `Inbox`.

    Its tables are added to `metadata` for `create_all` and Alembic.
    """

    def __init__(
        self,
        metadata: MetaData,
        *,
        config: Source | None = None,
        prefix: str = "broker_",
        schema: str | None = None,
    ) -> None:
        """
            metadata: of the application's tables.
            config: of the relay's Broker. With it, `publish` refuses unknown publications, and
                passes the trace on if `tracing` is configured.
            prefix: of the names of the tables.
            schema: of the database, if not the metadata's.

        Raises:
            ConfigError: `config` is wrong.
            UnsupportedError: it asks for tracing, and that extra is not installed.
        """
        self.tables: OutboxTables = OutboxTables(metadata, prefix, schema)
        self._config = None if config is None else load_config(config)
        self._encoders = (
            {} if self._config is None else encoders_of(self._config, compressing=False)
        )
        self._trace: Any = None
        if self._config is not None and self._config.tracing is not None:
            from broker_client.tracing import current_context  # imported where it is asked for

            self._trace = current_context

    def __repr__(self) -> str:
        return f"<TransactionalOutbox {self.tables.waiting.fullname}>"

    async def publish(
        self,
        session: AsyncExecutor,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> str:
        """Publish `content` through the publication `name` when the transaction is committed.

        Args:
            session: an `AsyncSession` or `AsyncConnection` with the transaction.
            name: of a publication of the relay's Broker, or ``/queue`` or ``/exchange``.
            content: as for `Broker.publish`.
            routing_key: replaces the publication's.
            overrides: as for `Broker.publish`. `delay` and `expiration` count from the relay's
                publish; `timeout` has no effect.

        Returns the message id, which stays the same however often it is sent.

        Raises:
            UnknownNameError: no such publication.
            InvalidContentError: `content` cannot be encoded.
            InvalidMessageError: a name is too long, or AMQP cannot carry a header's type; or the
                publication has no confirms.
        """
        row = self._row(name, content, routing_key, overrides)
        await session.execute(insert(self.tables.waiting).values(row))
        return str(row["message_id"])

    def publish_sync(
        self,
        session: SyncExecutor,
        name: str,
        content: Any,
        routing_key: str | None = None,
        **overrides: Unpack[PublishOverrides],
    ) -> str:
        """`publish` in a `Session` or `Connection` without asyncio."""
        row = self._row(name, content, routing_key, overrides)
        session.execute(insert(self.tables.waiting).values(row))
        return str(row["message_id"])

    def relay(
        self,
        broker: Broker,
        engine: AsyncEngine,
        *,
        interval: float = 0.5,
        batch: int = 200,
        concurrency: int = 4,
    ) -> OutboxRelay:
        """A relay that publishes committed rows; use it as ``async with outbox.relay(broker,
        engine):``.

        Any number of relays may run, in any number of processes.

        Args:
            broker: publishes the rows.
            engine: of the database with the tables. A relay uses up to `concurrency` + 1 of its
                connections.
            interval: seconds between polls of the table while it is empty.
            batch: maximum number of publishes in progress per publication; these are sent again
                after a crash.
            concurrency: number of publications to use at a time.
        """
        return OutboxRelay(
            self.tables, broker, engine, interval=interval, batch=batch, concurrency=concurrency
        )

    async def retry(self, session: AsyncExecutor, *message_ids: str) -> int:
        """Queue failed publishes again, behind the waiting ones; returns how many.

        Args:
            session: with the transaction.
            message_ids: the ids to retry; all failed ones when left out.
        """
        failed = self.tables.failed
        chosen = select(*(failed.c[name] for name in ("id", *MESSAGE_COLUMNS))).order_by(
            failed.c.id
        )
        if message_ids:
            chosen = chosen.where(failed.c.message_id.in_(message_ids))
        rows: Sequence[Any] = (await session.execute(chosen)).mappings().all()
        for row in rows:
            again = {name: row[name] for name in MESSAGE_COLUMNS}
            await session.execute(insert(self.tables.waiting).values(again))
            await session.execute(delete(failed).where(failed.c.id == row["id"]))
        return len(rows)

    def _row(
        self, name: str, content: Any, routing_key: str | None, overrides: PublishOverrides
    ) -> Row:
        encode_short(name, "publication")  # which refuses what is too long for its column
        self._check_publication(name)
        options = given(overrides)
        check_overrides(options)
        body, content_type = self._encoders.get(name, contents.encode)(content)
        message_id = options.pop("message_id", None) or urandom(16).hex()
        options.pop("timeout", None)
        if self._trace is not None:
            options["headers"] = {**self._trace(), **options.get("headers", {})}
        properties = Properties(
            message_id=message_id, **{name: options[name] for name in _PROPERTIES & options.keys()}
        )
        check_publish(Outgoing("", routing_key or "", body, properties))
        return {
            "publication": name,
            "message_id": message_id,
            "routing_key": routing_key,
            "content_type": content_type,
            "body": body,
            "options": encode_arguments(options),
        }

    def _check_publication(self, name: str) -> None:
        if self._config is None:
            return
        publication = self._config.find_publication(name)
        if publication is None:
            raise UnknownNameError("publication", name, list(self._config.publications))
        if not publication.confirm:
            raise unconfirmed(name)


_PROPERTIES = frozenset(Properties._fields) - {"message_id", "expiration", "delivery_mode"}
"""Properties that an override gives as they are."""
