"""Looks after a file that no node has open: is it sound, can it be smaller, what can be saved."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_client.amqp.properties import decode_properties
from broker_client.core.records import COPY_BITS
from broker_client.errors import MalformedFrameError, StoreError
from broker_client.store import schema
from broker_client.store.lock import FileLock
from broker_client.store.sqlite import SqliteFile, intact, translated

_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class QueueContents:
    """One kept queue."""

    vhost: str
    name: str
    entries: int
    deferred: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found."""

    path: str
    schema: int
    size_bytes: int
    """Of the file and its log."""
    messages: int
    queues: tuple[QueueContents, ...]
    problems: tuple[str, ...]
    """What is damaged, at most a hundred lines; none in a sound file."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did."""

    path: str
    before_bytes: int
    after_bytes: int
    messages: int
    lost: int
    """Entries that could not be saved, with `drop_damaged`."""
    kept_as: str | None
    """Where the damaged file is now."""


def check(path: str) -> CheckReport:
    """Look at everything in the file, and change nothing.

    Raises:
        StoreLockedError: a node has it open.
        StoreError: there is no such file, or it is none of ours.
    """
    with _alone(path), _opened(path) as connection:
        with translated(path):
            schema.check_ours(connection, path)
            version = connection.execute("PRAGMA user_version").fetchone()[0]
        problems: list[str] = []
        queues: tuple[QueueContents, ...] = ()
        messages = 0
        try:
            rows = connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
            problems += [line for (line,) in rows if line != "ok"]
            queues = _contents(connection)
            messages = connection.execute(schema.COUNT_MESSAGES).fetchone()[0]
            problems += _ends(connection)
            problems += _bodies(connection, version)
        except sqlite3.DatabaseError as error:
            problems.append(str(error))
        return CheckReport(
            path, version, _size(path), messages, queues, tuple(problems[:_MOST_PROBLEMS])
        )


def compact(path: str, *, drop_damaged: bool = False) -> CompactReport:
    """Write the file anew, without the room that gone messages have left.

    Args:
        path: of the file; it is brought to the newest schema, too.
        drop_damaged: save what can be read and leave out what cannot; the damaged file is
            kept beside it.

    Raises:
        StoreLockedError: a node has it open.
        StoreCorruptError: it is damaged, and `drop_damaged` was not asked for.
        StoreError: there is no such file, or it is none of ours.
    """
    with _alone(path):
        before = _size(path)
        kept_as, lost = _salvage(path) if drop_damaged else (None, 0)
        file = SqliteFile(path)
        file.open()
        try:
            with translated(path):
                file.connection.execute(schema.DROP_ALL_ORPHANS)
                messages = file.connection.execute(schema.COUNT_MESSAGES).fetchone()[0]
                file.connection.execute("VACUUM")
                file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            file.close()
        return CompactReport(path, before, _size(path), messages, lost, kept_as)


# --------------------------------------------------------------------------- reading


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    if not Path(path).is_file():
        raise StoreError(path, "there is no such file")
    lock = FileLock(path)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[sqlite3.Connection]:
    with translated(path):
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = 1")
        yield connection
    finally:
        connection.close()


def _contents(connection: sqlite3.Connection) -> tuple[QueueContents, ...]:
    rows = connection.execute(
        "SELECT vhost, name, count(record_id), count(due_at), coalesce(sum(size), 0) "
        "FROM queues LEFT JOIN entries ON queue_id = queues.id "
        "GROUP BY queues.id ORDER BY vhost, name"
    )
    return tuple(QueueContents(*row) for row in rows)


def _ends(connection: sqlite3.Connection) -> Iterator[str]:
    unknown = connection.execute(
        "SELECT record_id, queue_id FROM entries WHERE queue_id NOT IN (SELECT id FROM queues)"
    )
    for record_id, queue_id in unknown:
        yield f"entry {record_id} is of an unknown queue {queue_id}"
    missing = connection.execute(
        "SELECT record_id FROM entries WHERE record_id >> 16 NOT IN (SELECT id FROM messages)"
    )
    for (record_id,) in missing:
        yield f"entry {record_id}: its message {record_id >> COPY_BITS} is missing"


