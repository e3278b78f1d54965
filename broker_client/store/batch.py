"""The records of one commit, merged into the rows to write.

A message that comes and goes within one batch is not written at all, and what happens to one is
folded into its row. So a consumer that keeps up costs the disk little. This is done in the event
loop; the writer's thread does little more than to hand the rows to SQLite, since each time it
needs the interpreter's lock it may wait milliseconds for a busy loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from broker_client.amqp.properties import encode_properties
from broker_client.amqp.received_properties import kept_properties
from broker_client.core.records import (
    COPY_BITS,
    Append,
    Delivered,
    Moved,
    QueueAdded,
    QueuePaused,
    QueueRemoved,
    Record,
    Settled,
    Spilled,
    TopologyRecord,
    TransactionBegun,
    TransactionEnded,
    VHostRemoved,
)
from broker_client.message import Outgoing
from broker_client.store import tables
from broker_client.store.access_tables import ACCESS_RECORDS, access_statements
from broker_client.store.tables import Row, Statement
from broker_client.store.topology_tables import topology_statements

_COPIED = 8_192  # bytes of the largest body that is worth a copy
_FEW = 64  # changes that are put into one statement, a row each


class QueueIds(dict[tuple[str, str], int]):
    """The number of each kept queue, by vhost and name; one declared again gets another."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def know(self, vhost: str, queue: str, id: int) -> None:
        """A queue that was there before."""
        self[vhost, queue] = id
        self._last = max(self._last, id)

    def add(self, vhost: str, queue: str) -> int:
        """A new queue."""
        self._last += 1
        self[vhost, queue] = self._last
        return self._last

    def forget(self, vhost: str) -> list[int]:
        """Remove all queues of a vhost; returns their numbers."""
        names = [name for name in self if name[0] == vhost]
        return [self.pop(name) for name in names]


