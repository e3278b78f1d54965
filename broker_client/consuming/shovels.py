"""Shovels: what a subscription receives goes out through a publication (as in rascal)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from broker_client.ackornack import AckOrNack
from broker_client.config import Nack, ShovelConfig
from broker_client.errors import BrokerClientError, MessageReturnedError
from broker_client.message import Message
from broker_client.publication import Publication
from broker_client.publishing.template import ForwardOverrides
from broker_client.subscription import Subscription

_TRY_AGAIN = Nack(requeue=True, defer=1.0)


class Forwarder(Protocol):
    """Whoever forwards."""

    async def forward(
        self,
        name: str,
        message: Message,
        routing_key: str | None,
        overrides: ForwardOverrides,
    ) -> Publication: ...


class Shovel:
    """Moves messages, and acks each only once its copy is confirmed.

    A copy that no queue takes leaves its message nacked without requeue, for a dead-letter
    exchange to keep; any other failure gives it back, to be tried again. Rascal acks in both
    cases, which loses it.
    """

    def __init__(
        self,
        config: ShovelConfig,
        forwarder: Forwarder,
        failed: Callable[[BrokerClientError, str], None],
    ) -> None:
        self.config = config
        self._forwarder = forwarder
        self._failed = failed
        self.moved = 0
        """Messages moved so far."""

    def __repr__(self) -> str:
        return f"<Shovel {self.config.name}: {self.moved} moved>"

    def start(self, subscription: Subscription) -> None:
        """Move what `subscription` receives from now on."""
        vhost = subscription.config.vhost
        subscription.on("error", lambda error: self._failed(error, vhost))
        subscription.on("message", self._move)

    async def _move(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        try:
            await (await self._forwarder.forward(self.config.publication, message, None, {}))
        except MessageReturnedError as error:
            self._failed(error, message.vhost)
            await ack_or_nack(error, Nack())
        except BrokerClientError as error:
            self._failed(error, message.vhost)
            await ack_or_nack(error, _TRY_AGAIN)
        else:
            self.moved += 1
            await ack_or_nack()
