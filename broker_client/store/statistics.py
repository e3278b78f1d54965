"""Counts of a file's content, even while a node has it open."""

from __future__ import annotations

import os
import sqlite3

from broker_client.errors import StoreError
from broker_client.runtime.slotted import slotted
from broker_client.store import tables
from broker_client.store.sqlite import reading, translated


@slotted
class KeptQueue:
    """The kept messages of one durable queue."""

    vhost: str
    name: str
    waiting: int
    """Ready or in flight: the file does not know which."""
    deferred: int
    """Waiting for their time."""
    delivered: int
    """Of both, those that were handed out at least once."""
    most_attempts: int
    """Deliveries of the message that was delivered most often."""
    body_bytes: int


@slotted
class KeptStats:
    """What a file holds at one moment."""

    path: str
    file_bytes: int
    """Of the file and its log."""
    messages: int
    """Each once, however many queues hold it."""
    queues: tuple[KeptQueue, ...]


def read_stats(path: str) -> KeptStats:
    """Count what the file at `path` holds, as of its last commit; changes nothing.

    Raises:
        StoreError: there is no such file, it is not a broker's, or it is damaged.
    """
    if not os.path.isfile(path):
        raise StoreError(path, "there is no such file")
    with translated(path), reading(path) as connection:
        connection.execute("BEGIN")  # one moment for both questions
        tables.check_ours(connection, path)
        return KeptStats(path, file_bytes(path), *contents(connection))


def contents(connection: sqlite3.Connection) -> tuple[int, tuple[KeptQueue, ...]]:
    """The number of messages, and what each queue holds."""
    queues = tuple(KeptQueue(*row) for row in connection.execute(tables.CONTENTS))
    (messages,) = connection.execute(tables.COUNT_MESSAGES).fetchone()
    return messages, queues


def file_bytes(path: str) -> int:
    """The size of a file and its log."""
    path = os.path.realpath(path)
    return sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
