"""Copies messages from a queue to elsewhere: each copy is confirmed before its original is acked.

Nothing is lost however this ends. An interrupt waits for the batch that is under way; where the
process or the link dies between the two, a batch is in both places, with the same message ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker_client.errors import OperationTimeoutError, TransportError
from broker_client.message import Delivery, Outgoing, Returned
from broker_client.runtime.tasks import see_through
from broker_client.transport.base import Channel, ConsumerCallbacks, Link

BATCH = 200
_CONFIRM_TIMEOUT = 30.0
_IDLE = 2.0
"""Seconds without a delivery after which nothing more is expected: others consume, too."""

CopyOf = Callable[[Delivery], Outgoing | None]
"""What is to be published for a delivery; None leaves it where it is."""


@dataclass(slots=True)
class Moved:
    """What became of the messages that were looked at."""

    seen: int = 0
    moved: int = 0
    refused: list[str] = field(default_factory=list)
    """Why copies were not taken; their originals are where they were."""


class ConfirmedPublisher:
    """Publishes batches on a channel of its own, and waits for the fate of each message."""

    def __init__(self, channel: Channel) -> None:
        """
        Args:
            channel: with confirms.
        """
        self._channel = channel
        self._open: dict[int, Outgoing] = {}
        self._refused: dict[int, str] = {}
        self._changed = asyncio.Event()
        self._failure: TransportError | None = None
        channel.on_confirm = self._confirmed
        channel.on_return = self._returned
        channel.on_close = self._closed

    async def publish(self, batch: Sequence[Outgoing]) -> dict[int, str]:
        """Publish `batch`; returns why, for each place in it that was not taken.

        Raises:
            TransportError: the channel was closed, for instance since there is no such exchange.
            OperationTimeoutError: the broker did not confirm in time.
        """
        first = self._channel.next_publish_seq
        self._open = dict(enumerate(batch, first))
        self._refused = {}
        await self._channel.publish(batch)
        try:
            async with asyncio.timeout(_CONFIRM_TIMEOUT):
                while self._open:
                    if self._failure is not None:
                        raise self._failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise OperationTimeoutError("publisher confirms", _CONFIRM_TIMEOUT) from None
        return {seq - first: why for seq, why in self._refused.items()}

    def _confirmed(self, first: int, last: int, acked: bool) -> None:
        for seq in range(first, last + 1):
            if self._open.pop(seq, None) is not None and not acked:
                self._refused[seq] = "the broker refused it (nack)"
        self._changed.set()

    def _returned(self, returned: Returned) -> None:
        # A return comes before its confirm, and does not say which publish it is about.
        for seq, message in self._open.items():
            if seq not in self._refused and (
                message.exchange,
                message.routing_key,
                message.body,
                message.properties.message_id,
            ) == (
                returned.exchange,
                returned.routing_key,
                returned.body,
                returned.properties.message_id,
            ):
                target = f"exchange {returned.exchange!r}, routing key {returned.routing_key!r}"
                self._refused[seq] = f"no queue takes it ({target})"
                return

    def _closed(self, error: TransportError) -> None:
        self._failure = error
        self._changed.set()


class _Source:
    """A queue that is consumed; what is kept of it is held, and goes back to its place at the end.

    Args:
        channel: to consume with.
        queue: its name.
    """

    def __init__(self, channel: Channel, queue: str) -> None:
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
        self._kept = 0  # of this consumer

    async def start(self) -> int:
        """Start to consume; returns how many messages were ready."""
        ready = (await self._channel.check_queue(self._queue)).message_count
        await self._channel.qos(2 * BATCH)
        self._consumer_tag = await self._channel.consume(self._queue, self._callbacks)
        return ready

    async def next_batch(self, most: int) -> list[Delivery]:
        """What has come, at least one and at most `most`; nothing where nothing comes any more."""
        if self._kept >= BATCH:
            # What is kept fills the prefetch of its consumer, and not that of the next.
            await self._channel.cancel(self._consumer_tag)
            self._consumer_tag = await self._channel.consume(self._queue, self._callbacks)
            self._kept = 0
        batch: list[Delivery] = []
        while len(batch) < most:
            try:
                each = self._arrived.get_nowait()
            except asyncio.QueueEmpty:
                if batch:
                    break
                try:
                    async with asyncio.timeout(_IDLE):
                        each = await self._arrived.get()
                except TimeoutError:
                    break
            if isinstance(each, TransportError):
                raise each
            if each is None:
                break
            batch.append(each)
        return batch

    def ack(self, delivery_tag: int) -> None:
        """Take a message out of the queue."""
        self._channel.ack(delivery_tag)

    def keep(self, delivery_tag: int) -> None:
        """Leave a message in the queue."""
        self._kept += 1
        self._last_kept = max(self._last_kept, delivery_tag)

    async def stop(self) -> None:
        """End the consumer."""
        if self._channel.is_usable:
            await self._channel.cancel(self._consumer_tag)

    async def close(self) -> None:
        """Give back what is unsettled."""
        if not self._channel.is_usable:
            return
        while not self._arrived.empty():
            left = self._arrived.get_nowait()
            if isinstance(left, Delivery):
                self.keep(left.delivery_tag)
        if self._last_kept:
            # All that is unsettled, at once: singly, RabbitMQ takes seconds for thousands.
            self._channel.nack(self._last_kept, requeue=True, multiple=True)
        await self._channel.close()


async def move(
    link: Link,
    queue: str,
    copy_of: CopyOf,
    *,
    most: int | None = None,
    rate: float | None = None,
    progress: Callable[[Moved], None] = lambda moved: None,
) -> Moved:
    """Move the messages that are ready in `queue` now; what comes in meanwhile stays.

    What `copy_of` leaves where it is is held until the end, and goes back to its place then.

    Args:
        link: to the broker.
        queue: where from.
        copy_of: says what becomes of a delivery.
        most: messages to move at most.
        rate: messages a second at most.
        progress: is told after every batch.

    Raises:
        TransportError: the queue or the target does not exist, or the link was lost.
    """
    source = _Source(await link.open_channel(), queue)
    publisher = ConfirmedPublisher(await link.open_channel(confirm=True))
    moved = Moved()
    ready = await source.start()
    try:
        while moved.seen < ready and (most is None or moved.moved < most):
            batch = await source.next_batch(min(BATCH, ready - moved.seen))
            if not batch:
                break
            began = time.monotonic()
            copies: list[tuple[int, Outgoing]] = []
            for delivery in batch:
                room = most is None or moved.moved + len(copies) < most
                copy = copy_of(delivery) if room else None
                if copy is None:
                    source.keep(delivery.delivery_tag)
                else:
                    copies.append((delivery.delivery_tag, copy))
            moved.seen += len(batch)
            if copies:
                moving = _move_batch(source, publisher, copies, moved)
                await see_through(asyncio.create_task(moving, name="move: a batch"))
            progress(moved)
            if rate is not None and copies:
                await asyncio.sleep(max(0.0, len(copies) / rate - (time.monotonic() - began)))
        await source.stop()
    finally:
        await source.close()
    return moved


async def _move_batch(
    source: _Source,
    publisher: ConfirmedPublisher,
    copies: Sequence[tuple[int, Outgoing]],
    moved: Moved,
) -> None:
    """Publish copies, and ack those deliveries whose copies are confirmed."""
    refused = await publisher.publish([copy for _, copy in copies])
    for at, (delivery_tag, _) in enumerate(copies):
        if at in refused:
            source.keep(delivery_tag)
            moved.refused.append(refused[at])
        else:
            source.ack(delivery_tag)
            moved.moved += 1
