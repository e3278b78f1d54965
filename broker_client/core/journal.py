"""The records of a durable node's messages, written among the effects."""

from __future__ import annotations

from broker_client.core.effects import Effect
from broker_client.core.queue import Entry
from broker_client.core.records import COPY_BITS, Append, Delivered, Moved, Settled, Spilled
from broker_client.message import PERSISTENT, Outgoing

_new = tuple.__new__  # a named tuple's own constructor is a Python call


class Journal:
    """Records what happens to the entries that a store keeps.

    An entry with a `record_id` stands in the store: for good, or, where the id is below 0, only
    while the node runs, since memory is short.
    """

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self.last_record_id: int = 0
        self._last_spilled = 0
        self._last_message: Outgoing | None = None
        """Recorded last, with these effects: the next entry may be another copy of it."""

    def appended(self, entry: Entry, due_at: float | None = None) -> None:
        """A new entry; recorded if its message is persistent and its queue outlives the node."""
        message = entry.message
        queue = entry.queue
        if not queue.kept or message.properties.delivery_mode != PERSISTENT:
            return
        if message is self._last_message:
            record_id = self.last_record_id + 1  # another copy of the same message
        else:
            self._last_message = message
            record_id = ((self.last_record_id >> COPY_BITS) + 1) << COPY_BITS
        self.last_record_id = entry.record_id = record_id
        fields = (
            queue.vhost,
            queue.name,
            record_id,
            message,
            entry.position,
            entry.priority,
            entry.expires_at,
            due_at,
        )
        self._effects.append(_new(Append, fields))

    def spilled(self, entry: Entry) -> None:
        """The store keeps the message of `entry` while the node runs."""
        self._last_spilled -= 1
        entry.record_id = self._last_spilled << COPY_BITS
        self._effects.append(Spilled(entry.record_id, entry.message))

    def delivered(self, entry: Entry) -> None:
        """It is in flight: after a crash it will be a redelivery."""
        if entry.record_id > 0:
            self._effects.append(_new(Delivered, (entry.record_id, entry.attempts)))

    def moved(self, entry: Entry, due_at: float | None = None) -> None:
        """It got another position, or waits until `due_at`."""
        if entry.record_id > 0:
            self._effects.append(Moved(entry.record_id, entry.position, due_at))

    def settled(self, entry: Entry) -> None:
        """It has left its queue for good."""
        queue = entry.queue
        if entry.record_id < 0 or (entry.record_id and not queue.deleted):  # else it goes with it
            self._effects.append(_new(Settled, (queue.vhost, queue.name, entry.record_id)))

    def effects_taken(self) -> None:
        """A message published again is another from now on: the store may be past this one."""
        self._last_message = None
