"""Wakes those who wait for something new; they look up themselves what it is."""

from __future__ import annotations

import asyncio


class News:
    """Notified when something that pages show changes."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        told, self._next = self._next, asyncio.Event()
        told.set()

    def next(self) -> asyncio.Event:
        """Is set at the next. Take it before looking up what is new, so that nothing is missed."""
        return self._next

    async def wait(self, seconds: float, event: asyncio.Event | None = None) -> bool:
        """Wait for the next, or for `event`; False where none came within `seconds`."""
        waited = event or self._next
        try:
            async with asyncio.timeout(seconds):
                await waited.wait()
        except TimeoutError:
            return False
        return True
