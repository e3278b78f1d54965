"""`OutboxRelay`: publishes what transactions have committed to the outbox.

One batch of a publication at a time: read in order, published, confirmed, deleted. What is
confirmed and not yet deleted when a relay dies is published again, with the same message ids.

It looks at the table every so often instead of being notified: on PostgreSQL, NOTIFY takes a lock
on the whole database while its transaction commits, and an outbox would have every transaction of
the application use it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from broker_client.amqp.table_decoding import decode_arguments
from broker_client.broker import Broker
from broker_client.errors import (
    PUBLISH_REFUSALS,
    BrokerClientError,
    BrokerClosedError,
    InvalidContentError,
    InvalidMessageError,
    PublishError,
    UnknownNameError,
    described,
)
from broker_client.publication import Publication
from broker_client.runtime.tasks import TaskGroup
from broker_client.sql.claims import Claims
from broker_client.sql.tables import MESSAGE_COLUMNS, OutboxTables

log: logging.Logger = logging.getLogger("broker_client.sql")

_ATTEMPT = 20.0  # seconds for a batch to be confirmed, before it is tried again
_LEASE = 3 * _ATTEMPT
_BATCHES = 10  # of one publication, before others have a turn
_LONGEST_PAUSE = 15.0  # seconds between attempts that fail
_STOP_TIMEOUT = _ATTEMPT + 5.0  # seconds for the batches under way when it stops

_UNPUBLISHABLE = (UnknownNameError, InvalidMessageError, InvalidContentError)

Row = Any  # of the table `waiting`


class OutboxRelay:
    """Publishes the rows of an outbox as long as its ``async with`` block runs.

    At its end, it finishes the batches in progress. A publish that the broker refuses for good is
    moved to the table of failed publishes, logged, and emitted as an ``error`` event of the Broker.

    Attributes:
        relayed: number of publishes that were confirmed.
        failed: number of publishes that were moved to the table of failed ones.
    """

    def __init__(
        self,
        tables: OutboxTables,
        broker: Broker,
        engine: AsyncEngine,
        *,
        interval: float,
        batch: int,
        concurrency: int,
    ) -> None:
        """See `TransactionalOutbox.relay`."""
        if interval <= 0 or batch < 1 or concurrency < 1:
            raise ValueError("interval is above 0 seconds; batch and concurrency are 1 or more")
        self._tables = tables
        self._broker = broker
        self._engine = engine
        self._interval = interval
        self._batch = batch
        self._concurrency = concurrency
        self._claims = Claims(engine, tables, uuid4().hex, _LEASE)
        self._tasks = TaskGroup("outbox relay")
        self._busy: set[str] = set()
        self._failures: dict[str, int] = {}  # attempts in a row, of each publication
        self._not_before: dict[str, float] = {}  # loop time
        self._changed = asyncio.Event()
        self._stopping = False
        self.relayed: int
        self.failed: int
        self.relayed = self.failed = 0

    def __repr__(self) -> str:
        state = "stopped" if not len(self._tasks) else "stopping" if self._stopping else "running"
        return f"<OutboxRelay {self._tables.waiting.fullname}: {state}, {self.relayed} relayed>"

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database does not answer, or has no such table.
        """
        await self._publications()
        self._tasks.spawn(self._run(), "looks for publishes")
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self._stopping = True
        self._changed.set()
        try:
            if not await self._tasks.wait(_STOP_TIMEOUT):
                log.warning("%r: batches were not finished; they are published again", self)
        finally:
            await self._tasks.cancel()

    async def _run(self) -> None:
        pause = self._interval
        while not self._stopping:
            self._changed.clear()
            try:
                self._start(await self._publications())
                pause = self._interval
            except Exception as error:  # noqa: BLE001 - whatever its database raises
                log.error("%r: cannot look for publishes: %s", self, described(error))
                pause = min(2 * pause, _LONGEST_PAUSE)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _publications(self) -> list[str]:
        """Those that have publishes waiting: one look into the index for each."""
        name = self._tables.waiting.c.publication
        found: list[str] = []
        async with self._engine.connect() as connection:
            first = select(func.min(name))
            while (
                each := await connection.scalar(first.where(name > found[-1]) if found else first)
            ) is not None:
                found.append(each)
        return found

    def _start(self, publications: list[str]) -> None:
        random.shuffle(publications)  # where there are many, each has its turn
        now = asyncio.get_running_loop().time()
        for name in publications:
            if len(self._busy) >= self._concurrency:
                return
            if name not in self._busy and self._not_before.get(name, 0.0) <= now:
                self._busy.add(name)
                self._tasks.spawn(self._relay(name), name)

    # ------------------------------------------------------------------ one publication

    async def _relay(self, name: str) -> None:
        try:
            for _ in range(_BATCHES):
                if self._stopping or not await self._relay_batch(name):
                    return
            self._changed.set()
        except BrokerClosedError:
            self._stopping = True
            log.warning("%r: its Broker was shut down", self)
        except Exception as error:  # noqa: BLE001 - whatever the database raises, and the broker
            self._try_later(name, error)
        finally:
            self._busy.discard(name)

    async def _relay_batch(self, name: str) -> bool:
        """Publish the first that wait; True if there may be more."""
        if not self._is_ready(name):
            return False
        waiting = self._tables.waiting
        async with self._claims.claim(name) as transaction:
            if transaction is None:
                return False
            of_name = select(waiting).where(waiting.c.publication == name)
            async with transaction() as connection:
                result = await connection.execute(of_name.order_by(waiting.c.id).limit(self._batch))
                rows = result.all()
            attempt = _Attempt(self._broker, name)
            await attempt.run(rows)
            async with transaction() as connection:
                await self._settle(connection, attempt)
        self._count(attempt)
        if attempt.error is not None:
            raise attempt.error
        self._failures.pop(name, None)
        return len(rows) == self._batch

    def _is_ready(self, name: str) -> bool:
        """False while the broker of a publication is away: no transaction is to wait for it."""
        publication = self._broker.config.find_publication(name)
        health = self._broker.health()
        if publication is None or not health.live:
            return True  # what is wrong is found out when it is published
        return health.vhosts[publication.vhost].ready

    async def _settle(self, connection: AsyncConnection, attempt: _Attempt) -> None:
        waiting, failed = self._tables.waiting, self._tables.failed
        for row, error in attempt.refused:
            values = {name: getattr(row, name) for name in ("id", *MESSAGE_COLUMNS)}
            await connection.execute(insert(failed).values(**values, error=described(error)))
        ended = [*attempt.confirmed, *(row.id for row, _ in attempt.refused)]
        if ended:
            await connection.execute(delete(waiting).where(waiting.c.id.in_(ended)))

    def _count(self, attempt: _Attempt) -> None:
        self.relayed += len(attempt.confirmed)
        self.failed += len(attempt.refused)
        for row, error in attempt.refused:
            log.error("%r: message %s is set aside: %s", self, row.message_id, error)
            publication = self._broker.config.find_publication(row.publication)
            if self._broker.has_listener("error"):
                self._broker.emit("error", error, publication.vhost if publication else "")

    def _try_later(self, name: str, error: Exception) -> None:
        attempts = self._failures[name] = self._failures.get(name, 0) + 1
        pause = min(self._interval * 2 ** min(attempts, 10), _LONGEST_PAUSE)
        self._not_before[name] = asyncio.get_running_loop().time() + pause
        log.warning("%r: %s, again in %.1f s: %s", self, name, pause, described(error))


