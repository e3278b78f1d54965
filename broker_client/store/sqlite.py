"""One SQLite file: opened, filled into an engine, written in transactions, read from.

WAL with ``synchronous=FULL``: a commit has returned only once its pages are on the disk, and a
crash at any instant leaves the file as of the last commit (https://sqlite.org/wal.html).
"""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path

from broker_client.amqp.received_properties import kept_properties
from broker_client.core.records import Recovered, message_number
from broker_client.errors import (
    MalformedFrameError,
    ReplyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from broker_client.message import Outgoing
from broker_client.runtime.files import for_owner_only
from broker_client.store import tables
from broker_client.store.access_tables import read_access
from broker_client.store.batch import Batch, QueueIds
from broker_client.store.tables import Row
from broker_client.store.topology_tables import read_topology
from broker_client.store.wal import LogIndex, LogPosition, lost_commits

_NEEDED = (3, 35)  # UPDATE ... FROM is of 3.33
_CHUNK = 2_048  # rows a statement: SQLite takes 32,766 values
_IDS = 20_000  # ids a statement
_PATIENCE = 30.0  # seconds to wait for another program that writes into the file
_CHECKPOINT = 4_000  # pages in the log before it is worked into the file


class StoreFile:
    """The file and its connections. `open` first; every failure is a `StoreError`.

    One thread writes. `load` has a connection of its own and belongs to one thread as well.
    """

    def __init__(self, path: str) -> None:
        self.path: str = os.path.realpath(path)  # where SQLite puts the log, too
        self.queue_ids: QueueIds = QueueIds()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._index: LogIndex | None = None

    # ---------------------------------------------------------------- opening

    def open(self, noted: LogPosition | None = None) -> None:
        """Open the file, or make it.

        Args:
            noted: the position of the last commit, if there is a note of it.

        Raises:
            StoreError: it cannot be; nothing is left open.
        """
        if sqlite3.sqlite_version_info < _NEEDED:
            needed = ".".join(map(str, _NEEDED))
            raise StoreError(
                self.path, f"needs SQLite {needed} or newer; this is {sqlite3.sqlite_version}"
            )
        with translated(self.path):
            if problem := log_problem(self.path, noted):
                raise StoreCorruptError(self.path, problem)
            if os.path.exists(self.path):
                self._check_untouched()
            else:
                open(self.path, "ab", opener=for_owner_only).close()
            self._writer = connection = self._connect()
        try:
            with translated(self.path):
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                if mode != "wal":
                    raise StoreError(self.path, f"cannot use a write-ahead log here ({mode})")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
                tables.prepare(connection, self.path)
                # What a power cut has left behind the last whole commit must not be taken for
                # damage behind a later one.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                connection.execute("PRAGMA temp_store = MEMORY")
                for statement in tables.VIEWS:
                    connection.execute(statement)
            self._index = LogIndex(self.path)
        except BaseException:
            self.close()
            raise

    def _check_untouched(self) -> None:
        """Refuse what is not ours, or of another schema, before anything is written.

        Without a log the file is read as it is; SQLite would put a log beside it.
        """
        is_whole = not os.path.exists(f"{self.path}-wal")
        with reading(self.path, "immutable=1" if is_whole else "mode=ro") as connection:
            tables.check_ours(connection, self.path)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path,
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )

    def close(self) -> None:
        """Close the file; the log is worked into it where possible.

        May be called more than once.
        """
        for connection in (self._reader, self._writer):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._reader = self._writer = None
        if self._index is not None:
            self._index.close()
            self._index = None

    @property
    def position(self) -> LogPosition:
        """The end of the last commit in the log."""
        assert self._index is not None, "open() comes first"
        return self._index.position()

    @property
    def connection(self) -> sqlite3.Connection:
        """The one that writes."""
        assert self._writer is not None, "open() comes first"
        return self._writer

    # ---------------------------------------------------------------- recovery

    def move_times(self, seconds: float) -> int:
        """Move every due time and every expiry; returns how many messages have one.

        Raises:
            StoreError: they cannot be moved.
        """
        with translated(self.path):
            return self.connection.execute(tables.MOVE_TIMES, (seconds,)).rowcount

    def recover(self, target: Recovered) -> None:
        """Fill `target` with everything in the file.

        Raises:
            StoreError: it cannot be read.
        """
        with translated(self.path), _no_collections():
            self.connection.execute(tables.DROP_SPILLED)
            try:
                target.restore_topology(read_topology(self.connection, self.path))
            except (ReplyError, LookupError) as error:
                why = f"exchanges, queues and bindings are inconsistent ({error!r})"
                raise StoreCorruptError(self.path, why) from error
            target.restore_access(read_access(self.connection, self.path))
            if damaged := self.connection.execute(tables.DAMAGED_ENTRIES).fetchone():
                raise StoreCorruptError(self.path, f"entry {damaged[0]} is damaged")
            names: dict[int, tuple[str, str]] = {}
            for id, vhost, name in self.connection.execute(tables.QUEUE_IDS):
                names[id] = vhost, name
                self.queue_ids.know(vhost, name, id)
            rows = self.connection.execute(tables.ENTRIES)
            for queue_id, group in groupby(rows, lambda row: row[0]):
                if queue_id not in names:
                    raise StoreCorruptError(self.path, f"entries of an unknown queue {queue_id}")
                vhost, name = names[queue_id]
                target.restore_entries(vhost, name, map(tables.stored_entry, group))

    # ---------------------------------------------------------------- reading

    def load(self, number: int) -> Outgoing | None:
        """The committed message of that number, or None.

        Raises:
            StoreError: it is damaged, or cannot be read.
        """
        with translated(self.path):
            if self._reader is None:
                self._reader = self._connect()
                self._reader.execute("PRAGMA query_only = 1")
            row = self._reader.execute(tables.MESSAGE, (number,)).fetchone()
            if row is None:
                return None
            if not tables.is_sound(row):
                raise StoreCorruptError(self.path, f"message {number} is damaged")
            _, exchange, routing_key, header, body, _ = row
            properties, fault = kept_properties(header)
            return Outgoing(exchange, routing_key, body, properties, fault=fault)

    # ---------------------------------------------------------------- writing

    def apply(self, batch: Batch) -> None:
        """Seal `batch`, write it as one transaction, and have it on the disk.

        Raises:
            StoreError: nothing of it was written.
        """
        execute = self.connection.execute
        batch.seal()
        with translated(self.path):
            if len(batch.fresh) <= _CHUNK and batch.is_plain:
                self._take_in("fresh", batch.fresh)  # a statement is a transaction by itself
                return
            if (rows := batch.as_rows()) is not None:
                self._take_in("intake", rows)
                return
            try:
                execute("BEGIN IMMEDIATE")
                for statement, parameters in batch.topology:
                    execute(statement, parameters)
                for view, rows in (("fresh", batch.fresh), ("intake", batch.rows)):
                    for at in range(0, len(rows), _CHUNK):
                        self._take_in(view, rows[at : at + _CHUNK])
                self._count_deliveries(batch.delivered)
                self._drop(batch.settled)
                for queue_id in batch.removed_queues:
                    held = execute(tables.ENTRIES_OF_QUEUE, (queue_id,))
                    self._drop([record_id for (record_id,) in held])
                execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        execute("ROLLBACK")
                raise

    def _take_in(self, view: str, rows: Sequence[Row]) -> None:
        """Put `rows` into `view`.

        They are filled up to a power of two with rows that do nothing: so there are few
        statements, and they stay prepared.
        """
        if rows:
            width = len(rows[0])
            count = 1 << (len(rows) - 1).bit_length()
            values = list(chain.from_iterable(rows))
            values += tables.idle_row(width) * (count - len(rows))
            self.connection.execute(_insert(view, width, count), values)

    def _count_deliveries(self, delivered: Mapping[int, int]) -> None:
        by_attempts: dict[int, list[int]] = {}
        for record_id, attempts in delivered.items():
            by_attempts.setdefault(attempts, []).append(record_id)
        for attempts, record_ids in by_attempts.items():
            self._for_ids(tables.SET_ATTEMPTS, record_ids, attempts)

    def _drop(self, record_ids: Sequence[int]) -> None:
        """Entries, and the messages that no queue holds without them."""
        self._for_ids(tables.DROP_ENTRIES, record_ids)
        self._for_ids(tables.DROP_ORPHANS, list(dict.fromkeys(map(message_number, record_ids))))

    def _for_ids(self, statement: str, ids: Sequence[int], *parameters: int) -> None:
        for at in range(0, len(ids), _IDS):
            self.connection.execute(statement, (*parameters, str(ids[at : at + _IDS])))


