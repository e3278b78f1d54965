"""Helpers that act on a channel and record what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from broker_client.errors import ChannelClosedError, TransportError
from broker_client.message import Delivery, Outgoing, Properties, Returned
from broker_client.transport.base import Channel, ConsumerCallbacks, Link
from tests.support.eventually import eventually


def a_message(
    body: bytes = b"hello",
    *,
    to: str = "q",
    exchange: str = "",
    mandatory: bool = False,
    **properties: Any,
) -> Outgoing:
    """A message for queue `to`, or with routing key `to` where an exchange is named."""
    return Outgoing(exchange, to, body, Properties(**properties), mandatory)


def numbered(first: int, last: int, *, to: str = "q") -> list[Outgoing]:
    """Messages with the bodies ``first`` to ``last``, both included."""
    return [a_message(b"%d" % number, to=to) for number in range(first, last + 1)]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def until(condition: Callable[[], Awaitable[object]], timeout: float = 30.0) -> None:
    """`eventually`, for a condition that queries the broker."""
    async with asyncio.timeout(timeout):
        while not await condition():  # noqa: ASYNC110 - the event is in the broker
            await asyncio.sleep(0.01)


class Watch:
    """A channel, and everything it reported, in order."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.events: list[str] = []
        self.confirms: list[tuple[int, int, bool]] = []
        self.returns: list[Returned] = []
        self.closes: list[TransportError] = []
        channel.on_confirm = self._confirmed
        channel.on_return = self._returned
        channel.on_close = self._closed

    @classmethod
    async def open(cls, link: Link, *, confirm: bool = True) -> Self:
        return cls(await link.open_channel(confirm=confirm))

    def _confirmed(self, first: int, last: int, acked: bool) -> None:
        self.events += ["ack" if acked else "nack"] * (last - first + 1)
        self.confirms.append((first, last, acked))

    def _returned(self, message: Returned) -> None:
        self.events.append("return")
        self.returns.append(message)

    def _closed(self, error: TransportError) -> None:
        self.events.append("close")
        self.closes.append(error)

    @property
    def outcomes(self) -> dict[int, bool]:
        """Publish sequence number to whether it was acked; fails if one was settled twice."""
        found: dict[int, bool] = {}
        for first, last, acked in self.confirms:
            for seq in range(first, last + 1):
                assert seq not in found, f"publish {seq} was confirmed twice: {self.confirms}"
                found[seq] = acked
        return found

    async def publish(self, *messages: Outgoing) -> list[bool]:
        """Publish and wait for every confirm; returns whether each message was acked."""
        first = self.channel.next_publish_seq
        last = first + len(messages) - 1
        await self.channel.publish(messages)
        await eventually(lambda: last in self.outcomes and len(self.outcomes) >= last)
        return [self.outcomes[seq] for seq in range(first, last + 1)]

    async def drain(self, queue: str) -> list[Delivery]:
        """Remove all ready messages of `queue`."""
        taken = []
        while (delivery := await self.channel.get(queue, no_ack=True)) is not None:
            taken.append(delivery)
        return taken

    async def depth(self, queue: str) -> int:
        """Ready messages."""
        return (await self.channel.check_queue(queue)).message_count

    async def has(self, queue: str, depth: int) -> None:
        """Wait until `queue` has `depth` ready messages."""

        async def reached() -> bool:
            return await self.depth(queue) == depth

        await until(reached)

    async def closed_with(self) -> int:
        """Wait until the broker has closed the channel; returns the reply code."""
        await eventually(lambda: self.closes)
        [error] = self.closes
        assert isinstance(error, ChannelClosedError)
        assert not self.channel.is_usable
        return error.reply_code


class Consumer:
    """A consumer that collects deliveries, and settles only when told."""

    def __init__(self, channel: Channel, tag: str = "") -> None:
        self.channel, self.tag = channel, tag
        self.deliveries: list[Delivery] = []
        self.cancels: list[str] = []
        self.timeouts: list[int] = []

    @classmethod
    async def start(
        cls, channel: Channel, queue: str = "q", *, prefetch: int | None = None, **options: Any
    ) -> Self:
        consumer = cls(channel)
        if prefetch is not None:
            await channel.qos(prefetch)
        callbacks = ConsumerCallbacks(
            consumer.deliveries.append, consumer.cancels.append, consumer.timeouts.append
        )
        consumer.tag = await channel.consume(queue, callbacks, **options)
        return consumer

    async def receives(self, count: int) -> list[Delivery]:
        """Wait until `count` deliveries have come, since the start."""
        await eventually(lambda: len(self.deliveries) >= count)
        assert len(self.deliveries) == count, f"{len(self.deliveries)} came: {self.bodies}"
        return self.deliveries

    @property
    def bodies(self) -> list[bytes]:
        return bodies(self.deliveries)


async def reply_code_of(awaitable: Any) -> int:
    """The reply code with which the broker closes the channel over `awaitable`."""
    try:
        await awaitable
    except ChannelClosedError as error:
        return error.reply_code
    raise AssertionError("the broker did not refuse")
