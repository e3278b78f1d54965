"""Where persistent messages are kept, as the node sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from broker_client.core.effects import Record
from broker_client.errors import StoreError

Committed = Callable[[StoreError | None], None]


class Store(Protocol):
    """Takes records in order, and says when they are safe.

    The node calls `write` with the records of one batch of effects, then `commit`; publisher
    confirms that stood behind these records go out when `commit` calls back. Several commits may
    be under way at once; they call back in the order they were asked for.
    """

    keeps: bool
    """False where nothing is kept: the engine then makes no records at all."""

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
        """Commit what was written and let go of the files. Harmless twice."""
        ...
