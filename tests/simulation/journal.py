"""What a store was told, commit by commit, and whether that is what it gives back.

After each start, what the store restores must be the effect of a beginning of all that was written
to it, and of no less than what it had called committed: nothing confirmed is lost, nothing settled
comes back, no commit is there in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker_client.core.records import (
    AccessRecord,
    Record,
    Recovered,
    StoredEntry,
    TopologyRecord,
)
from broker_client.errors import StoreError
from broker_client.message import Outgoing
from broker_client.store.base import Committed, Store
from tests.simulation.promises import Promises
from tests.support.faulty_store import DiskState

Content = tuple[list[str], dict[tuple[str, str], list[StoredEntry]]]


class _Collected:
    """Takes what a store restores, and passes it on where there is somebody to take it."""

    def __init__(self, target: Recovered | None = None) -> None:
        self._target = target
        self._topology: list[str] = []
        self.entries: dict[tuple[str, str], list[StoredEntry]] = {}

    @property
    def content(self) -> Content:
        return self._topology, self.entries

    def restore_topology(self, records: Iterable[TopologyRecord]) -> None:
        found = list(records)
        self._topology = sorted(map(repr, found))
        if self._target is not None:
            self._target.restore_topology(found)

    def restore_access(self, records: Iterable[AccessRecord]) -> None:
        if self._target is not None:
            self._target.restore_access(records)

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[StoredEntry]) -> None:
        found = [StoredEntry(*entry) for entry in entries]
        self.entries[vhost, queue] = found
        if self._target is not None:
            self._target.restore_entries(vhost, queue, found)


class Journal:
    """All that was written to a file over the lives of its node."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._state = DiskState()
        """As of the last start, with what is known to be committed since."""
        self._pending: list[Sequence[Record]] = []
        """Written, and not known to be committed."""
        self._asked: list[int] = []
        """Up to which of these each commit under way goes."""
        self.commits = 0
        self.has_failed = False
        """A commit has failed since the last start."""

    def written(self, records: Sequence[Record]) -> None:
        self._pending.append(list(records))

    def asked(self) -> None:
        self._asked.append(len(self._pending))

    def committed(self) -> None:
        """The oldest commit that was asked for has ended well."""
        count = self._asked.pop(0)
        for records in self._pending[:count]:
            self._apply(records)
        del self._pending[:count]
        self._asked = [each - count for each in self._asked]
        self.commits += 1

    def _apply(self, records: Sequence[Record]) -> None:
        try:
            self._state.apply(records)
        except (AssertionError, KeyError) as error:
            self._promises.break_(f"a record of what is not there: {error!r}")

    def check(self, found: Content, *, in_order: bool) -> None:
        """Compare with what the store restores at its next start.

        Args:
            found: that.
            in_order: the node before was closed, so that nothing may be missing.
        """
        self._asked.clear()
        self.has_failed = False
        pending, self._pending = self._pending, []
        for records in pending if in_order else ():
            self._apply(records)
        rest = [] if in_order else pending
        while self._content() != found:
            if not rest:
                self._promises.break_(f"the file gives back {found} after {self._content()}")
                return
            self._apply(rest.pop(0))

    def _content(self) -> Content:
        self._state.spilled.clear()
        collected = _Collected()
        self._state.recover(collected)
        return collected.content

    def check_message(self, record_id: int, found: Outgoing) -> None:
        """Is it the message that was written under that id, but for how it was to be routed?"""
        held = self._state.held.get(record_id)
        if held is None or held.message._replace(mandatory=found.mandatory) != found:
            self._promises.break_(f"entry {record_id} has another message: {found}")


class JournaledStore:
    """A store with a journal of what it is told."""

    def __init__(self, store: Store, journal: Journal, *, in_order: bool) -> None:
        """
        Args:
            store: does the work.
            journal: over the lives of its file.
            in_order: the node before was closed.
        """
        self._store, self._journal, self._in_order = store, journal, in_order
        self.keeps = store.keeps

    @property
    def is_behind(self) -> bool:
        return self._store.is_behind

    async def start(self, target: Recovered) -> None:
        collected = _Collected(target)
        await self._store.start(collected)
        self._journal.check(collected.content, in_order=self._in_order)
        for entries in collected.entries.values():
            for entry in entries:
                [found] = self._store.load([entry.record_id])
                self._journal.check_message(entry.record_id, found)

    def write(self, records: Sequence[Record]) -> None:
        self._journal.written(records)
        self._store.write(records)

    def commit(self, committed: Committed) -> None:
        self._journal.asked()

        def done(error: StoreError | None) -> None:
            if error is None:
                self._journal.committed()
            else:
                self._journal.has_failed = True
            committed(error)

        self._store.commit(done)

    def load(self, record_ids: Sequence[int]) -> list[Outgoing]:
        return list(self._store.load(record_ids))

    async def close(self) -> None:
        await self._store.close()

    def release(self) -> None:
        self._store.release()
