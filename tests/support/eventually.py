"""Wait for a condition, with a deadline, instead of sleeping for a while and hoping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_POLL_INTERVAL = 0.005


async def eventually(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Return once `condition()` is true.

    Raises:
        AssertionError: it was not true within `timeout` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        assert loop.time() < deadline, f"not true within {timeout:g} s: {condition}"
        await asyncio.sleep(_POLL_INTERVAL)
