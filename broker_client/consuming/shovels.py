"""Shovels: what a subscription receives goes out through a publication (as in rascal)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.config import Forward, Nack, ShovelConfig
from broker_client.consuming.recovery_copies import is_unsendable
from broker_client.consuming.recovery_headers import Notes, recovery_headers
from broker_client.errors import (
    BrokerClientError,
    InvalidMessageError,
    MessageReturnedError,
    MessageTooLargeError,
    PublishRefusedError,
)
from broker_client.message import RASCAL, Message
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter
from broker_client.subscription import Subscription

_FINAL = (MessageReturnedError, MessageTooLargeError)
_TRY_AGAIN = Nack.model_construct(requeue=True, defer=1.0)


class Shovel:
    """Moves messages, and acks each only once its copy is confirmed.

    A copy that no queue takes, or that can never be sent, leaves its message nacked without
    requeue, for a dead-letter exchange to keep; any other failure gives it back, to be tried
    again. Rascal acks in both cases, which loses it.
    """

    def __init__(
        self,
        config: ShovelConfig,
        publisher: Publisher,
        broker: Emitter,
    ) -> None:
        """
        Args:
            config: what was declared.
            publisher: forwards the messages.
            broker: notified of failures (`error`).
        """
        self.config = config
        self._publisher = publisher
        self._broker = broker
        self.moved: int = 0
        """Messages moved so far."""

    def __repr__(self) -> str:
        return f"<Shovel {self.config.name}: {self.moved} moved>"

    def start(self, subscription: Subscription) -> None:
        """Start moving messages of `subscription`."""
        vhost = subscription.config.vhost
        subscription.on("error", lambda error: self._broker.emit("error", error, vhost))
        subscription.on("message", self._move)

    async def _move(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        if not self.config.keep_counters:
            message = _without_counters(message)
        try:
            await self._forward(message)
        except BrokerClientError as error:
            is_final = isinstance(error, _FINAL) or is_unsendable(error)
            self._broker.emit("error", error, message.vhost)
            await ack_or_nack(error, Nack() if is_final else _TRY_AGAIN)
        else:
            self.moved += 1
            await ack_or_nack()

    async def _forward(self, message: Message) -> None:
        """Publish the copy; without a note of where it came from if its headers have no room."""
        name = self.config.publication
        try:
            await (await self._publisher.forward(name, message, None, {}))
        except (InvalidMessageError, PublishRefusedError) as error:
            if not is_unsendable(error):
                raise
            headers = recovery_headers(message, "", {}, restore=False, notes=Notes.NONE)
            await self._publisher.forward_copy(message, headers, Forward(publication=name))


def _without_counters(message: Message) -> Message:
    """`message` as if recovery had not tried it yet."""
    headers = message.properties.headers or {}
    history = headers.get(RASCAL)
    if not isinstance(history, Mapping):
        return message
    kept = {key: each for key, each in history.items() if key not in ("recovery", "tries")}
    headers = {**headers, RASCAL: kept}
    return message.with_properties(message.properties._replace(headers=headers))
