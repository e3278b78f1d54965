"""What a durable node needs of the core: records of its messages, and room in memory.

An entry with a `record_id` stands in the store as well: for good, or, where the id is below 0,
only while the node runs. Where memory is short its message is left to the store alone, `ON_DISK`
stands in its place, and `fetch` reads it back with those that come next. So code that looks into
a message goes through `fetch`, unless it has just been delivered.
"""

from __future__ import annotations

from broker_client.core.effects import Effect
from broker_client.core.queue import ON_DISK, Entry
from broker_client.core.records import (
    COPY_BITS,
    Append,
    Delivered,
    MessageSource,
    Moved,
    Settled,
    Spilled,
)
from broker_client.core.settings import EngineSettings
from broker_client.message import PERSISTENT, Outgoing

_new = tuple.__new__  # a named tuple's own constructor is a Python call
_READ_AHEAD = 256  # messages read back at a time, at most


class Keeper:
    """Writes the records of entries among the effects, and holds their messages to a limit."""

    def __init__(self, settings: EngineSettings, effects: list[Effect]) -> None:
        self._effects = effects
        self._limit = settings.memory_limit
        self.source: MessageSource | None = None
        """Where messages are read back; without one, all stay in memory."""
        self.last_record_id = 0
        self._last_spilled = 0
        self.resident_bytes = 0
        """Bodies that are in memory; a copy in each queue counts."""
        self._last_message: Outgoing | None = None
        """Recorded last; what has come since the effects were taken are copies of one publish."""
        self._fresh: list[Entry] = []

    def appended(self, entry: Entry, due_at: float | None = None) -> None:
        """A new entry; recorded if its message is persistent and its queue is kept."""
        message = entry.message
        queue = entry.queue
        self.resident_bytes += len(message.body)
        if self.source is not None:
            self._fresh.append(entry)
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

    def delivered(self, entry: Entry) -> None:
        """It is in flight: after a crash it will be a redelivery."""
        if entry.record_id > 0:
            self._effects.append(_new(Delivered, (entry.record_id, entry.attempts)))

    def moved(self, entry: Entry, due_at: float | None = None) -> None:
        """It has another position, or waits until `due_at`."""
        if entry.record_id > 0:
            self._effects.append(Moved(entry.record_id, entry.position, due_at))

    def settled(self, entry: Entry) -> None:
        """It has left its queue for good."""
        if entry.message is not ON_DISK:
            self.resident_bytes -= len(entry.message.body)
            entry.message = ON_DISK  # a ledger may still know the entry, but needs no message
        record_id = entry.record_id
        if record_id:
            queue = entry.queue
            if record_id < 0 or not queue.deleted:  # else its records go with it
                self._effects.append(_new(Settled, (queue.vhost, queue.name, record_id)))

    # ---------------------------------------------------------------- memory

    def page_out(self) -> None:
        """Leave new messages to the store where memory is short, the last first.

        Called as the effects are taken, and before: nobody asks for a message before the store
        has it.
        """
        self._last_message = None  # published again, it is another: the store may be past this one
        fresh = self._fresh
        if not fresh:
            return
        if self.resident_bytes > self._limit:
            for entry in reversed(fresh):
                if self.resident_bytes <= self._limit:
                    break
                message = entry.message
                if not entry.attempts and message is not ON_DISK:
                    if not entry.record_id:
                        self._last_spilled -= 1
                        entry.record_id = self._last_spilled << COPY_BITS
                        self._effects.append(Spilled(entry.record_id, message))
                    self.resident_bytes -= len(message.body)
                    entry.message = ON_DISK
        fresh.clear()

    def fetch(self, entry: Entry) -> Outgoing:
        """The message of `entry`; one that only the store has is read, with those behind it.

        Raises:
            StoreError: it cannot be read.
        """
        if entry.message is not ON_DISK:
            return entry.message
        assert self.source is not None, "without a source nothing is left to the store"
        upcoming = entry.queue.ready.upcoming(_READ_AHEAD)
        batch = [entry, *(e for e in upcoming if e.message is ON_DISK and e is not entry)]
        messages = self.source.load([each.record_id for each in batch])
        for each, message in zip(batch, messages, strict=False):  # as many as the source liked
            each.message = message
            self.resident_bytes += len(message.body)
        return entry.message
