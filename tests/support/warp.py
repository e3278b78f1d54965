"""An event loop with virtual time: when all tasks wait, the time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

_START = 1_000.0


class _Selector(selectors.DefaultSelector):
    """A selector that polls, and lets the loop's time jump in place of blocking."""

    def __init__(self) -> None:
        super().__init__()
        self.now = _START

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        return ready


class WarpLoop(asyncio.SelectorEventLoop):
    """Timers fire in their order and on their time, with no time spent.

    A unit test module that sets ``loop_factory = WarpLoop`` runs on it. Only for tests without
    sockets: a real peer would have no time to answer.
    """

    def __init__(self) -> None:
        self._warp = _Selector()
        super().__init__(self._warp)

    def time(self) -> float:
        return self._warp.now


async def settle(rounds: int = 20) -> None:
    """Let every task that can run do so, without moving time."""
    for _ in range(rounds):
        await asyncio.sleep(0)
