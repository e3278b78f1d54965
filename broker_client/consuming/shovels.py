"""Shovels: what a subscription receives goes out through a publication (as in rascal)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_client.ackornack import AckOrNack
from broker_client.config import Nack, ShovelConfig
from broker_client.errors import BrokerClientError, MessageReturnedError
from broker_client.message import RASCAL, Message
from broker_client.publishing.publisher import Publisher
from broker_client.runtime.emitter import Emitter
from broker_client.subscription import Subscription

_TRY_AGAIN = Nack.model_construct(requeue=True, defer=1.0)


class Shovel:
    """Moves messages, and acks each only once its copy is confirmed.

    A copy that no queue takes leaves its message nacked without requeue, for a dead-letter
    exchange to keep; any other failure gives it back, to be tried again. Rascal acks in both
    cases, which loses it.
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
        self.moved = 0
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
            await (await self._publisher.forward(self.config.publication, message, None, {}))
        except MessageReturnedError as error:
            self._broker.emit("error", error, message.vhost)
            await ack_or_nack(error, Nack())
        except BrokerClientError as error:
            self._broker.emit("error", error, message.vhost)
            await ack_or_nack(error, _TRY_AGAIN)
        else:
            self.moved += 1
            await ack_or_nack()


def _without_counters(message: Message) -> Message:
    """`message` as if recovery had not tried it yet."""
    headers = message.properties.headers or {}
    history = headers.get(RASCAL)
    if not isinstance(history, Mapping):
        return message
    kept = {key: each for key, each in history.items() if key not in ("recovery", "tries")}
    headers = {**headers, RASCAL: kept}
    return message.with_properties(message.properties._replace(headers=headers))
