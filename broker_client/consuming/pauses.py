"""Pauses of a consumer for several reasons: it resumes when the last one has ended."""

from __future__ import annotations

from broker_client.consuming.consumer import Consumer


class Pauses:
    """Pauses and resumes one consumer.

    Args:
        consumer: what to pause.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._reasons: set[str] = set()

    def hold(self, reason: str) -> None:
        """Start no more handlers; `pause` for the same reason follows."""
        self._reasons.add(reason)
        self._consumer.hold()

    async def pause(self, reason: str) -> None:
        """Pause for `reason`. May be called more than once."""
        self._reasons.add(reason)
        await self._consumer.pause()

    async def resume(self, reason: str) -> None:
        """End the pause for `reason`; consuming goes on if there is no other."""
        self._reasons.discard(reason)
        if not self._reasons:
            await self._consumer.resume()
