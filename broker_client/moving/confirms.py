"""A channel that publishes ahead of its confirms and says what became of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from broker_client.errors import OperationTimeoutError, TransportError
from broker_client.message import Outgoing, Returned
from broker_client.transport.base import Channel, Link

CONFIRM_TIMEOUT = 30.0
"""Seconds without any confirm, while the broker takes publishes, after which none is expected."""

Item = TypeVar("Item")


class ConfirmedPublisher(Generic[Item]):
    """Publishes on a channel of its own and reports the outcome of each message.

    The link should have no other user: the publisher notices there when the broker blocks it.
    """

    def __init__(self, channel: Channel, settled: Callable[[Item, str], None]) -> None:
        """
        Args:
            channel: with confirms.
            settled: called with what was published and why it was not accepted; ``""``
                means that it was.
        """
        self._channel = channel
        self._settled = settled
        self._unconfirmed: dict[int, Item] = {}
        self._unreturned: dict[int, Outgoing] = {}
        self._reasons: dict[int, str] = {}
        self._changed = asyncio.Event()
        self._failure: TransportError | None = None
        self.blocked: str = ""
        """Why the broker refuses publishes at present."""
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return
        channel.on_close = self._on_close

    @classmethod
    async def open(
        cls, link: Link, settled: Callable[[Item, str], None]
    ) -> ConfirmedPublisher[Item]:
        """A publisher on a new channel of `link`."""
        publisher = cls(await link.open_channel(confirm=True), settled)
        link.on_blocked = publisher._on_blocked
        link.on_unblocked = publisher._on_unblocked
        return publisher

    @property
    def unconfirmed(self) -> int:
        """How many messages the broker has not confirmed yet."""
        return len(self._unconfirmed)

    async def publish(self, batch: Sequence[tuple[Item, Outgoing]]) -> None:
        """Write `batch`; the confirms come later.

        Raises:
            TransportError: the channel was closed.
        """
        if self._failure is not None:
            raise self._failure
        first = self._channel.next_publish_seq
        for seq, (item, message) in enumerate(batch, first):
            self._unconfirmed[seq] = item
            self._unreturned[seq] = message
        await self._channel.publish([message for _, message in batch])

    async def wait(self, most: int = 0) -> None:
        """Wait until no more than `most` messages are unconfirmed.

        Raises:
            TransportError: the channel was closed, for instance since there is no such exchange.
            OperationTimeoutError: no confirm came for `CONFIRM_TIMEOUT`.
        """
        while len(self._unconfirmed) > most:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            try:
                async with asyncio.timeout(CONFIRM_TIMEOUT):
                    await self._changed.wait()
            except TimeoutError:
                if not self.blocked:
                    raise OperationTimeoutError("publisher confirms", CONFIRM_TIMEOUT) from None

    async def close(self) -> None:
        await self._channel.close()

    # ---------------------------------------------------------------- from the broker

    def _on_confirm(self, first: int, last: int, acked: bool) -> None:
        for seq in range(first, last + 1):
            if seq in self._unconfirmed:
                self._unreturned.pop(seq, None)
                why = self._reasons.pop(seq, "" if acked else "the broker refused it (nack)")
                self._settled(self._unconfirmed.pop(seq), why)
        self._changed.set()

    def _on_return(self, returned: Returned) -> None:
        # A return comes before its confirm, and does not say which publish it is about.
        for seq, message in self._unreturned.items():
            if _is_of(message, returned):
                target = f"exchange {returned.exchange!r}, routing key {returned.routing_key!r}"
                self._reasons[seq] = f"no queue takes it ({target})"
                del self._unreturned[seq]
                return

    def _on_close(self, error: TransportError) -> None:
        self._failure = error
        self._changed.set()

    def _on_blocked(self, reason: str) -> None:
        self.blocked = reason or "the broker blocks publishing"

    def _on_unblocked(self) -> None:
        self.blocked = ""


def _is_of(message: Outgoing, returned: Returned) -> bool:
    return (
        message.routing_key == returned.routing_key
        and message.exchange == returned.exchange
        and message.properties.message_id == returned.properties.message_id
        and message.body == returned.body
    )
