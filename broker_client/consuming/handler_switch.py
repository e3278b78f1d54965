"""Several handlers of one subscription: each message goes to the first that matches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from broker_client.ackornack import AckOrNack
from broker_client.consuming.checks import DeliveryRefusal
from broker_client.errors import InvalidHandlerError, NoHandlerError
from broker_client.message import Message

Listen = Callable[[Message, Any, AckOrNack], Awaitable[DeliveryRefusal | None]]
"""The `message` listener of one handler."""


class Condition(NamedTuple):
    """The messages that a handler takes."""

    type: str | None
    """The `type` property that they have; None for any."""
    headers: Mapping[str, Any]
    """Headers that they have, with these values."""

    @property
    def is_any(self) -> bool:
        """True if it takes all messages."""
        return self.type is None and not self.headers

    def fits(self, message: Message) -> bool:
        """True if the handler takes `message`."""
        properties = message.properties
        if self.type is not None and properties.type != self.type:
            return False
        if not self.headers:
            return True
        headers = properties.headers or {}
        return all(name in headers and headers[name] == self.headers[name] for name in self.headers)


class HandlerSwitch:
    """A `message` listener that calls one of several handlers."""

    def __init__(self, subscription: str) -> None:
        """
        Args:
            subscription: its name.
        """
        self._subscription = subscription
        self._cases: list[tuple[Condition, Listen]] = []

    def add(self, handler: str, condition: Condition, listen: Listen) -> None:
        """Add a handler, after those that are here.

        Raises:
            InvalidHandlerError: it would never be called.
        """
        for each, _ in self._cases:
            if each.is_any or each == condition:
                raise InvalidHandlerError(
                    handler,
                    f"subscription {self._subscription!r} has a handler for these messages "
                    "already; the one without a type and headers is for the rest, and comes last",
                )
        self._cases.append((condition, listen))

    async def __call__(
        self, message: Message, content: Any, ack_or_nack: AckOrNack
    ) -> DeliveryRefusal | None:
        """Call the first handler that takes `message`."""
        for condition, listen in self._cases:
            if condition.fits(message):
                return await listen(message, content, ack_or_nack)
        error = NoHandlerError(self._subscription, message.message_id, message.properties.type)
        return DeliveryRefusal(("invalid_message",), error)
