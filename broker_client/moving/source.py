"""A queue that is read without losing anything: what is not taken goes back to its place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from broker_client.errors import TransportError
from broker_client.message import Delivery
from broker_client.runtime.pace import paced
from broker_client.transport.base import Channel, ConsumerCallbacks

PREFETCH = 2_000
_REFRESH = PREFETCH // 2
_GIVEN_BACK = 500  # messages in one step
_IDLE = 2.0
"""Seconds without a delivery after which the broker is asked whether anything is ready."""
_LATE = 10.0
"""Seconds without a delivery after which none is expected, though some are ready: a queue that is
paused, or has another single active consumer, gives none."""


class QueueSource:
    """Consumes the messages that are ready in a queue at the start, on a channel of its own."""

    def __init__(self, channel: Channel, queue: str) -> None:
        """
        Args:
            channel: to consume with; must not be used by others.
            queue: its name.
        """
        self._channel = channel
        self._queue = queue
        self._arrived: asyncio.Queue[Delivery | TransportError | None] = asyncio.Queue()
        self._callbacks = ConsumerCallbacks(
            on_delivery=self._arrived.put_nowait,
            on_cancel=lambda tag: self._arrived.put_nowait(None),
            on_message_timeout=lambda tag: None,
        )
        channel.on_close = self._arrived.put_nowait
        self._consumer_tag = ""
        self._last_kept = 0
        self._steps: set[int] = set()
        """Delivery tags up to which messages are given back, before the last that is kept."""
        self._kept = 0  # of the present consumer
        self.left: int = 0
        """Messages that were ready at the start and have not been read yet."""

    async def start(self, most: int | None = None) -> None:
        """Start to consume.

        Args:
            most: messages that will be read at most, so that no more are taken from others.

        Raises:
            TransportError: there is no such queue, or it may not be read.
        """
        self.left = (await self._channel.check_queue(self._queue)).message_count
        if most is not None:
            self.left = min(self.left, most)
        if self.left:
            await self._channel.qos(min(PREFETCH, self.left))
            await self._consume()

    async def _consume(self) -> None:
        self._consumer_tag = await self._channel.consume(self._queue, self._callbacks)
        self._kept = 0

    async def next_batch(self, most: int) -> list[Delivery]:
        """What has come, at least one and at most `most`; nothing where nothing comes any more.

        Raises:
            TransportError: the channel was closed.
        """
        most = min(most, self.left)
        if most and self._kept >= _REFRESH:
            # What is kept fills the prefetch of its consumer, and not that of the next.
            await self._channel.cancel(self._consumer_tag)
            await self._consume()
        batch: list[Delivery] = []
        while len(batch) < most:
            if not self._arrived.empty():
                each = self._arrived.get_nowait()
            elif batch:
                break
            else:
                each = await self._next()
            if isinstance(each, TransportError):
                raise each
            if each is None:
                break
            batch.append(each)
        self.left -= len(batch)
        return batch

    async def _next(self) -> Delivery | TransportError | None:
        """What comes next; None where nothing comes any more.

        A broker may be slow, so that nothing came for a while tells nothing by itself: others may
        have consumed what was ready, and then nothing is.
        """
        for _ in range(int(_LATE / _IDLE)):
            try:
                async with asyncio.timeout(_IDLE):
                    return await self._arrived.get()
            except TimeoutError:
                if not (await self._channel.check_queue(self._queue)).message_count:
                    break
        return None if self._arrived.empty() else self._arrived.get_nowait()

    def ack(self, delivery_tag: int) -> None:
        """Take a message out of the queue."""
        if self._channel.is_usable:  # else it is back in its queue already
            self._channel.ack(delivery_tag)

    def keep(self, delivery_tag: int) -> None:
        """Leave a message in the queue; it is held until `close`."""
        self._kept += 1
        self._last_kept = max(self._last_kept, delivery_tag)
        if self._kept % _GIVEN_BACK == 0:
            self._steps.add(self._last_kept)

    async def close(self) -> None:
        """Stop to consume, and give back what is unsettled."""
        if not self._channel.is_usable:
            return
        if self._consumer_tag:
            await self._channel.cancel(self._consumer_tag)
        async for left in paced(self._unread()):
            if isinstance(left, Delivery):
                self.keep(left.delivery_tag)
        # In steps: to give many back at once holds up a broker for others.
        for tag in sorted(self._steps - {self._last_kept}):
            self._channel.release(tag, multiple=True)
            await self._channel.qos(PREFETCH)  # answered once the step is done
        if self._last_kept:
            self._channel.release(self._last_kept, multiple=True)
        await self._channel.close()

    def _unread(self) -> Iterator[Delivery | TransportError | None]:
        while not self._arrived.empty():
            yield self._arrived.get_nowait()
