"""The interface of a store for persistent messages and durable topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_client.core.records import MessageSource, Record, Recovered
from broker_client.errors import StoreError

Committed = Callable[[StoreError | None], None]


class Store(MessageSource, Protocol):
    """Takes records in order, confirms when they are committed, and restores them.

    The node calls `write` with the records of whole commands, then `commit`; publisher confirms
    that stood behind these records go out when `commit` calls back. Several commits may be under
    way at once; they call back in the order they were asked for. What was written between two
    commits becomes safe as one, or not at all. Between `TransactionBegun` and `TransactionEnded`
    nothing is made safe: a commit asked for there waits for the next one behind the end.
    """

    keeps: bool
    """False where nothing is kept: the engine then makes no records at all."""

    @property
    def is_behind(self) -> bool:
        """True while more waits for the disk than should: publishers had better wait too."""
        ...

    async def start(self, target: Recovered) -> None:
        """Open, and fill `target` with what is there. Called once, before all else.

        Raises:
            StoreError: the store cannot be used; nothing is left open.
        """
        ...

    def write(self, records: Sequence[Record]) -> None:
        """Take `records`, in order. Nothing is promised before `commit` has called back."""
        ...

    def commit(self, committed: Committed) -> None:
        """Make everything written so far safe, then call `committed` in the event loop.

        The call may come before `commit` returns. Its argument is None, or why it failed: then
        nothing written since the last good commit is safe.
        """
        ...

    async def close(self) -> None:
        """Commit what was written and close the file. May be called more than once."""
        ...

    def release(self) -> None:
        """As `close`, without waiting for the end of it."""
        ...