def _bodies(connection: sqlite3.Connection, version: int) -> Iterator[str]:
    crc = "crc" if version > 1 else "NULL"
    for row in connection.execute("SELECT id, properties, body, %s FROM messages" % crc):  # noqa: S608, UP031 - one of two words
        if not _readable(*row[1:]):
            yield f"message {row[0]} is damaged"


def _readable(properties: Any, body: Any, crc: int | None) -> bool:
    if not isinstance(properties, bytes) or not isinstance(body, bytes):
        return False
    if not intact(properties, body, crc):
        return False
    try:
        decode_properties(properties)
    except MalformedFrameError:
        return False
    return True


def _size(path: str) -> int:
    return sum(os.path.getsize(name) for name in (path, f"{path}-wal") if os.path.exists(name))


# --------------------------------------------------------------------------- saving


def _salvage(path: str) -> tuple[str, int]:
    """Put a new file with what can be read in place of the damaged one."""
    new = SqliteFile(f"{path}.saved")
    for leftover in _family(new.path):
        leftover.unlink(missing_ok=True)
    new.open()
    try:
        with _opened(path) as old, translated(path):
            schema.check_ours(old, path)
            lost = _copy(old, new.connection)
            new.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        new.close()
    kept_as = f"{path}.damaged"
    for source, target in zip(_family(path), _family(kept_as), strict=True):
        if source.exists():
            source.replace(target)
    Path(new.path).replace(path)
    return kept_as, lost


def _family(path: str) -> tuple[Path, ...]:
    return Path(path), Path(f"{path}-wal"), Path(f"{path}-shm")


def _copy(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Returns how many entries could not be copied, as far as one can tell."""
    new.execute("BEGIN")
    for table, width in (("vhosts", 1), ("exchanges", 6), ("queues", 5), ("bindings", 6)):
        insert = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * width)})"  # noqa: S608 - our own words
        for row in _rows(old, table):
            new.execute(insert, row)
    queues = {id for (id,) in new.execute("SELECT id FROM queues")}
    lost = 0
    messages: dict[int, bool] = {}
    for row in _rows(old, "entries"):
        number = row[0] >> COPY_BITS
        if number not in messages:
            messages[number] = _copy_message(old, new, number)
        if row[1] in queues and messages[number]:
            new.execute("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        else:
            lost += 1
    new.execute("COMMIT")
    # What is left over stood in queues that can no more be told.
    left_over = (id for (id,) in _rows(old, "messages", "id") if id > 0 and id not in messages)
    return lost + sum(1 for _ in left_over)


def _rows(old: sqlite3.Connection, table: str, columns: str = "*") -> Iterator[tuple[Any, ...]]:
    """The rows before the first damage and, from the other end, those behind the last."""
    key = "rowid" if table in ("queues", "entries", "messages") else "1, 2"
    for order in ("ASC", "DESC"):
        try:
            order_by = key.replace(",", f" {order},") + f" {order}"
            yield from old.execute(f"SELECT {columns} FROM {table} ORDER BY {order_by}")  # noqa: S608 - our own words
        except sqlite3.DatabaseError:
            continue
        return


def _copy_message(old: sqlite3.Connection, new: sqlite3.Connection, number: int) -> bool:
    try:
        row = old.execute("SELECT * FROM messages WHERE id = ?", (number,)).fetchone()
    except sqlite3.DatabaseError:
        return False
    if row is None:
        return False
    row = (*row, None)[:6]  # schema 1 has no checksum
    if not _readable(row[3], row[4], row[5]):
        return False
    new.execute("INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?, ?, ?)", row)
    return True
