"""Tables of the file, their version, and the way up from older ones.

A record id holds the number of its message (`core.records.COPY_BITS`), so `entries` need no
column for it, and no index: the copies of one message stand side by side. Messages with a number
below 0 have no entry: they were put there for want of memory, and are gone at the next start.
"""

from __future__ import annotations

import sqlite3

from broker_client.core.records import COPY_BITS
from broker_client.errors import StoreCorruptError, StoreError

APPLICATION_ID = 0x62726B63  # "brkc": tells our files from any other SQLite file
VERSION = 3

_TABLES = """
CREATE TABLE vhosts (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE exchanges (
    vhost TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL,
    auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, name)) WITHOUT ROWID;
CREATE TABLE queues (
    id INTEGER PRIMARY KEY, vhost TEXT NOT NULL, name TEXT NOT NULL,
    auto_delete INTEGER NOT NULL, arguments BLOB NOT NULL,
    UNIQUE (vhost, name));
CREATE TABLE paused (queue_id INTEGER PRIMARY KEY);
CREATE TABLE bindings (
    vhost TEXT NOT NULL, source TEXT NOT NULL, kind TEXT NOT NULL, destination TEXT NOT NULL,
    binding_key TEXT NOT NULL, arguments BLOB NOT NULL,
    PRIMARY KEY (vhost, source, kind, destination, binding_key, arguments)) WITHOUT ROWID;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, exchange TEXT NOT NULL, routing_key TEXT NOT NULL,
    properties BLOB NOT NULL, body BLOB NOT NULL, crc INTEGER);
CREATE TABLE entries (
    record_id INTEGER PRIMARY KEY, queue_id INTEGER NOT NULL, position INTEGER NOT NULL,
    attempts INTEGER NOT NULL, priority INTEGER NOT NULL, size INTEGER NOT NULL,
    expires_at REAL, due_at REAL);
"""

DROP_ORPHANS = """
DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?)) AND NOT EXISTS (
    SELECT 1 FROM entries WHERE record_id BETWEEN messages.id << 16 AND messages.id << 16 | 65535)
"""
"""Of the messages given, drops those that no queue holds any more."""
COUNT_MESSAGES = "SELECT count(*) FROM messages WHERE id > 0"
"""Those that are kept."""
DROP_SPILLED = "DELETE FROM messages WHERE id < 0"
DROP_ALL_ORPHANS = """
DELETE FROM messages WHERE NOT EXISTS (
    SELECT 1 FROM entries WHERE record_id BETWEEN messages.id << 16 AND messages.id << 16 | 65535)
"""
"""Drops all messages that no queue holds any more."""
assert COPY_BITS == 16, "schema: a record id is taken apart in SQL"


APPEND_WITH_MESSAGE, APPEND, MOVE, SPILL = range(1, 5)
"""What a row put into `intake` does."""
INTAKE_WIDTH = 14
FRESH_WIDTH = 8
VIEWS = (
    """
CREATE TEMP VIEW fresh AS SELECT 0 AS record_id, 0 AS queue_id, 0 AS position,
    0 AS exchange, 0 AS routing_key, 0 AS properties, 0 AS body, 0 AS crc WHERE 0""",
    """
CREATE TEMP TRIGGER append_fresh INSTEAD OF INSERT ON fresh WHEN new.body IS NOT NULL BEGIN
    INSERT INTO messages VALUES (new.record_id >> 16, new.exchange, new.routing_key,
        new.properties, new.body, new.crc);
    INSERT INTO entries VALUES (new.record_id, new.queue_id, new.position, 0, 0,
        length(new.body), NULL, NULL);
END""",
    """
CREATE TEMP VIEW intake AS SELECT
    0 AS op, 0 AS record_id, 0 AS queue_id, 0 AS position, 0 AS attempts, 0 AS priority,
    0 AS size, 0 AS expires_at, 0 AS due_at, 0 AS exchange, 0 AS routing_key, 0 AS properties,
    0 AS body, 0 AS crc WHERE 0""",
    """
CREATE TEMP TRIGGER append_with_message INSTEAD OF INSERT ON intake WHEN new.op = 1 BEGIN
    INSERT INTO messages VALUES (new.record_id >> 16, new.exchange, new.routing_key,
        new.properties, new.body, new.crc);
    INSERT INTO entries VALUES (new.record_id, new.queue_id, new.position, new.attempts,
        new.priority, new.size, new.expires_at, new.due_at);
END""",
    """
CREATE TEMP TRIGGER append INSTEAD OF INSERT ON intake WHEN new.op = 2 BEGIN
    INSERT INTO entries VALUES (new.record_id, new.queue_id, new.position, new.attempts,
        new.priority, new.size, new.expires_at, new.due_at);
END""",
    """
CREATE TEMP TRIGGER move INSTEAD OF INSERT ON intake WHEN new.op = 3 BEGIN
    UPDATE entries SET position = new.position, due_at = new.due_at
        WHERE record_id = new.record_id;
END""",
    """
CREATE TEMP TRIGGER spill INSTEAD OF INSERT ON intake WHEN new.op = 4 BEGIN
    INSERT INTO messages VALUES (new.record_id >> 16, new.exchange, new.routing_key,
        new.properties, new.body, new.crc);
END""",
)
"""New messages and new places, as rows of a view; `fresh` is for a message's first copy in a
queue, not deferred, without priority and expiration: nearly all, and each value less counts.

So one statement, and with it one wait for the interpreter's lock, does a whole commit of a
publisher that waits for it: behind a busy event loop each such wait takes milliseconds. For
deliveries and settlements, which nobody waits for, statements on many ids at once cost less.
"""


def _to_2(connection: sqlite3.Connection) -> None:
    """Checksums; messages that were there before have none and are not checked."""
    connection.execute("ALTER TABLE messages ADD COLUMN crc INTEGER")


def _to_3(connection: sqlite3.Connection) -> None:
    """Queues that deliver nothing for now; before, they delivered again after a restart."""
    connection.execute("CREATE TABLE IF NOT EXISTS paused (queue_id INTEGER PRIMARY KEY)")


_UPGRADES = {1: _to_2, 2: _to_3}


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a new file, bring an older one up to date, each step in one piece.

    Raises:
        StoreError: the file is of a newer version.
        StoreCorruptError: it is a database of another program.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        check_ours(connection, path)
        if version == 0:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for step in range(version or VERSION, VERSION):
            _UPGRADES[step](connection)
        if version != VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_ours(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that this version must not touch.

    Raises:
        StoreError: the file is of a newer version.
        StoreCorruptError: it is a database of another program.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner != APPLICATION_ID and (tables or version):
        raise StoreCorruptError(path, "is an SQLite database, but not one of a broker")
    if version > VERSION:
        raise StoreError(
            path,
            f"was written by a newer version (schema {version}, this one knows {VERSION}): "
            "upgrade broker-client, or give another path",
        )
