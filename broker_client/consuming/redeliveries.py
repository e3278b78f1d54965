"""Counters of redeliveries of each message (as in rascal)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from broker_client.config import CounterConfig
from broker_client.errors import StoreError, UnsupportedError, install_extra

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

_APPLICATION_ID = 0x62726B64  # "brkd": tells our files from any other SQLite file
_FORMAT = 1
_REDIS_EXPIRY = 7 * 24 * 3600  # seconds after its last redelivery until a count is forgotten


class RedeliveryCounter(Protocol):
    """Counts by key; subscriptions use ``<subscription>/<message id>``."""

    async def increment(self, key: str) -> int:
        """Count one redelivery of `key`; returns the new count."""
        ...

    async def close(self) -> None:
        """Close files and sockets."""
        ...


CounterFactory = Callable[[CounterConfig], RedeliveryCounter]
"""What makes a `custom` counter out of its settings."""


def counter_from(config: CounterConfig, custom: CounterFactory | None = None) -> RedeliveryCounter:
    """The counter that `config` describes.

    Raises:
        UnsupportedError: a custom counter without a factory, or Redis without its package.
    """
    match config.type:
        case "stub":
            return StubCounter()
        case "memory":
            return MemoryCounter(config.size)
        case "sqlite":
            assert config.path is not None
            return SqliteCounter(config.path, config.size)
        case "redis":
            assert config.url is not None
            return RedisCounter(config.url.get_secret_value())
    if custom is None:
        raise UnsupportedError(
            f"redelivery counter {config.name!r}",
            "it is custom: give Broker.create a factory, counters={name: factory}",
        )
    return custom(config)


class StubCounter:
    """Counts nothing."""

    async def increment(self, key: str) -> int:
        return 0

    async def close(self) -> None: ...


class MemoryCounter:
    """Counts in this process; the keys used longest ago are forgotten beyond `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def increment(self, key: str) -> int:
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        if len(self._counts) > self._size:
            self._counts.popitem(last=False)
        return count

    async def close(self) -> None:
        self._counts.clear()


class SqliteCounter:
    """Counts in a file, which processes of one machine may share."""

    def __init__(self, path: str, size: int) -> None:
        self._file = SqliteFile(
            path,
            "CREATE TABLE IF NOT EXISTS redeliveries("
            "key TEXT PRIMARY KEY, count INTEGER NOT NULL, used INTEGER NOT NULL) WITHOUT ROWID;"
            "CREATE INDEX IF NOT EXISTS redeliveries_used ON redeliveries(used);",
        )
        self._size = size

    async def increment(self, key: str) -> int:
        return await self._file.run(self._increment, key)

    def _increment(self, db: sqlite3.Connection, key: str) -> int:
        (used,) = db.execute("SELECT COALESCE(MAX(used), 0) + 1 FROM redeliveries").fetchone()
        (count,) = db.execute(
            "INSERT INTO redeliveries VALUES(?, 1, ?) "
            "ON CONFLICT(key) DO UPDATE SET count = count + 1, used = excluded.used "
            "RETURNING count",
            (key, used),
        ).fetchone()
        db.execute(
            "DELETE FROM redeliveries WHERE used IN "
            "(SELECT used FROM redeliveries ORDER BY used DESC LIMIT -1 OFFSET ?)",
            (self._size,),
        )
        return int(count)

    async def close(self) -> None:
        await self._file.close()


class RedisCounter:
    """Counts on a Redis server, which machines may share."""

    def __init__(self, url: str) -> None:
        self._client = redis_client(url)

    async def increment(self, key: str) -> int:
        name = f"broker_client:redeliveries:{key}"
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.incr(name)
            pipeline.expire(name, _REDIS_EXPIRY)
            count, _ = await pipeline.execute()
        return int(count)

    async def close(self) -> None:
        await self._client.aclose()


def redis_client(url: str) -> Any:
    """An asyncio client of the Redis at `url`.

    Raises:
        UnsupportedError: the `redis` package is missing.
    """
    try:
        from redis import asyncio as redis
    except ImportError as error:
        raise UnsupportedError("Redis", install_extra("redis")) from error
    return redis.Redis.from_url(url)


class SqliteFile:
    """One SQLite connection for short transactions, in a thread of its own.

    The threads of the program may all be busy: what is asked here must not wait for them.
    """

    def __init__(self, path: str, schema: str) -> None:
        """
        Args:
            path: of the file; made if it is not there. Counts and ids may share one.
            schema: makes what is not there.

        Raises:
            StoreError: the file cannot be used, or is not one of counts and ids.
        """
        import sqlite3  # only for those who keep counts or ids in a file

        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            try:
                self._prepare(path, schema)
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise StoreError(path, f"cannot keep counts or ids: {error}") from error
        self._thread = ThreadPoolExecutor(1, "broker_client store")

    def _prepare(self, path: str, schema: str) -> None:
        """Refuse what is not ours before anything is written."""
        db = self._db
        db.execute("PRAGMA busy_timeout=5000")
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner != _APPLICATION_ID and (owner or version or tables):
            raise StoreError(path, "is an SQLite database, but not one of counts or ids")
        if version != _FORMAT and tables:
            text = f"has format {version}, and this version of broker-client reads {_FORMAT} only"
            raise StoreError(path, f"{text}: give another path")
        db.execute("PRAGMA journal_mode=WAL")
        if version != _FORMAT:  # before the tables: another process may look in between
            db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={_FORMAT}")
        db.executescript(schema)

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Call ``work(connection, *args)`` in a transaction of its own."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, partial(self._run, work, *args))

    def _run(self, work: Callable[..., T], *args: Any) -> T:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = work(self._db, *args)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return result

    async def close(self) -> None:
        """Close the file after pending operations."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()
