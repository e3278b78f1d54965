"""Those who look at the messages of a queue, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from weakref import WeakValueDictionary


class QueueTurns:
    """Lets one at a time look at a queue.

    To look at messages takes them out of their queue and puts them back. A user who looks at the
    same time finds fewer of them, or none. Other applications may do that; users of the dashboard
    do not do it to each other.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def taken(self, vhost: str, queue: str) -> AsyncIterator[Callable[[], None]]:
        """Wait for the turn, and have it within the block, or until the yielded call."""
        lock = self._locks.get((vhost, queue))
        if lock is None:
            lock = self._locks[vhost, queue] = asyncio.Lock()
        await lock.acquire()
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                lock.release()

        try:
            yield end
        finally:
            end()