@contextlib.contextmanager
def reading(path: str, how: str = "mode=ro") -> Iterator[sqlite3.Connection]:
    """A connection that cannot write; so it does not work the log into the file as it closes."""
    connection = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?{how}", uri=True, isolation_level=None
    )
    try:
        yield connection
    finally:
        connection.close()


def log_problem(path: str, noted: LogPosition | None) -> str | None:
    """What is wrong with the log that a crash has left; None when nothing is."""
    path = os.path.realpath(path)
    if not os.path.exists(f"{path}-wal") or not os.path.getsize(f"{path}-wal"):
        return None
    with reading(path) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # SQLite reads the log
        index = LogIndex(path)
        taken = index.position()
    index.close()
    return lost_commits(path, taken, noted)


@lru_cache(maxsize=64)
def _insert(view: str, width: int, count: int) -> str:
    """The statement for so many rows: always the same text, so its hash is known."""
    row = f"({', '.join('?' * width)})"
    return f"INSERT INTO {view} VALUES {', '.join([row] * count)}"  # noqa: S608 - our own words


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """A million objects, none of them garbage, come into being: searching them for it again and
    again would take half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


NOT_UTF8 = "text is damaged: it is not UTF-8"
"""Of a value; or, as `UnicodeDecodeError`, of a column's name or SQLite's own message, which
quotes the schema."""


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """Convert SQLite's exceptions, and those that a damaged file causes, to ours."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise StoreCorruptError(path, NOT_UTF8) from error
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    except OSError as error:
        raise StoreError(path, error.strerror or str(error)) from error
    except MalformedFrameError as error:
        raise StoreCorruptError(path, f"properties or arguments are damaged ({error})") from error


def store_error(path: str, error: sqlite3.Error) -> StoreError:
    """What SQLite's `error` means for the store at `path`."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if "decode to UTF-8" in str(error):  # an error of Python's, without a name
        return StoreCorruptError(path, NOT_UTF8)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorruptError(path, str(error))
    if name.startswith("SQLITE_FULL"):
        return StoreFullError(path, f"{error}: make room, then start again")
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN")):
        return StoreReadOnlyError(path, f"{error}: its folder and file must be writable")
    return StoreError(path, f"{error} ({name})" if name else str(error))
