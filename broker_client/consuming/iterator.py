"""Deliveries for ``async for``, bounded by the prefetch of their subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.message import Message

Item = tuple[Message, Any, AckOrNack]


class DeliveryIterator(AsyncIterator[Item]):
    """Hands out deliveries one at a time, to any number of loops; ends with its subscription."""

    def __init__(self, *, no_ack: bool) -> None:
        self._no_ack = no_ack
        self._items: deque[Item] = deque()
        self._changed = asyncio.Event()
        self._has_ended = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        """A `message` listener."""
        self._items.append((message, content, ack_or_nack))
        self._changed.set()

    async def __anext__(self) -> Item:
        while True:
            while self._items:
                item = self._items.popleft()
                if self._no_ack or item[2].is_open:  # else it was released meanwhile
                    return item
            if self._has_ended:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()

    def take_waiting(self) -> list[AckOrNack]:
        """Messages that no loop has taken, to be released; none without acks."""
        if self._no_ack:
            return []
        items, self._items = self._items, deque()
        return [ack_or_nack for _, _, ack_or_nack in items]

    def end(self) -> None:
        """End the loops once they have taken the remaining messages."""
        self._has_ended = True
        self._changed.set()
