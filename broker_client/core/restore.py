"""Restores a node's exchanges, queues and messages before the first connection."""

from __future__ import annotations

from collections.abc import Iterable

from broker_client.core.access import Users
from broker_client.core.arguments import queue_settings
from broker_client.core.exchange import Destination, Exchange
from broker_client.core.policies import Policy
from broker_client.core.queue import ON_DISK, Entry, Queue
from broker_client.core.records import (
    AccessRecord,
    BindingAdded,
    ExchangeAdded,
    GlobalParameterRemoved,
    GlobalParameterSet,
    PolicySet,
    QueueAdded,
    QueuePaused,
    StoredEntry,
    TopologyRecord,
    VHostAdded,
    VHostLimitsSet,
    VHostMetadataSet,
)
from broker_client.core.settings import RabbitMQVersion
from broker_client.core.state import State


class Restoring:
    """What a store restores at the start; see `records.Recovered`.

    Messages are not read: every entry begins `ON_DISK`, so that a million of them are there in
    seconds, and their memory is bounded from the first moment.
    """

    def __init__(self, state: State, users: Users) -> None:
        self._state, self._users = state, users

    def restore_topology(self, records: Iterable[TopologyRecord]) -> None:
        """Add what `records` tell of, what is needed before what needs it."""
        for record in records:
            if isinstance(record, GlobalParameterSet):
                self._state.global_parameters.restore(record.name, record.value)
                continue
            assert not isinstance(record, GlobalParameterRemoved), f"{record!r} is no state"
            if isinstance(record, VHostAdded):
                self._state.add_vhost(record.vhost)
                continue
            vhost = self._state.vhosts[record.vhost]
            if isinstance(record, PolicySet):
                vhost.policies.restore(
                    Policy(
                        record.vhost,
                        record.name,
                        record.pattern,
                        record.definition,
                        record.priority,
                        record.apply_to,
                        record.is_operator,
                    )
                )
            elif isinstance(record, VHostLimitsSet):
                vhost.limits = dict(record.limits)
            elif isinstance(record, VHostMetadataSet):
                vhost.metadata = record.metadata
            elif isinstance(record, ExchangeAdded):
                vhost.declare_exchange(
                    Exchange(
                        record.name,
                        record.type,
                        auto_delete=record.auto_delete,
                        internal=record.internal,
                        arguments=record.arguments,
                    )
                )
            elif isinstance(record, QueueAdded):
                vhost.add_queue(
                    _queue(record, self._state.settings.compatibility), server_named=True
                )
            elif isinstance(record, QueuePaused):
                vhost.set_paused(vhost.queues[record.name], record.paused)
            else:
                assert isinstance(record, BindingAdded), f"{record!r} is no state"
                destination = Destination(record.kind, record.destination)
                vhost.bind(destination, record.source, record.binding_key, record.arguments)
        self._state.effects.clear()  # the store knows all this

    def restore_access(self, records: Iterable[AccessRecord]) -> None:
        """Add users and their permissions."""
        self._users.restore(records)

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[StoredEntry]) -> None:
        """Fill a queue with `entries`, which come in order of their positions."""
        target = self._state.vhosts[vhost].queues[queue]
        push = target.push  # a million times
        count = highest = position = 0
        for record_id, position, attempts, priority, size_bytes, expires_at, due_at in entries:
            entry = Entry(target, ON_DISK, position)
            entry.record_id = record_id
            entry.attempts = attempts
            entry.priority = priority
            entry.size_bytes = size_bytes
            if expires_at is not None:
                entry.expires_at = expires_at
                target.expiring = True
            if due_at is None:
                push(entry)
            else:
                target.deferred.add(entry, due_at)
            count += 1
            if record_id > highest:
                highest = record_id
        target.enqueued += count
        target.position = position
        journal = self._state.journal
        journal.last_record_id = max(journal.last_record_id, highest)

    def finish(self, now: float) -> None:
        """The restore is complete: what is due is done at the next `tick`."""
        for vhost in self._state.vhosts.values():
            for queue in vhost.queues.values():
                queue.last_used = now  # RabbitMQ: x-expires begins again with the server
                self._state.schedule.look_again(queue)


def _queue(record: QueueAdded, version: RabbitMQVersion) -> Queue:
    return Queue(
        record.name,
        record.vhost,
        durable=True,
        owner=None,
        auto_delete=record.auto_delete,
        arguments=record.arguments,
        settings=queue_settings(record.arguments, record.name, record.vhost, version),
        last_used=0.0,
    )
