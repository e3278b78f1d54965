"""The records of one commit, merged into what must be written.

A message that comes and goes within one batch is not written at all, and what happens to one is
folded into its row. So a consumer that keeps up costs the disk little. All of this is done in the
event loop; the writer's thread only hands finished rows to SQLite, since each time it needs the
interpreter's lock it may wait milliseconds for a busy loop.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from broker_client.core.records import (
    COPY_BITS,
    Append,
    BindingAdded,
    BindingRemoved,
    Delivered,
    ExchangeAdded,
    ExchangeRemoved,
    Moved,
    QueueAdded,
    QueuePaused,
    QueueRemoved,
    Record,
    Settled,
    TopologyRecord,
    VHostAdded,
)
from broker_client.message import Outgoing
from broker_client.store import schema
from broker_client.store.encoding import decode_properties, encode_arguments, encode_properties

Row = tuple[Any, ...]


class QueueIds:
    """The number of each kept queue; one that is declared anew gets another."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._last = 0

    def know(self, vhost: str, queue: str, id: int) -> None:
        """A queue that was there before."""
        self._ids[vhost, queue] = id
        self._last = max(self._last, id)

    def add(self, vhost: str, queue: str) -> int:
        """A new queue."""
        self._last += 1
        self._ids[vhost, queue] = self._last
        return self._last

    def of(self, vhost: str, queue: str) -> int:
        """The number of a queue that is there."""
        return self._ids[vhost, queue]

    def drop(self, vhost: str, queue: str) -> int:
        """The number of a queue that is gone now."""
        return self._ids.pop((vhost, queue))


class Batch:
    """What one transaction has to do."""

    def __init__(self, queue_ids: QueueIds) -> None:
        self._queue_ids = queue_ids
        self.topology: list[tuple[str, Row]] = []
        """Statements and their parameters, in order; to be done first."""
        self._appended: dict[int, list[Any]] = {}
        self._new: dict[int, Row] = {}
        self.rows: list[Row] = []
        """For the view `intake`, once it is sealed."""
        self.body_bytes = 0
        """Of all messages that came with it."""
        self.delivered: dict[int, int] = {}
        self.moved: dict[int, tuple[int, float | None]] = {}
        self.settled: list[int] = []
        self.removed_queues: list[int] = []

    @property
    def is_plain(self) -> bool:
        """True when it has nothing to do but what is in `rows`."""
        return not (self.settled or self.delivered or self.topology or self.removed_queues)

    def __bool__(self) -> bool:
        return bool(self._appended or self.moved or not self.is_plain)

    def message(self, number: int) -> Outgoing | None:
        """A message that came with this batch."""
        row = self._new.get(number)
        if row is None:
            return None
        exchange, routing_key, properties, body, _ = row
        return Outgoing(exchange, routing_key, body, decode_properties(properties))

    def seal(self) -> None:
        """Make the rows for the view `intake`; nothing may be added any more."""
        kept: set[int] = set()
        rows = self.rows
        for entry in self._appended.values():
            number = entry[0] >> COPY_BITS
            if number in kept:
                rows.append((schema.APPEND, *entry, *_NO_MESSAGE))
            else:
                kept.add(number)
                rows.append((schema.APPEND_WITH_MESSAGE, *entry, *self._new[number]))
        for record_id, (position, due_at) in self.moved.items():
            place = (position, None, None, None, None, due_at)
            rows.append((schema.MOVE, record_id, None, *place, *_NO_MESSAGE))

    def add(self, records: Iterable[Record]) -> None:
        """Take in what happened next.

        Raises:
            InvalidMessageError: a message has a property that AMQP cannot carry.
        """
        appended = self._appended
        for record in records:
            if isinstance(record, Append):
                self._append(record)
            elif isinstance(record, Settled):
                record_id = record.record_id
                if appended.pop(record_id, None) is None:
                    self.settled.append(record_id)
                    self.delivered.pop(record_id, None)
                    self.moved.pop(record_id, None)
            elif isinstance(record, Delivered):
                row = appended.get(record.record_id)
                if row is None:
                    self.delivered[record.record_id] = record.attempts
                else:
                    row[3] = record.attempts
            elif isinstance(record, Moved):
                row = appended.get(record.record_id)
                if row is None:
                    self.moved[record.record_id] = record.position, record.due_at
                else:
                    row[2], row[7] = record.position, record.due_at
            else:
                self._change_topology(record)

    def _append(self, record: Append) -> None:
        vhost, queue, record_id, message, position, priority, expires_at, due_at = record
        number = record_id >> COPY_BITS
        exchange, routing_key, body, properties, _ = message
        size_bytes = len(body)
        if number not in self._new:
            encoded = encode_properties(properties)
            crc = zlib.crc32(body, zlib.crc32(encoded))
            self._new[number] = (exchange, routing_key, encoded, body, crc)
            self.body_bytes += size_bytes
        queue_id = self._queue_ids.of(vhost, queue)
        self._appended[record_id] = [
            record_id,
            queue_id,
            position,
            0,
            priority,
            size_bytes,
            expires_at,
            due_at,
        ]

    def _change_topology(self, record: TopologyRecord) -> None:
        do = self.topology.append
        match record:
            case VHostAdded(vhost):
                do(("INSERT OR IGNORE INTO vhosts VALUES (?)", (vhost,)))
            case ExchangeAdded(vhost, name, type, auto_delete, internal, arguments):
                row: Row = (vhost, name, type, auto_delete, internal, encode_arguments(arguments))
                do(("INSERT OR REPLACE INTO exchanges VALUES (?, ?, ?, ?, ?, ?)", row))
            case ExchangeRemoved(vhost, name):
                do(("DELETE FROM exchanges WHERE vhost = ? AND name = ?", (vhost, name)))
                do(("DELETE FROM bindings WHERE vhost = ? AND source = ?", (vhost, name)))
                do((_UNBIND_DESTINATION, (vhost, "exchange", name)))
            case QueueAdded(vhost, name, auto_delete, arguments):
                id = self._queue_ids.add(vhost, name)
                row = (id, vhost, name, auto_delete, encode_arguments(arguments))
                do(("INSERT INTO queues VALUES (?, ?, ?, ?, ?)", row))
            case QueueRemoved(vhost, name):
                id = self._queue_ids.drop(vhost, name)
                do(("DELETE FROM queues WHERE id = ?", (id,)))
                do(("DELETE FROM paused WHERE queue_id = ?", (id,)))
                do((_UNBIND_DESTINATION, (vhost, "queue", name)))
                self.removed_queues.append(id)
            case QueuePaused(vhost, name, paused):
                id = self._queue_ids.of(vhost, name)
                if paused:
                    do(("INSERT OR IGNORE INTO paused VALUES (?)", (id,)))
                else:
                    do(("DELETE FROM paused WHERE queue_id = ?", (id,)))
            case BindingAdded(vhost, source, kind, destination, key, arguments):
                row = (vhost, source, kind, destination, key, encode_arguments(arguments))
                do(("INSERT OR IGNORE INTO bindings VALUES (?, ?, ?, ?, ?, ?)", row))
            case BindingRemoved(vhost, source, kind, destination, key, arguments):
                row = (vhost, source, kind, destination, key, encode_arguments(arguments))
                do((_UNBIND, row))


_NO_MESSAGE: Row = (None,) * 5
_UNBIND = (
    "DELETE FROM bindings WHERE vhost = ? AND source = ? AND kind = ? AND destination = ? "
    "AND binding_key = ? AND arguments = ?"
)
_UNBIND_DESTINATION = "DELETE FROM bindings WHERE vhost = ? AND kind = ? AND destination = ?"
