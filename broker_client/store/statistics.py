"""What a file holds, counted; also while a node has it open."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from broker_client.errors import StoreError
from broker_client.store import schema
from broker_client.store.sqlite import translated


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class KeptStats:
    """What a file holds at one moment."""

    path: str
    file_bytes: int
    """Of the file and its log."""
    messages: int
    """Each once, however many queues hold it."""
    queues: tuple[KeptQueue, ...]


_QUEUES = """
SELECT q.vhost, q.name,
    COUNT(e.record_id) - COUNT(e.due_at), COUNT(e.due_at),
    COALESCE(SUM(e.attempts > 0), 0), COALESCE(MAX(e.attempts), 0), COALESCE(SUM(e.size), 0)
FROM queues AS q LEFT JOIN entries AS e ON e.queue_id = q.id
GROUP BY q.id ORDER BY q.vhost, q.name
"""


def read_stats(path: str) -> KeptStats:
    """Count what the file at `path` holds, as of its last commit; changes nothing.

    Raises:
        StoreError: it is not there, or no file of ours, or damaged.
    """
    if not os.path.isfile(path):
        raise StoreError(path, "there is no such file")
    address = f"{Path(path).absolute().as_uri()}?mode=ro"
    with translated(path):
        connection = sqlite3.connect(address, uri=True, isolation_level=None)
        try:
            connection.execute("BEGIN")  # one moment for both questions
            schema.check_ours(connection, path)
            queues = tuple(KeptQueue(*row) for row in connection.execute(_QUEUES))
            (messages,) = connection.execute(schema.COUNT_MESSAGES).fetchone()
        finally:
            connection.close()
    size = sum(os.path.getsize(each) for each in (path, f"{path}-wal") if os.path.exists(each))
    return KeptStats(path, size, messages, queues)
