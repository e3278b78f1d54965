"""Many publishes of one call: what each is, how many are under way, and how they ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from broker_client.errors import InvalidMessageError, PublishError
from broker_client.publication import ENDED, Publication
from broker_client.publishing.template import PublishOverrides
from broker_client.runtime.slotted import slotted

_ERRORS_KEPT = 100


class PublishItem(NamedTuple):
    """A content for `Broker.publish_many` with a routing key and options of its own."""

    content: Any
    routing_key: str | None = None
    """None: what `publish_many` was given."""
    options: PublishOverrides | None = None
    """As the keyword arguments of `Broker.publish`; they win over those of `publish_many`."""


@slotted
class PublishChunk:
    """Contents and items that an async iterable yields together: a wait for each of them costs
    more than it takes to begin its publish."""

    items: Iterable[Any]


@slotted
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


def check_many(many: object) -> None:
    """Check that `many` are several contents, and not one.

    Raises:
        InvalidMessageError: they are one, such as a text or a mapping.
    """
    if isinstance(many, str | bytes | Mapping) or not isinstance(many, Iterable | AsyncIterable):
        kind = type(many).__name__
        raise InvalidMessageError(f"many of a {kind}", "which is one content; give a list")


class ManyPublishes:
    """The unfinished publishes of one `publish_many`, and counts of the others.

    Args:
        window: maximum number of unfinished ones.
        on_end: called with each publication that has ended.
    """

    def __init__(self, window: int, on_end: Callable[[Publication], None] | None) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; 1 or more is allowed")
        self._window = window
        self._on_end = on_end
        self._started = asyncio.get_running_loop().time()
        self._under_way = 0
        self._most = self._published = self._failed = 0
        self._errors: list[PublishError] = []
        self._changed: asyncio.Future[None] | None = None  # while this waits

    def __repr__(self) -> str:
        return f"<ManyPublishes: {self._published} published, {self._under_way} under way>"

    async def take(
        self,
        many: Iterable[Any] | AsyncIterable[Any],
        begin: Callable[[Any], Publication | Awaitable[Publication]],
    ) -> None:
        """Begin the publish of each of `many` when there is room; returns when all have ended.

        Args:
            many: what is to be published.
            begin: begins one publish; returns what to await for it where it could not at once.
        """
        try:
            if isinstance(many, AsyncIterable):
                async for each in many:
                    await self._begin(each.items if type(each) is PublishChunk else (each,), begin)
            else:
                await self._begin(many, begin)
        except Exception:
            await self._ended()  # a caller that cancels this does not wait for the broker
            raise
        await self._ended()

    async def _begin(
        self, items: Iterable[Any], begin: Callable[[Any], Publication | Awaitable[Publication]]
    ) -> None:
        ended = self._one_ended
        for each in items:
            while self._under_way >= self._window:
                await self._wait()
            begun = begin(each)
            publication = begun if isinstance(begun, Publication) else await begun
            self._published += 1
            self._under_way += 1
            if self._under_way > self._most:
                self._most = self._under_way
            if publication.then is None and publication.state is not ENDED:
                publication.then = ended  # as `tell_end`, without the call
            else:
                publication.tell_end(ended)

    def _one_ended(self, publication: Publication) -> None:
        self._under_way -= 1
        error = publication.error
        if error is not None:
            self._failed += 1
            if len(self._errors) < _ERRORS_KEPT:
                self._errors.append(error)
        if self._changed is not None:
            if not self._changed.done():
                self._changed.set_result(None)
            self._changed = None
        if self._on_end is not None:
            self._on_end(publication)

    async def _ended(self) -> None:
        """Wait until none is under way."""
        while self._under_way:
            await self._wait()

    async def _wait(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def report(self) -> PublishReport:
        """The counts so far."""
        return PublishReport(
            self._published,
            self._published - self._failed,
            self._failed,
            asyncio.get_running_loop().time() - self._started,
            self._most,
            tuple(self._errors),
        )
