"""The store of a node without a file: messages end with the node."""

from __future__ import annotations

from collections.abc import Sequence

from broker_client.core.records import Record, Recovered
from broker_client.message import Outgoing
from broker_client.store.base import Committed


class MemoryStore:
    """Confirms at once, and stores nothing."""

    keeps = False
    is_behind = False

    async def start(self, target: Recovered) -> None:
        """Nothing was kept."""

    def load(self, record_ids: Sequence[int]) -> list[Outgoing]:
        """Never asked: without records, every message stays in memory."""
        raise AssertionError(f"{len(record_ids)} messages were left to a store that keeps none")

    def write(self, records: Sequence[Record]) -> None:
        """Nothing to do: the engine holds the messages."""

    def commit(self, committed: Committed) -> None:
        """Report success at once: nothing is stored."""
        committed(None)

    async def close(self) -> None:
        """Nothing to close."""

    def release(self) -> None:
        """Nothing to close."""