class _Attempt:
    """One batch on its way to the broker.

    Attributes:
        confirmed: ids of the rows that the broker has.
        refused: rows that it will never take, and why.
        error: why the others are to be tried again.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._name = name
        self._config = broker.config.find_publication(name)
        self.confirmed: list[int] = []
        self.refused: list[tuple[Row, BrokerClientError]] = []
        self.error: BrokerClientError | None = None

    async def run(self, rows: Sequence[Row]) -> None:
        under_way: list[tuple[Row, Publication]] = []
        for row in rows:
            try:
                under_way.append((row, await self._publish(row)))
            except _UNPUBLISHABLE as error:
                self.refused.append((row, error))
            except BrokerClientError as error:
                self.error = error
                break  # what comes after it waits for it
        for row, publication in under_way:
            try:
                await publication
            except PUBLISH_REFUSALS as error:
                self.refused.append((row, error))
            except PublishError as error:
                self.error = self.error or error
            else:
                self.confirmed.append(row.id)

    async def _publish(self, row: Row) -> Publication:
        options: Any = decode_arguments(row.options)
        if self._config is not None:
            if not self._config.confirm:
                raise unconfirmed(self._name)
            if self._config.options.content_type is None and row.content_type is not None:
                options.setdefault("content_type", row.content_type)
        return await self._broker.publish(
            self._name,
            row.body,
            row.routing_key,
            **{**options, "message_id": row.message_id, "timeout": _ATTEMPT},
        )


def unconfirmed(name: str) -> InvalidMessageError:
    """The error about a publication whose messages could be lost on the way."""
    return InvalidMessageError(
        f"{name!r} from an outbox", "has `confirm: false`; an outbox needs the broker's confirm"
    )
