"""Copies messages from a queue to elsewhere: each copy is confirmed before its original is acked.

Nothing is lost however this ends. An interrupt waits for the batch that is under way; where the
process or the link dies between the two, a batch is in both places, with the same message ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_client.errors import OperationTimeoutError, TransportError
from broker_client.message import Delivery, Outgoing, Returned
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
    source = await link.open_channel()
    publisher = ConfirmedPublisher(await link.open_channel(confirm=True))
    ready = (await source.check_queue(queue)).message_count
    deliveries: asyncio.Queue[Delivery | TransportError | None] = asyncio.Queue()
    source.on_close = deliveries.put_nowait
    callbacks = ConsumerCallbacks(
        on_delivery=deliveries.put_nowait,
        on_cancel=lambda tag: deliveries.put_nowait(None),
        on_message_timeout=lambda tag: None,
    )
    moved = Moved()
    kept: list[int] = []
    await source.qos(2 * BATCH)
    tag, kept_before = await source.consume(queue, callbacks), 0
    try:
        while moved.seen < ready and (most is None or moved.moved < most):
            wanted = min(BATCH, ready - moved.seen)
            batch = await _next_batch(deliveries, wanted)
            if not batch:
                break
            began = time.monotonic()
            copies: list[tuple[int, Outgoing]] = []
            for delivery in batch:
                room = most is None or moved.moved + len(copies) < most
                copy = copy_of(delivery) if room else None
                if copy is None:
                    kept.append(delivery.delivery_tag)
                else:
                    copies.append((delivery.delivery_tag, copy))
            moved.seen += len(batch)
            if copies:
                await _to_its_end(_move_batch(source, publisher, copies, kept, moved))
            progress(moved)
            if len(kept) - kept_before >= BATCH:
                # What is kept fills the prefetch of its consumer, and not that of the next.
                await source.cancel(tag)
                tag, kept_before = await source.consume(queue, callbacks), len(kept)
            if rate is not None and copies:
                await asyncio.sleep(max(0.0, len(copies) / rate - (time.monotonic() - began)))
        if source.is_usable:
            await source.cancel(tag)
    finally:
        if source.is_usable:
            while not deliveries.empty():
                left = deliveries.get_nowait()
                if isinstance(left, Delivery):
                    kept.append(left.delivery_tag)
            if kept:
                # All that is unsettled, at once: singly, RabbitMQ takes seconds for thousands.
                source.nack(max(kept), requeue=True, multiple=True)
            await source.close()
    return moved


async def _move_batch(
    source: Channel,
    publisher: ConfirmedPublisher,
    copies: Sequence[tuple[int, Outgoing]],
    kept: list[int],
    moved: Moved,
) -> None:
    """Publish copies, and ack those deliveries whose copies are confirmed."""
    refused = await publisher.publish([copy for _, copy in copies])
    for at, (delivery_tag, _) in enumerate(copies):
        if at in refused:
            kept.append(delivery_tag)
            moved.refused.append(refused[at])
        else:
            source.ack(delivery_tag)
            moved.moved += 1


async def _to_its_end(step: Coroutine[Any, Any, None]) -> None:
    """Do `step`; a cancellation waits for its end."""
    task = asyncio.create_task(step, name="move: a batch")
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _next_batch(
    deliveries: asyncio.Queue[Delivery | TransportError | None], most: int
) -> list[Delivery]:
    """What has come, at least one and at most so many; nothing where nothing comes any more."""
    batch: list[Delivery] = []
    while len(batch) < most:
        try:
            each = deliveries.get_nowait()
        except asyncio.QueueEmpty:
            if batch:
                break
            try:
                async with asyncio.timeout(_IDLE):
                    each = await deliveries.get()
            except TimeoutError:
                break
        if isinstance(each, TransportError):
            raise each
        if each is None:
            break
        batch.append(each)
    return batch
