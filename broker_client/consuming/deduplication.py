"""Deduplication: ids of handled messages, so that a duplicate is not handled again.

At least once means that a message may come twice. A subscription with `deduplicate` marks an id
after its handler has succeeded and its ack is on its way, never before: a crash in between may
still repeat one message, and none is ever passed over unhandled.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from broker_client.config import DeduplicateConfig
from broker_client.consuming.redeliveries import SqliteFile, redis_client
from broker_client.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import sqlite3


class HandledIds(Protocol):
    """Remembers ids for a while."""

    async def contains(self, key: str) -> bool:
        """True when `key` was added within the window."""
        ...

    async def add(self, key: str) -> None:
        """Remember `key` from now on."""
        ...

    async def close(self) -> None:
        """Close files and sockets."""
        ...


def handled_ids_from(config: DeduplicateConfig) -> HandledIds:
    """The store that `config` describes.

    Raises:
        UnsupportedError: Redis without its package.
    """
    clock = SystemClock()
    match config.store:
        case "sqlite":
            assert config.path is not None
            return SqliteHandledIds(config.path, config.window, config.size, clock)
        case "redis":
            assert config.url is not None
            return RedisHandledIds(config.url.get_secret_value(), config.window)
    return MemoryHandledIds(config.window, config.size, clock)


class MemoryHandledIds:
    """Ids in this process: at most `size`, for `window` seconds each."""

    def __init__(self, window: float, size: int, clock: Clock) -> None:
        self._window, self._size, self._clock = window, size, clock
        self._added: OrderedDict[str, float] = OrderedDict()  # oldest first

    async def contains(self, key: str) -> bool:
        self._forget()
        return key in self._added

    async def add(self, key: str) -> None:
        self._added.pop(key, None)
        self._added[key] = self._clock.now()
        self._forget()

    def _forget(self) -> None:
        limit = self._clock.now() - self._window
        added = self._added
        while added and (len(added) > self._size or next(iter(added.values())) <= limit):
            added.popitem(last=False)

    async def close(self) -> None:
        self._added.clear()


class SqliteHandledIds:
    """Ids in a file: at most `size`, for `window` seconds each, over restarts."""

    def __init__(self, path: str, window: float, size: int, clock: Clock) -> None:
        self._file = SqliteFile(
            path,
            "CREATE TABLE IF NOT EXISTS handled("
            "key TEXT PRIMARY KEY, added REAL NOT NULL) WITHOUT ROWID;"
            "CREATE INDEX IF NOT EXISTS handled_added ON handled(added);",
        )
        self._window, self._size, self._clock = window, size, clock

    async def contains(self, key: str) -> bool:
        return bool(await self._file.run(self._contains, key))

    def _contains(self, db: sqlite3.Connection, key: str) -> bool:
        row = db.execute("SELECT added FROM handled WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] > self._clock.now() - self._window

    async def add(self, key: str) -> None:
        await self._file.run(self._add, key)

    def _add(self, db: sqlite3.Connection, key: str) -> None:
        now = self._clock.now()
        db.execute("INSERT OR REPLACE INTO handled VALUES(?, ?)", (key, now))
        db.execute("DELETE FROM handled WHERE added <= ?", (now - self._window,))
        db.execute(
            "DELETE FROM handled WHERE key IN "
            "(SELECT key FROM handled ORDER BY added DESC LIMIT -1 OFFSET ?)",
            (self._size,),
        )

    async def close(self) -> None:
        await self._file.close()


class RedisHandledIds:
    """Ids on a Redis server, for `window` seconds each."""

    def __init__(self, url: str, window: float) -> None:
        self._client = redis_client(url)
        self._window = window

    async def contains(self, key: str) -> bool:
        return bool(await self._client.exists(f"broker_client:handled:{key}"))

    async def add(self, key: str) -> None:
        await self._client.set(f"broker_client:handled:{key}", 1, px=round(self._window * 1000))

    async def close(self) -> None:
        await self._client.aclose()
