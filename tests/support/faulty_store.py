"""A store without a disk, with commits and faults under the control of the test.

`DiskState` is the simplest model of records; the SQLite store is compared with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_client.core.records import (
    AccessRecord,
    Append,
    BindingAdded,
    BindingRemoved,
    Delivered,
    ExchangeAdded,
    ExchangeRemoved,
    GlobalParameterRemoved,
    GlobalParameterSet,
    Moved,
    PermissionsRemoved,
    PermissionsSet,
    PolicyRemoved,
    PolicySet,
    QueueAdded,
    QueuePaused,
    QueueRemoved,
    Record,
    Recovered,
    Settled,
    Spilled,
    StoredEntry,
    TopicPermissionsRemoved,
    TopicPermissionsSet,
    TopologyRecord,
    TransactionBegun,
    TransactionEnded,
    UserRemoved,
    UserSet,
    VHostAdded,
    VHostLimitsSet,
    VHostMetadataSet,
    VHostRemoved,
    message_number,
)
from broker_client.errors import StoreError
from broker_client.message import Outgoing
from broker_client.store.base import Committed


@dataclass(frozen=True)
class Held:
    """One copy of a message in one queue."""

    vhost: str
    queue: str
    message: Outgoing
    entry: StoredEntry


@dataclass
class DiskState:
    """The state after a crash."""

    topology: dict[Any, TopologyRecord] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    spilled: dict[int, Outgoing] = field(default_factory=dict)
    """Messages that a restart does not restore, by number."""
    access: list[AccessRecord] = field(default_factory=list)
    """All of users and permissions, in order."""
    changes: int = field(default=0, compare=False)
    """Number of applied records."""

    def copy(self) -> DiskState:
        return DiskState(
            dict(self.topology), dict(self.held), dict(self.spilled), list(self.access)
        )

    def apply(self, records: Iterable[Record]) -> None:
        for record in records:
            self.changes += 1
            self._apply(record)

    def _apply(self, record: Record) -> None:
        match record:
            case Append(vhost, queue, id, message, position, priority, expires_at, due_at):
                assert ("queue", vhost, queue) in self.topology, record
                entry = StoredEntry(
                    id, position, 0, priority, len(message.body), expires_at, due_at
                )
                assert id not in self.held, f"{id} is used twice"
                self.held[id] = Held(vhost, queue, message, entry)
            case Spilled(id, message):
                assert message_number(id) not in self.spilled, f"{id} is used twice"
                self.spilled[message_number(id)] = message
            case Settled(_, _, id) if id < 0:
                del self.spilled[message_number(id)]
            case Delivered(id, attempts):
                self._change(id, attempts=attempts)
            case Moved(id, position, due_at):
                self._change(id, position=position, due_at=due_at)
            case Settled(_, _, id):
                del self.held[id]
            case QueueRemoved(vhost, name):
                self.held = {
                    id: held
                    for id, held in self.held.items()
                    if (held.vhost, held.queue) != (vhost, name)
                }
                self._remove("queue", vhost, name)
                self.topology.pop(("paused", vhost, name), None)
            case TransactionBegun() | TransactionEnded():
                pass
            case VHostRemoved(vhost):
                self.held = {id: held for id, held in self.held.items() if held.vhost != vhost}
                self.topology = {
                    key: kept for key, kept in self.topology.items() if key[1] != vhost
                }
            case ExchangeRemoved(vhost, name):
                self._remove("exchange", vhost, name)
            case BindingRemoved():
                self.topology.pop(_key(record), None)
            case PolicyRemoved():
                self.topology.pop(_key(record), None)
            case GlobalParameterRemoved():
                self.topology.pop(_key(record), None)
            case QueuePaused(vhost, name, False):
                self.topology.pop(("paused", vhost, name), None)
            case (
                UserSet()
                | UserRemoved()
                | PermissionsSet()
                | PermissionsRemoved()
                | TopicPermissionsSet()
                | TopicPermissionsRemoved()
            ):
                self.access.append(record)
            case _:
                self.topology[_key(record)] = record

    def _change(self, id: int, **fields: Any) -> None:
        held = self.held[id]
        self.held[id] = replace(held, entry=held.entry._replace(**fields))

    def _remove(self, kind: str, vhost: str, name: str) -> None:
        del self.topology[kind, vhost, name]
        for key, record in list(self.topology.items()):
            if isinstance(record, BindingAdded) and record.vhost == vhost:
                ends = [(record.kind, record.destination), ("exchange", record.source)]
                if (kind, name) in ends:
                    del self.topology[key]

    def recover(self, target: Recovered) -> None:
        self.spilled.clear()
        ordered = sorted(self.topology.values(), key=lambda record: _RANK[type(record)])
        target.restore_topology(ordered)
        target.restore_access(self.access)
        queues: dict[tuple[str, str], list[StoredEntry]] = {}
        for held in self.held.values():
            queues.setdefault((held.vhost, held.queue), []).append(held.entry)
        for (vhost, queue), entries in queues.items():
            entries.sort(key=lambda entry: entry.position)
            target.restore_entries(vhost, queue, entries)

    def bodies(self, queue: str) -> list[bytes]:
        """What `queue` holds, by position."""
        held = [each for each in self.held.values() if each.queue == queue]
        held.sort(key=lambda each: each.entry.position)
        return [each.message.body for each in held]


_RANK: dict[type[Any], int] = {
    GlobalParameterSet: 0,
    VHostAdded: 0,
    VHostLimitsSet: 1,
    VHostMetadataSet: 1,
    PolicySet: 1,
    ExchangeAdded: 1,
    QueueAdded: 2,
    QueuePaused: 3,
    BindingAdded: 4,
}


def _key(record: Any) -> Any:
    if isinstance(record, GlobalParameterSet | GlobalParameterRemoved):
        return "parameter", None, record.name
    if isinstance(record, VHostAdded):
        return "vhost", record.vhost
    if isinstance(record, VHostLimitsSet):
        return "limits", record.vhost
    if isinstance(record, VHostMetadataSet):
        return "metadata", record.vhost
    if isinstance(record, PolicySet | PolicyRemoved):
        return "policy", record.vhost, record.name, record.is_operator
    if isinstance(record, QueuePaused):
        return "paused", record.vhost, record.name
    if isinstance(record, BindingAdded | BindingRemoved):
        arguments = repr(sorted(record.arguments.items()))
        ends = record.source, record.kind, record.destination, record.binding_key
        return "binding", record.vhost, *ends, arguments
    return "queue" if isinstance(record, QueueAdded) else "exchange", record.vhost, record.name


class FaultyStore:
    """A node's store; the test says when a commit ends, and how.

    `point` is called at each place where a process may die, and may raise.
    """

    keeps = True
    is_behind = False

    def __init__(self, disk: DiskState, point: Callable[[str], None] = lambda name: None) -> None:
        self.disk = disk
        self._point = point
        self._open: list[Record] = []
        self._sealed: deque[tuple[list[Record], Callable[[StoreError | None], object]]] = deque()
        self._asked: list[Committed] = []
        self._in_transaction = False
        self.error: StoreError | None = None

    @property
    def commits_under_way(self) -> int:
        return len(self._sealed)

    @property
    def is_at_rest(self) -> bool:
        """True if all records are on the disk."""
        return not self._sealed and not self._open and self.error is None

    async def start(self, target: Recovered) -> None:
        self.begin(target)

    def begin(self, target: Recovered) -> None:
        """`start`, without an event loop."""
        self.disk.recover(target)

    def write(self, records: Sequence[Record]) -> None:
        self._point("write")
        self._open.extend(records)
        for record in records:
            if isinstance(record, TransactionBegun | TransactionEnded):
                self._in_transaction = isinstance(record, TransactionBegun)

    def commit(self, committed: Committed) -> None:
        self._point("commit")
        self._asked.append(committed)
        if not self._in_transaction:
            asked, self._asked = self._asked, []
            self._sealed.append((self._open, lambda error: [each(error) for each in asked]))
            self._open = []

    def load(self, record_ids: Sequence[int]) -> list[Outgoing]:
        self._point("load")
        known = {message_number(id): held.message for id, held in self.disk.held.items()}
        known |= self.disk.spilled
        for records in [*(each for each, _ in self._sealed), self._open]:
            for record in records:
                if isinstance(record, Append | Spilled):
                    known[message_number(record.record_id)] = record.message
        return [known[message_number(id)] for id in record_ids][:3]

    def end_commit(self, error: StoreError | None = None) -> None:
        """End the oldest commit under way; once one has failed, all later ones fail."""
        records, committed = self._sealed.popleft()
        self.error = self.error or error
        if self.error is None:
            self.disk.apply(records)
            self._point("committed")
        committed(self.error)

    def die(self, *, commits_made: int) -> DiskState:
        """The state of the disk if the process dies now, with `commits_made` of the pending commits
        done."""
        if self.error is None:
            for records, _ in list(self._sealed)[:commits_made]:
                self.disk.apply(records)
        return self.disk

    async def close(self) -> None:
        self.release()

    def release(self) -> None:
        while self._sealed:
            self.end_commit()
        if self.error is None:
            self.disk.apply(self._open)
        self._open = []
