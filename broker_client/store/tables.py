"""The tables of the file: columns, statements, checksums and version.

A record id holds the number of its message (`core.records.COPY_BITS`), so `entries` need no
column for it, and no index: the copies of one message stand side by side. Messages with a number
below 0 have no entry: they were put there for lack of memory, and removed at the next start.

Every row carries a checksum, since SQLite has none: a changed bit in a page it would hand out as
data. Messages and topology are summed here, entries in SQL, so that an update of many rows stays
one statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any
from zlib import crc32

from broker_client.core.records import COPY_BITS, StoredEntry
from broker_client.errors import StoreCorruptError, StoreError

Row = tuple[Any, ...]
Statement = tuple[str, Row]
"""SQL and its parameters."""

APPLICATION_ID = 0x62726B63  # "brkc": tells our files from any other SQLite file
VERSION = 8
"""Of the schema. A file of any other is refused, and left as it is."""

assert COPY_BITS == 16, "a record id is taken apart in SQL"

_TABLES = (
    "CREATE TABLE vhosts (name TEXT PRIMARY KEY, sum INTEGER NOT NULL) WITHOUT ROWID",
    """
CREATE TABLE exchanges (
    vhost TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL,
    auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL, arguments BLOB NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (vhost, name)) WITHOUT ROWID""",
    """
CREATE TABLE queues (
    id INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name TEXT NOT NULL,
    auto_delete INTEGER NOT NULL, arguments BLOB NOT NULL, sum INTEGER NOT NULL,
    UNIQUE (vhost, name))""",
    "CREATE TABLE paused (queue_id INTEGER PRIMARY KEY, sum INTEGER NOT NULL)",
    """
CREATE TABLE bindings (
    vhost TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL, destination TEXT NOT NULL,
    binding_key TEXT NOT NULL, arguments BLOB NOT NULL, sum INTEGER NOT NULL,
    PRIMARY KEY (vhost, source, kind, destination, binding_key, arguments)) WITHOUT ROWID""",
    """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, exchange TEXT NOT NULL, routing_key TEXT NOT NULL,
    properties BLOB NOT NULL, body BLOB NOT NULL, sum INTEGER NOT NULL)""",
    """
CREATE TABLE entries (
    record_id INTEGER PRIMARY KEY, queue_id INTEGER NOT NULL, position INTEGER NOT NULL,
    attempts INTEGER NOT NULL, priority INTEGER NOT NULL, size INTEGER NOT NULL,
    expires_at REAL, due_at REAL, sum INTEGER NOT NULL)""",
    """
