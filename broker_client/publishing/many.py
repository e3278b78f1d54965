"""What `publish_many` has under way, and its report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker_client.errors import PublishError
from broker_client.publication import Publication

_ERRORS_KEPT = 100


@dataclass(frozen=True, slots=True)
class PublishReport:
    """Outcome counts of one `publish_many`."""

    published: int
    succeeded: int
    failed: int
    """Returned ones included."""
    seconds: float
    max_in_flight: int
    """Most publishes under way at a time."""
    errors: tuple[PublishError, ...]
    """The first hundred failures, in order of their end."""


class ManyPublishes:
    """The unfinished publishes of one `publish_many`, and counts of the others."""

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; 1 or more is allowed")
        self._window = window
        self._started = asyncio.get_running_loop().time()
        self.under_way = 0
        self._most = self._published = self._failed = 0
        self._errors: list[PublishError] = []
        self._changed: asyncio.Future[None] | None = None  # while this waits

    def __repr__(self) -> str:
        return f"<ManyPublishes: {self._published} published, {self.under_way} under way>"

    async def room(self) -> None:
        while self.under_way >= self._window:
            await self._wait()

    def began(self, publication: Publication) -> None:
        self._published += 1
        self.under_way += 1
        if self.under_way > self._most:
            self._most = self.under_way
        publication.when_ended(self._one_ended)

    def _one_ended(self, error: PublishError | None) -> None:
        self.under_way -= 1
        if error is not None:
            self._failed += 1
            if len(self._errors) < _ERRORS_KEPT:
                self._errors.append(error)
        if self._changed is not None:
            if not self._changed.done():
                self._changed.set_result(None)
            self._changed = None

    async def ended(self) -> None:
        while self.under_way:
            await self._wait()

    async def _wait(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def report(self) -> PublishReport:
        return PublishReport(
            self._published,
            self._published - self._failed,
            self._failed,
            asyncio.get_running_loop().time() - self._started,
            self._most,
            tuple(self._errors),
        )
