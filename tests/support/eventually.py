"""Waits for a condition, with a deadline, in place of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

_POLL_INTERVAL = 0.005


async def eventually(
    condition: Callable[[], object] | Callable[[], Awaitable[object]],
    timeout: float = 30.0,
    message: str = "",
) -> None:
    """Return once `condition()`, which may be a coroutine function, is true.

    Args:
        condition: called repeatedly.
        timeout: seconds; many, since a busy machine may pause, and a condition that becomes true
        ends the wait.
        message: the condition in words, for the error.

    Raises:
        AssertionError: it was not true within `timeout` seconds; tells the last value.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not (value := await _value(condition)):
        assert loop.time() < deadline, (
            f"not true within {timeout:g} s: {message or condition} (last value: {value!r})"
        )
        await asyncio.sleep(_POLL_INTERVAL)


async def _value(condition: Callable[[], object]) -> object:
    value = condition()
    return await value if inspect.isawaitable(value) else value