CREATE TABLE users (
    name TEXT PRIMARY KEY, password_hash TEXT NOT NULL, hashing_algorithm TEXT NOT NULL,
    tags TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID""",
    """
CREATE TABLE permissions (
    vhost TEXT NOT NULL, user TEXT NOT NULL, configure TEXT NOT NULL, write TEXT NOT NULL,
    read TEXT NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (vhost, user)) WITHOUT ROWID""",
    """
CREATE TABLE topic_permissions (
    vhost TEXT NOT NULL, user TEXT NOT NULL, exchange TEXT NOT NULL, write TEXT NOT NULL,
    read TEXT NOT NULL, sum INTEGER NOT NULL, PRIMARY KEY (vhost, user, exchange)) WITHOUT ROWID""",
    """
CREATE TABLE policies (
    vhost TEXT NOT NULL, name TEXT NOT NULL, is_operator INTEGER NOT NULL, pattern TEXT NOT NULL,
    apply_to TEXT NOT NULL, priority INTEGER NOT NULL, definition TEXT NOT NULL,
    sum INTEGER NOT NULL, PRIMARY KEY (vhost, name, is_operator)) WITHOUT ROWID""",
    """
CREATE TABLE vhost_limits (
    vhost TEXT PRIMARY KEY, limits TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID""",
    """
CREATE TABLE vhost_metadata (
    vhost TEXT PRIMARY KEY, metadata TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID""",
    """
CREATE TABLE global_parameters (
    name TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID""",
)

TOPOLOGY = (
    "global_parameters",
    "vhosts",
    "vhost_limits",
    "vhost_metadata",
    "policies",
    "exchanges",
    "queues",
    "paused",
    "bindings",
)
"""Tables of what was declared; what is needed comes first."""
ACCESS = ("users", "permissions", "topic_permissions")
SUMMED = (*TOPOLOGY, *ACCESS)
"""Tables whose rows end with `row_sum`."""


# --------------------------------------------------------------------------- the file


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a new file.

    Raises:
        StoreError: the file has another schema.
        StoreCorruptError: it is a database of another program.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if check_ours(connection, path) == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_ours(connection: sqlite3.Connection, path: str) -> int:
    """The schema version of the file, 0 for an empty one; refuses what must not be touched.

    Raises:
        StoreError: the file has another schema.
        StoreCorruptError: it is a database of another program.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != APPLICATION_ID and (tables or version):
        raise StoreCorruptError(path, "is an SQLite database, but not one of a broker")
    if version != VERSION and (tables or version):
        way_out = (
            "upgrade broker-client"
            if version > VERSION
            else "let the version that wrote it deliver what is in it"
        )
        raise StoreError(
            path,
            f"has schema {version}, and this version of broker-client reads schema {VERSION} only: "
            f"{way_out}, or give another path",
        )
    return version


# --------------------------------------------------------------------------- checksums


def row_sum(*values: object) -> int:
    """The checksum of a row of one of `SUMMED`."""
    return crc32(repr(values).encode())


def message_sum(
    number: int, exchange: str, routing_key: str, properties: bytes, body: bytes
) -> int:
    """The checksum of a row of `messages`."""
    route = _route(exchange, routing_key)
    return crc32(body, crc32(properties, crc32(route, number & 0xFFFFFFFF)))


@lru_cache(maxsize=1024)
def _route(exchange: str, routing_key: str) -> bytes:
    return f"{exchange}\0{routing_key}".encode("utf-8", "surrogateescape")


def is_sound(message: Row) -> bool:
    """False when a row of `messages` is not what was written."""
    number, exchange, routing_key, properties, body, total = message
    try:
        return bool(message_sum(number, exchange, routing_key, properties, body) == total)
    except TypeError:  # text where bytes belong: the damage is in the type of a value
        return False


_WEIGHTS = {
    "record_id": 1,
    "queue_id": 1_000_003,
    "position": 8_191,
    "attempts": 2_000_003,
    "priority": 4_000_037,
    "size": 16_411,
    "expires_at": 61,
    "due_at": 31,
}
"""The checksum of an entry is the sum of its columns, each times its weight. Odd weights: no
changed bit can go unseen. Small ones: beyond 2**63 SQLite counts in floats."""


def _weighed(columns: Mapping[str, str], sign: str = "+") -> str:
    """SQL for what `columns`, given the SQL for each value, add to the checksum."""
    terms = ""
    for column, value in columns.items():
        if value not in ("0", "NULL"):
            if column.endswith("_at"):
                value = f"ifnull(CAST({value} * 1000000 AS INTEGER) + 1, 0)"  # microseconds
            terms += f" {sign} {value} * {_WEIGHTS[column]}"
    return terms


def _changed_sum(**columns: str) -> str:
    """SQL for the checksum of an entry in which `columns` get new values.

    The old values are taken out of the old checksum, so that a damaged entry stays damaged.
    """
    return f"sum{_weighed({each: each for each in columns}, '-')}{_weighed(columns)}"


_COLUMNS = {column: column for column in _WEIGHTS}
ENTRY_IS_SOUND = f"sum IS 0{_weighed(_COLUMNS)}"
DAMAGED_ENTRIES = f"SELECT record_id FROM entries WHERE NOT ({ENTRY_IS_SOUND})"  # noqa: S608


# --------------------------------------------------------------------------- summed tables


def put(table: str, *values: object, or_else: str = "OR REPLACE ") -> Statement:
    """Write a row of one of `SUMMED`.

    Args:
        table: its name.
        values: all of its columns but the checksum.
        or_else: what happens where a row of that key is there already.
    """
    marks = ", ".join("?" * (len(values) + 1))
    statement = f"INSERT {or_else}INTO {table} VALUES ({marks})"  # noqa: S608 - our own words
    return statement, (*values, row_sum(*values))


def summed_rows(connection: sqlite3.Connection, table: str) -> Iterator[tuple[Row, bool]]:
    """The rows of one of `SUMMED`, without their checksums, and whether these are right."""
    order = " ORDER BY id" if table == "queues" else ""
    for *row, total in connection.execute(f"SELECT * FROM {table}{order}"):  # noqa: S608 - our own words
        yield tuple(row), total == row_sum(*row)


QUEUE_IDS = "SELECT id, vhost, name FROM queues NOT INDEXED"
"""Of the table, whose rows have checksums; those of its index have none."""


# --------------------------------------------------------------------------- reading entries

ENTRIES = (
    "SELECT queue_id, record_id, position, attempts, priority, size, expires_at, due_at "
    "FROM entries ORDER BY queue_id, position"
)
stored_entry: Callable[[Row], StoredEntry] = itemgetter(slice(1, None))
"""A row of `ENTRIES` in the shape of a `StoredEntry`; to make one of each would take too long."""
MESSAGES = "SELECT id, exchange, routing_key, properties, body, sum FROM messages"
MESSAGE = f"{MESSAGES} WHERE id = ?"
COUNT_MESSAGES = "SELECT count(*) FROM messages WHERE id > 0"
"""Those that are kept."""
CONTENTS = """
SELECT q.vhost, q.name,
    count(e.record_id) - count(e.due_at), count(e.due_at),
    coalesce(sum(e.attempts > 0), 0), coalesce(max(e.attempts), 0), coalesce(sum(e.size), 0)
FROM queues AS q NOT INDEXED LEFT JOIN entries AS e ON e.queue_id = q.id
GROUP BY q.id ORDER BY q.vhost, q.name
"""
"""Of each queue: waiting, deferred, delivered, most attempts, bytes of bodies."""
LOST_ENTRIES = (
    "SELECT record_id, queue_id FROM entries "
    "WHERE queue_id NOT IN (SELECT id FROM queues NOT INDEXED)"
)
EMPTY_ENTRIES = (
    "SELECT record_id FROM entries WHERE record_id >> 16 NOT IN (SELECT id FROM messages)"
)
_NO_ENTRY = (
    "NOT EXISTS (SELECT 1 FROM entries "
    "WHERE record_id BETWEEN messages.id << 16 AND messages.id << 16 | 65535)"
)
ORPHANS = f"SELECT id FROM messages WHERE id > 0 AND {_NO_ENTRY}"  # noqa: S608 - our own words


# --------------------------------------------------------------------------- writing entries

DROP_SPILLED = "DELETE FROM messages WHERE id < 0"
DROP_ALL_ORPHANS = f"DELETE FROM messages WHERE {_NO_ENTRY}"  # noqa: S608 - our own words
"""Drops all messages that no queue holds any more."""
DROP_ORPHANS = f"DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?)) AND {_NO_ENTRY}"  # noqa: S608 - our own words
"""Of the messages given, drops those that no queue holds any more."""
DROP_ENTRIES = "DELETE FROM entries WHERE record_id IN (SELECT value FROM json_each(?))"
ENTRIES_OF_QUEUE = "SELECT record_id FROM entries WHERE queue_id = ?"
SET_ATTEMPTS = (
    f"UPDATE entries SET attempts = given, sum = {_changed_sum(attempts='given')} "  # noqa: S608 - our own words
    "FROM (SELECT ? AS given) WHERE record_id IN (SELECT value FROM json_each(?))"
)

_MOVED_TIMES = {"expires_at": "(expires_at + seconds)", "due_at": "(due_at + seconds)"}
MOVE_TIMES = (
    "UPDATE entries SET expires_at = expires_at + seconds, due_at = due_at + seconds, "  # noqa: S608 - our own words
    f"sum = {_changed_sum(**_MOVED_TIMES)} FROM (SELECT ? AS seconds) "
    "WHERE expires_at IS NOT NULL OR due_at IS NOT NULL"
)

APPEND_WITH_MESSAGE, APPEND, MOVE, SPILL, COUNT, DROP = range(1, 7)
"""What a row put into `intake` does."""
INTAKE_WIDTH = 14
FRESH_WIDTH = 8
MESSAGE_WIDTH = 5
"""The values of a message, at the end of either."""
_IDLE_FRESH = (0, 0, 0, 0, 0, 0, None, 0)
_IDLE_INTAKE = (0,) * INTAKE_WIDTH


def idle_row(width: int) -> Row:
    """A row that does nothing when it is put into the view of so many columns.

    Numbers, since sqlite3 takes long to bind a None.
    """
    return _IDLE_FRESH if width == FRESH_WIDTH else _IDLE_INTAKE


_FRESH = {
    "record_id": "new.record_id",
    "queue_id": "new.queue_id",
    "position": "new.position",
    "attempts": "0",
    "priority": "0",
    "size": "length(new.body)",
    "expires_at": "NULL",
    "due_at": "NULL",
}
_INTAKE = {column: f"new.{column}" for column in _WEIGHTS}
_INSERT_MESSAGE = (
    "INSERT INTO messages VALUES (new.record_id >> 16, new.exchange, new.routing_key, "
    "new.properties, new.body, new.sum);"
)


def _insert_entry(columns: Mapping[str, str]) -> str:
    values = ", ".join(columns.values())
    return f"INSERT INTO entries VALUES ({values}, 0{_weighed(columns)});"  # noqa: S608 - our own words


VIEWS = (
    """
CREATE TEMP VIEW fresh AS SELECT 0 AS record_id, 0 AS queue_id, 0 AS position,
    0 AS exchange, 0 AS routing_key, 0 AS properties, 0 AS body, 0 AS sum WHERE 0""",
    f"""
CREATE TEMP TRIGGER append_fresh INSTEAD OF INSERT ON fresh WHEN new.body IS NOT NULL BEGIN
    {_INSERT_MESSAGE} {_insert_entry(_FRESH)}
END""",
    """
CREATE TEMP VIEW intake AS SELECT
    0 AS op, 0 AS record_id, 0 AS queue_id, 0 AS position, 0 AS attempts, 0 AS priority,
    0 AS size, 0 AS expires_at, 0 AS due_at, 0 AS exchange, 0 AS routing_key, 0 AS properties,
    0 AS body, 0 AS sum WHERE 0""",
    f"""
CREATE TEMP TRIGGER append_with_message INSTEAD OF INSERT ON intake
    WHEN new.op = {APPEND_WITH_MESSAGE} BEGIN {_INSERT_MESSAGE} {_insert_entry(_INTAKE)}
END""",
    f"""
CREATE TEMP TRIGGER append INSTEAD OF INSERT ON intake WHEN new.op = {APPEND} BEGIN
    {_insert_entry(_INTAKE)}
END""",
    f"""
CREATE TEMP TRIGGER move INSTEAD OF INSERT ON intake WHEN new.op = {MOVE} BEGIN
    UPDATE entries SET position = new.position, due_at = new.due_at,
        sum = {_changed_sum(position="new.position", due_at="new.due_at")}
        WHERE record_id = new.record_id;
END""",  # noqa: S608 - our own words
    f"""
CREATE TEMP TRIGGER spill INSTEAD OF INSERT ON intake WHEN new.op = {SPILL} BEGIN
    {_INSERT_MESSAGE}
END""",
    f"""
CREATE TEMP TRIGGER count_deliveries INSTEAD OF INSERT ON intake WHEN new.op = {COUNT} BEGIN
    UPDATE entries SET attempts = new.attempts, sum = {_changed_sum(attempts="new.attempts")}
        WHERE record_id = new.record_id;
END""",  # noqa: S608 - our own words
    f"""
CREATE TEMP TRIGGER drop_entry INSTEAD OF INSERT ON intake WHEN new.op = {DROP} BEGIN
    DELETE FROM entries WHERE record_id = new.record_id;
    DELETE FROM messages WHERE id = new.record_id >> 16 AND {_NO_ENTRY};
END""",  # noqa: S608 - our own words
)
"""New messages and new places, as rows of a view; `fresh` is for a message's first copy in a
queue, not deferred, without priority and expiration: nearly all, and each value less counts.

So one statement, and with it one wait for the interpreter's lock, does a whole commit of a
publisher that waits for it: behind a busy event loop each such wait takes milliseconds. A small
commit puts its deliveries and settlements there, too, since each statement takes the lock several
times from an event loop that has messages to deliver; for many, statements on many ids at once
cost less.
"""