class Batch:
    """The work of one transaction."""

    def __init__(self, queue_ids: QueueIds) -> None:
        self._queue_ids = queue_ids
        self.topology: list[Statement] = []
        """And of users, in order; to be done first."""
        self._appended: dict[int, Row] = {}
        """By record id: rows for `fresh` where that will do, else for `intake`."""
        self._last: tuple[int, Row] = (0, ())
        """The number of the message appended last, and its part of a row."""
        self._all_fresh = True
        self.fresh: list[Row] = []
        self.rows: list[Row] = []
        """For the views `fresh` and `intake`, once it is sealed."""
        self.body_bytes: int = 0
        """Of all messages that came with it."""
        self.delivered: dict[int, int] = {}
        self.moved: dict[int, tuple[int, float | None]] = {}
        self.settled: list[int] = []
        self.removed_queues: list[int] = []
        self.is_open: bool = False
        """A transaction of a client has begun in it, and not ended: it must not be written yet."""
        self.begun: threading.Lock = threading.Lock()
        """Released by the thread that writes it, once, when it begins."""
        self.begun.acquire()

    @property
    def is_plain(self) -> bool:
        """True when it has nothing to do but what is in `fresh`, once it is sealed."""
        return not (
            self.settled
            or self.delivered
            or self.moved
            or self.topology
            or self.removed_queues
            or self.rows
        )

    def __bool__(self) -> bool:
        return bool(self._appended or not self.is_plain)

    @property
    def size(self) -> int:
        """How many messages it brings."""
        return len(self._appended)

    def message(self, record_id: int) -> Outgoing | None:
        """The message of an entry that came with this batch."""
        row = self._appended.get(record_id)
        if row is None:
            return None
        exchange, routing_key, properties, body, _ = row[-_MESSAGE:]
        found, fault = kept_properties(bytes(properties))
        return Outgoing(exchange, routing_key, bytes(body), found, fault=fault)

    def seal(self) -> None:
        """Make the rows for the views; nothing may be added afterwards."""
        if self._all_fresh:
            self.fresh = list(self._appended.values())
        else:
            self._sort_out()
        for record_id, (position, due_at) in self.moved.items():
            place = (position, None, None, None, None, due_at)
            self.rows.append((tables.MOVE, record_id, None, *place, *_NO_MESSAGE))

    def as_rows(self) -> list[Row] | None:
        """Everything that it does as rows for `intake`; None where that is too much for rows.

        Call it once the batch is sealed. The rows are to be put there in their order.
        """
        if self.topology or self.removed_queues or self._changes > _FEW:
            return None
        rows = [*map(_wide, self.fresh), *self.rows]
        for record_id, attempts in self.delivered.items():
            rows.append((tables.COUNT, record_id, 0, 0, attempts, *_NOTHING_MORE))
        rows += [(tables.DROP, record_id, 0, 0, 0, *_NOTHING_MORE) for record_id in self.settled]
        return rows

    @property
    def _changes(self) -> int:
        return len(self._appended) + len(self.moved) + len(self.delivered) + len(self.settled)

    def _sort_out(self) -> None:
        """Have only the first copy of a message bring it along."""
        kept: set[int] = set()
        for record_id, row in self._appended.items():
            number = record_id >> COPY_BITS
            if number in kept:
                self.rows.append((tables.APPEND, *_wide(row)[1:-_MESSAGE], *_NO_MESSAGE))
            else:
                (self.fresh if len(row) == tables.FRESH_WIDTH else self.rows).append(row)
            kept.add(number)

    def add(self, records: Iterable[Record]) -> None:
        """Add the next record.

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
            elif isinstance(record, Spilled):
                self._spill(record)
            elif isinstance(record, Delivered):
                record_id, attempts = record
                row = appended.get(record_id)
                if row is None:
                    self.delivered[record_id] = attempts
                else:
                    row = _wide(row)
                    appended[record_id] = (*row[:4], attempts, *row[5:])
                    self._all_fresh = False
            elif isinstance(record, Moved):
                record_id, position, due_at = record
                row = appended.get(record_id)
                if row is None:
                    self.moved[record_id] = position, due_at
                else:
                    row = _wide(row)
                    appended[record_id] = (*row[:3], position, *row[4:8], due_at, *row[9:])
                    self._all_fresh = False
            elif isinstance(record, TransactionBegun | TransactionEnded):
                self.is_open = isinstance(record, TransactionBegun)
            elif isinstance(record, ACCESS_RECORDS):
                self.topology += access_statements(record)
            else:
                self._change_topology(record)

    def _append(self, record: Append) -> None:
        vhost, queue, record_id, message, position, priority, expires_at, due_at = record
        number = record_id >> COPY_BITS
        last, kept = self._last
        if number == last:
            self._all_fresh = False
        else:
            kept = self._keep(number, message)
            self._last = number, kept
        row: Row = (record_id, self._queue_ids[vhost, queue], position, *kept)
        if priority or expires_at is not None or due_at is not None:
            row = (*_wide(row)[:5], priority, len(message.body), expires_at, due_at, *kept)
            self._all_fresh = False
        self._appended[record_id] = row

    def _spill(self, record: Spilled) -> None:
        record_id, message = record
        place = (None,) * (tables.INTAKE_WIDTH - _MESSAGE - 2)
        self._appended[record_id] = (
            tables.SPILL,
            record_id,
            *place,
            *self._keep(record_id >> COPY_BITS, message),
        )
        self._all_fresh = False

    def _keep(self, number: int, message: Outgoing) -> Row:
        exchange, routing_key, body, properties, _, _ = message
        self.body_bytes += len(body)
        encoded = encode_properties(properties)
        total = tables.message_sum(number, exchange, routing_key, encoded, body)
        # sqlite3 binds a bytearray as it is; for bytes it looks for an adapter, repeatedly.
        if len(body) <= _COPIED:
            return exchange, routing_key, bytearray(encoded), bytearray(body), total
        return exchange, routing_key, encoded, body, total

    def _change_topology(self, record: TopologyRecord) -> None:
        queue_id = 0
        if isinstance(record, QueueAdded):
            queue_id = self._queue_ids.add(record.vhost, record.name)
        elif isinstance(record, QueuePaused):
            queue_id = self._queue_ids[record.vhost, record.name]
        elif isinstance(record, QueueRemoved):
            queue_id = self._queue_ids.pop((record.vhost, record.name))
            self.removed_queues.append(queue_id)
        elif isinstance(record, VHostRemoved):
            self.removed_queues += self._queue_ids.forget(record.vhost)
        self.topology += topology_statements(record, queue_id)


def _wide(row: Row) -> Row:
    """A row for `intake`; one for `fresh` is filled up."""
    if len(row) == tables.INTAKE_WIDTH:
        return row
    record_id, queue_id, position, *kept = row
    place = (record_id, queue_id, position, 0, 0, len(row[-2]), None, None)
    return (tables.APPEND_WITH_MESSAGE, *place, *kept)


_MESSAGE = tables.MESSAGE_WIDTH
_NO_MESSAGE: Row = (None,) * _MESSAGE
_NOTHING_MORE: Row = (0,) * (tables.INTAKE_WIDTH - 5)
