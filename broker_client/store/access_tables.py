"""Users and permissions in the file: statements that write them, and how they are read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from broker_client.core.records import (
    AccessRecord,
    PermissionsRemoved,
    PermissionsSet,
    TopicPermissionsRemoved,
    TopicPermissionsSet,
    UserRemoved,
    UserSet,
)
from broker_client.errors import StoreCorruptError
from broker_client.store.tables import ACCESS, Statement, put, summed_rows

ACCESS_RECORDS = (
    UserSet,
    UserRemoved,
    PermissionsSet,
    PermissionsRemoved,
    TopicPermissionsSet,
    TopicPermissionsRemoved,
)


def access_statements(record: AccessRecord) -> Iterator[Statement]:
    """What `record` changes."""
    match record:
        case UserSet(name, password_hash, algorithm, tags):
            yield put("users", name, password_hash, algorithm, json.dumps(tags))
        case UserRemoved(name):
            yield "DELETE FROM users WHERE name = ?", (name,)
            yield "DELETE FROM permissions WHERE user = ?", (name,)
            yield "DELETE FROM topic_permissions WHERE user = ?", (name,)
        case PermissionsSet(vhost, user, configure, write, read):
            yield put("permissions", vhost, user, configure, write, read)
        case PermissionsRemoved(vhost, user):
            yield "DELETE FROM permissions WHERE vhost = ? AND user = ?", (vhost, user)
        case TopicPermissionsSet(vhost, user, exchange, write, read):
            yield put("topic_permissions", vhost, user, exchange, write, read)
        case TopicPermissionsRemoved(vhost, user, exchange):
            yield (
                "DELETE FROM topic_permissions WHERE vhost = ? AND user = ? AND exchange = ?",
                (vhost, user, exchange),
            )


def read_access(connection: sqlite3.Connection, path: str) -> Iterator[AccessRecord]:
    """All users, then their permissions.

    Raises:
        StoreCorruptError: a row is damaged.
    """
    for table in ACCESS:
        for row, sound in summed_rows(connection, table):
            if not sound:
                raise StoreCorruptError(path, f"a row of {table} is damaged")
            match table:
                case "users":
                    name, password_hash, algorithm, tags = row
                    yield UserSet(name, password_hash, algorithm, tuple(json.loads(tags)))
                case "permissions":
                    yield PermissionsSet(*row)
                case "topic_permissions":
                    yield TopicPermissionsSet(*row)
