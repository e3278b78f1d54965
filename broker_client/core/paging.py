"""Bodies in memory up to a limit, and read back from the store beyond it.

Where memory is short, `ON_DISK` takes the place of an entry's message, and `fetch` reads it back
together with those that come next. So code that looks into a message goes through `fetch`, unless
the entry has just been delivered.

`fetch` is the one place where the core is not pure: a command that needs a message which is not
in memory reads it from the store while it runs. To hand the read out as an effect and go on when
its answer comes would leave every queue with deliveries half made, and in another order.
"""

from __future__ import annotations

from broker_client.core.journal import Journal
from broker_client.core.queue import ON_DISK, Entry
from broker_client.core.records import MessageSource
from broker_client.message import Outgoing

_READ_AHEAD = 256  # messages read back at a time, at most


class Paging:
    """Holds the messages of an engine's entries to a limit."""

    def __init__(self, limit: int, journal: Journal, source: MessageSource | None) -> None:
        """
        Args:
            limit: bytes of bodies in memory.
            journal: notes what is left to the store.
            source: where messages are read back; without one, all stay in memory.
        """
        self._limit, self._journal, self._source = limit, journal, source
        self.resident_bytes: int = 0
        """Bodies that are in memory; a copy in each queue counts."""
        self._fresh: list[Entry] = []

    def added(self, entry: Entry) -> None:
        """A new entry, which may be left to the store when the effects are taken."""
        if self._source is not None:
            self._fresh.append(entry)

    def page_out(self) -> None:
        """Leave new messages to the store where memory is short, the last first.

        Called as the effects are taken, and not before: nobody asks for a message before the
        store has it.
        """
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
                        self._journal.spilled(entry)
                    self.resident_bytes -= len(message.body)
                    entry.size_bytes = len(message.body)
                    entry.message = ON_DISK
        fresh.clear()

    def fetch(self, entry: Entry) -> Outgoing:
        """The message of `entry`; one that only the store has is read, with those behind it.

        Raises:
            StoreError: it cannot be read.
        """
        if entry.message is not ON_DISK:
            return entry.message
        assert self._source is not None, "without a source nothing is left to the store"
        upcoming = entry.queue.ready.upcoming(_READ_AHEAD)
        batch = [entry, *(e for e in upcoming if e.message is ON_DISK and e is not entry)]
        messages = self._source.load([each.record_id for each in batch])
        for each, message in zip(batch, messages, strict=False):  # as many as the source liked
            each.message = message
            self.resident_bytes += len(message.body)
        return entry.message
