"""Which publish makes the broker close the whole connection."""

from __future__ import annotations

import asyncio


class Suspicion:
    """Makes senders try suspected publishes one at a time on the whole connection.

    When the broker closes a connection over a publish, all senders had publishes on it. Each of
    them registers what it had unconfirmed; then they take turns with one publish each, while all
    others wait, until the culprit was alone when it happened again.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._suspects: set[object] = set()  # the senders that have some
        self._none = asyncio.Event()
        self._none.set()

    @property
    def turn(self) -> asyncio.Lock:
        """Hold it to send publishes under suspicion."""
        return self._turn

    def register(self, sender: object) -> None:
        """`sender` has publishes under suspicion."""
        self._suspects.add(sender)
        self._none.clear()

    def clear(self, sender: object) -> None:
        """`sender` has none any more."""
        self._suspects.discard(sender)
        if not self._suspects:
            self._none.set()

    def has(self, sender: object) -> bool:
        """True when `sender` has publishes under suspicion."""
        return sender in self._suspects

    async def wait_none(self) -> None:
        """Return when no sender has any."""
        await self._none.wait()
