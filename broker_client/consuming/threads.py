"""Threads for handlers that are plain functions: a subscription's own.

asyncio's default pool has few threads, and all of the program shares it: handlers would wait for
each other below what was declared, and name resolution and stores would wait for handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from broker_client.config import SubscriptionConfig

_MOST = 256
"""Threads where the prefetch, not a `concurrency`, is all that limits handlers."""


class HandlerThreads:
    """Runs the plain functions of one subscription; a thread starts when none is idle."""

    def __init__(self, config: SubscriptionConfig) -> None:
        self._name = f"subscription {config.name}"
        self._size = config.concurrency or min(config.prefetch or _MOST, _MOST)
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[..., Any], *args: Any, **by_name: Any) -> Any:
        """Call `function` in a thread, in the context of the caller."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._size, self._name)
        work = partial(copy_context().run, _called, function, *args, **by_name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Let the threads end once they are idle."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _called(function: Callable[..., Any], *args: Any, **by_name: Any) -> Any:
    """A future cannot hold a StopIteration, and would never be done."""
    try:
        return function(*args, **by_name)
    except StopIteration as error:  # as out of a coroutine (PEP 479)
        raise RuntimeError("handler raised StopIteration") from error
