"""One DataFrame on its way through `publish_many`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

from broker_client.broker import Broker
from broker_client.codec.content import encode
from broker_client.errors import BrokerClientError, MessageReturnedError, PublishNackedError
from broker_client.publication import Publication
from broker_client.publishing.many import PublishChunk, PublishItem
from broker_client.publishing.template import PublishOverrides
from broker_client.spark.writing.frame_report import FrameReport
from broker_client.spark.writing.frame_rows import FrameRow
from broker_client.spark.writing.message_ids import ContentIds

_new = tuple.__new__  # a named tuple's own constructor is a Python call


class FrameRun:
    """One frame on its way: its rows go through `chunks` to the loop, where outcomes are counted.

    An empty chunk is the last.
    """

    def __init__(
        self,
        broker: Broker,
        publication: str,
        window: int,
        ids: ContentIds | None,
        content_type: str | None,
    ) -> None:
        self._broker, self._publication, self._window = broker, publication, window
        self._ids = ids
        self._common: PublishOverrides = {"content_type": content_type} if content_type else {}
        self._published = self._open = self._most_open = 0
        self._counts = dict.fromkeys(("confirmed", "returned", "nacked", "failed"), 0)
        self._retried = 0
        self._first_error: str | None = None
        self._started = time.monotonic()
        self.chunks: asyncio.Queue[list[FrameRow]] = asyncio.Queue(1)

    def report(self) -> FrameReport:
        """The counts so far."""
        return FrameReport(
            published=self._published,
            **self._counts,
            retried=self._retried,
            seconds=time.monotonic() - self._started,
            max_in_flight=min(self._most_open, self._window),  # the last one waits for room
            first_error=self._first_error,
        )

    async def publish(self) -> None:
        """Publish the chunks, until the last or a failure that more rows would only repeat."""
        try:
            async with aclosing(self._taken()) as items:
                await self._broker.publish_many(
                    self._publication,
                    items,
                    window=self._window,
                    on_end=self._ended,
                    **self._common,
                )
        except BrokerClientError as error:
            self._failed("failed", error)

    async def _taken(self) -> AsyncGenerator[PublishChunk]:
        while chunk := await self.chunks.get():
            yield PublishChunk(self.items(chunk))
            if self._counts["failed"]:
                return

    def items(self, rows: Iterable[FrameRow]) -> Iterator[Any]:
        """What to publish for each row, its content or a `PublishItem`, until a publish fails.

        Made as it is wanted: thousands that wait would keep the garbage collector busy.
        """
        counts, ids = self._counts, self._ids
        for content, key, message_id, headers in rows:
            if counts["failed"]:
                return
            self._published += 1
            self._open += 1
            if self._open > self._most_open:
                self._most_open = self._open
            if type(content) is bytearray:
                content = bytes(content)
            if key is None and ids is None and not (message_id or headers):
                yield content
                continue
            options: PublishOverrides = {}
            if headers:
                options["headers"] = dict(headers)
            if not message_id and ids is not None:
                body, _ = encode(content)
                message_id = ids.next("", key or "", options.get("headers"), body)
            if message_id:
                options["message_id"] = message_id
            yield _new(PublishItem, (content, key, options))

    def _ended(self, publication: Publication) -> None:
        self._open -= 1
        error = publication.error
        if error is None:
            self._counts["confirmed"] += 1
            self._retried += publication.maybe_duplicate
        elif isinstance(error, MessageReturnedError):
            self._failed("returned", error)
        else:
            self._failed("nacked" if isinstance(error, PublishNackedError) else "failed", error)

    def _failed(self, how: str, error: BrokerClientError) -> None:
        self._counts[how] += 1
        if self._first_error is None:
            self._first_error = f"{type(error).__name__}: {error}"
