"""What a subscription receives, and the events that it emits."""

from __future__ import annotations

from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.message import Message
from broker_client.subscription import Subscription
from tests.support.eventually import eventually


class ReceivedMessages:
    """A listener that acks and keeps its messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.contents: list[Any] = []

    async def __call__(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        self.messages.append(message)
        self.contents.append(content)
        await ack_or_nack()

    async def receives(self, count: int = 1) -> list[Any]:
        """The contents, once there are `count` of them."""
        await eventually(lambda: len(self.messages) >= count)
        return self.contents


class SubscriptionEvents:
    """The chosen events of a subscription, in order."""

    def __init__(self, subscription: Subscription, *events: str) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []
        for event in events:
            subscription.on(event, lambda *args, event=event: self.events.append((event, args)))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]
