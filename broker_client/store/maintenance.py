"""Checks, compacts and salvages a file that no node has open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from broker_client.amqp.properties import decode_properties
from broker_client.core.records import COPY_BITS
from broker_client.errors import MalformedFrameError, StoreError
from broker_client.runtime.slotted import slotted
from broker_client.store import tables
from broker_client.store.lock import FileLock
from broker_client.store.sqlite import NOT_UTF8, StoreFile, log_problem, reading, translated
from broker_client.store.statistics import KeptQueue, contents, file_bytes

_MOST_PROBLEMS = 100


@slotted
class CheckReport:
    """What `check` found."""

    path: str
    schema: int
    size_bytes: int
    """Of the file and its log."""
    messages: int
    queues: tuple[KeptQueue, ...]
    problems: tuple[str, ...]
    """What is damaged, at most a hundred lines; none in a sound file."""


@slotted
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
    """Check everything in the file, without changing it.

    Raises:
        StoreLockedError: a node has it open.
        StoreError: there is no such file, or it is not a broker's.
    """
    with _alone(path) as lock, translated(path):
        problem = log_problem(path, lock.position)
        problems = [] if problem is None else [problem]
        with reading(path) as connection:
            version = tables.check_ours(connection, path)
            return _report(connection, path, version, problems)


def _report(
    connection: sqlite3.Connection, path: str, version: int, problems: list[str]
) -> CheckReport:
    connection.text_factory = _text
    queues: tuple[KeptQueue, ...] = ()
    messages = 0
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
        problems += [line for (line,) in rows if line != "ok"]
        messages, queues = contents(connection)
        problems += islice(_damage(connection), max(0, _MOST_PROBLEMS - len(problems)))
    except sqlite3.DatabaseError as error:
        problems.append(str(error))
    except UnicodeDecodeError:
        problems.append(NOT_UTF8)
    return CheckReport(path, version, file_bytes(path), messages, queues, tuple(problems))


def compact(path: str, *, drop_damaged: bool = False) -> CompactReport:
    """Rewrite the file without the free space of removed messages.

    Args:
        path: of the file.
        drop_damaged: save what can be read and leave out what cannot; the damaged file is
            kept beside it.

    Raises:
        StoreLockedError: a node has it open.
        StoreCorruptError: it is damaged, and `drop_damaged` was not asked for.
        StoreError: there is no such file, or it is not a broker's.
    """
    path = os.path.realpath(path)  # a link must go on leading to the file
    with _alone(path) as lock:
        before = file_bytes(path)
        kept_as, lost = None, 0
        if drop_damaged:
            kept_as, lost = _salvage(path)
            lock.forget_position()  # it was of the damaged file
        file = StoreFile(path)
        file.open(lock.position)
        try:
            with translated(path):
                file.connection.execute(tables.DROP_ALL_ORPHANS)
                messages = file.connection.execute(tables.COUNT_MESSAGES).fetchone()[0]
                file.connection.execute("VACUUM")
                file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            file.close()
        lock.forget_position()
        return CompactReport(path, before, file_bytes(path), messages, lost, kept_as)


# --------------------------------------------------------------------------- reading


@contextlib.contextmanager
def _alone(path: str) -> Iterator[FileLock]:
    if not os.path.exists(path):
        raise StoreError(path, "there is no such file")
    lock = FileLock(path)
    lock.acquire()
    try:
        yield lock
    finally:
        lock.release()


def _text(raw: bytes) -> str:
    """Damaged text must not end the search for damage."""
    return raw.decode("utf-8", "surrogateescape")


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    """Damage that SQLite's own check cannot find."""
    for table in tables.SUMMED:
        for row, sound in tables.summed_rows(connection, table):
            if not sound:
                shown = (
                    row[:1] if table == "users" else row
                )  # a password's hash is not for a screen
                yield f"a row of {table} is damaged: {shown}"
    for (record_id,) in connection.execute(tables.DAMAGED_ENTRIES):
        yield f"entry {record_id} is damaged"
    for record_id, queue_id in connection.execute(tables.LOST_ENTRIES):
        yield f"entry {record_id} is of an unknown queue {queue_id}"
    for (record_id,) in connection.execute(tables.EMPTY_ENTRIES):
        yield f"entry {record_id}: its message {record_id >> COPY_BITS} is missing"
    for (number,) in connection.execute(tables.ORPHANS):
        yield f"message {number} has lost its entry: no queue holds it"
    for row in connection.execute(tables.MESSAGES):
        if not _readable(row):
            yield f"message {row[0]} is damaged"


def _readable(message: tables.Row) -> bool:
    if not tables.is_sound(message):
        return False
    try:
        decode_properties(message[3])
    except MalformedFrameError:
        return False
    return True


# --------------------------------------------------------------------------- saving


def _salvage(path: str) -> tuple[str, int]:
    """Put a new file with what can be read in place of the damaged one."""
    with translated(path), reading(path) as old:
        tables.check_ours(old, path)
    new = StoreFile(f"{path}.saved")
    for leftover in _family(new.path):
        leftover.unlink(missing_ok=True)
    new.open()
    try:
        with translated(path), reading(path) as old:
            old.text_factory = _text
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
    """Returns how many entries could not be copied, as far as known."""
    new.execute("BEGIN")
    for table in tables.SUMMED:
        for *row, total in _rows(old, table):
            if total == tables.row_sum(*row):
                _insert(new, table, (*row, total))
    queues = {id for id, _, _ in new.execute(tables.QUEUE_IDS)}
    lost = 0
    messages: dict[int, bool] = {}
    for *row, sound in _rows(old, "entries", f"*, {tables.ENTRY_IS_SOUND}"):
        number = row[0] >> COPY_BITS
        if number not in messages:
            messages[number] = _copy_message(old, new, number)
        if sound and row[1] in queues and messages[number]:
            _insert(new, "entries", row)
        else:
            lost += 1
    new.execute("COMMIT")
    # Messages whose entries are lost: nothing says any longer which queues held them.
    left_over = (id for (id,) in _rows(old, "messages", "id") if id > 0 and id not in messages)
    return lost + sum(1 for _ in left_over)


def _insert(new: sqlite3.Connection, table: str, row: Sequence[Any]) -> None:
    marks = ", ".join("?" * len(row))
    new.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608 - our own words


_KEYS = {
    "policies": "1, 2",
    "exchanges": "1, 2",
    "bindings": "1, 2",
    "permissions": "1, 2",
    "topic_permissions": "1, 2",
}
"""Tables whose key is not their first column: by what they are in order."""


def _rows(old: sqlite3.Connection, table: str, columns: str = "*") -> Iterator[tuple[Any, ...]]:
    """The rows before the first damage and, from the other end, those behind the last."""
    key = _KEYS.get(table, "1")
    for order in ("ASC", "DESC"):
        try:
            order_by = key.replace(",", f" {order},") + f" {order}"
            yield from old.execute(f"SELECT {columns} FROM {table} ORDER BY {order_by}")  # noqa: S608 - our own words
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            continue
        return


def _copy_message(old: sqlite3.Connection, new: sqlite3.Connection, number: int) -> bool:
    try:
        row = old.execute(tables.MESSAGE, (number,)).fetchone()
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False
    if row is None or not _readable(row):
        return False
    _insert(new, "messages", row)
    return True
