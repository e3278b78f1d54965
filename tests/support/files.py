"""Creates, fills and inspects store files without a node."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from broker_client.core.records import COPY_BITS, Append, QueueAdded, Record, VHostAdded
from broker_client.message import PERSISTENT, Outgoing
from broker_client.store.batch import Batch
from broker_client.store.sqlite import StoreFile
from tests.support.builders import a_message


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[StoreFile]:
    file = StoreFile(str(path))
    file.open()
    for id, vhost, name in file.connection.execute("SELECT id, vhost, name FROM queues"):
        file.queue_ids.know(vhost, name, id)
    try:
        yield file
    finally:
        file.close()


def written(file: StoreFile, *records: Record) -> None:
    """Write `records` as one transaction."""
    batch = Batch(file.queue_ids)
    batch.add(records)
    file.apply(batch)


def appended(number: int, message: Outgoing | None = None, **fields: Any) -> Append:
    """The record of message `number`, in queue ``q`` unless told otherwise."""
    message = message or a_message(body=b"body %d" % number, delivery_mode=PERSISTENT)
    defaults: dict[str, Any] = {
        "vhost": "/",
        "queue": "q",
        "record_id": number << COPY_BITS,
        "message": message,
        "position": number,
    }
    return Append(**{**defaults, **fields})


def a_file(path: Path, numbers: Iterable[int] = (), **fields: Any) -> Path:
    """A file with queue ``q`` and these messages in it."""
    with opened(path) as file:
        records = [appended(number, **fields) for number in numbers]
        written(file, VHostAdded("/"), QueueAdded("/", "q", False, {}), *records)
    return path


def rows(path: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """The result of an SQL query on the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute(statement, parameters).fetchall()
        connection.commit()
        return found
