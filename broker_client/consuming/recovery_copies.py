"""Copies that recovery publishes, with as much history as their headers have room for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from broker_client.config import Forward, Republish
from broker_client.consuming import recovery_headers
from broker_client.consuming.recovery_headers import Notes
from broker_client.consuming.setup import ConsumingSetup
from broker_client.errors import (
    BrokerClientError,
    InvalidMessageError,
    MessageTooLargeError,
    PublishRefusedError,
)
from broker_client.message import Message
from broker_client.publishing.publisher import Publisher

_NOT_FOUND = 404

_Publish = Callable[[Notes], Coroutine[Any, Any, None]]


class RecoveryCopies:
    """Publishes copies for one subscription; each method returns once its copy is confirmed.

    Raises:
        BrokerClientError: the copy was not published, or its outcome is unknown.
    """

    def __init__(self, setup: ConsumingSetup, publisher: Publisher) -> None:
        self._setup = setup
        self._publisher = publisher

    async def republish(
        self, message: Message, strategy: Republish, error: BaseException | str
    ) -> None:
        """Publish a copy to the queue that `message` came from."""

        def publish(notes: Notes) -> Coroutine[Any, Any, None]:
            copy = recovery_headers.republished(message, error, strategy, notes=notes)
            return self._publisher.republish(message.vhost, copy)

        await _with_most_notes(publish, self._least_notes(strategy))

    async def forward(
        self, message: Message, strategy: Forward, error: BaseException | str
    ) -> None:
        """Publish a copy through the publication of `strategy`."""

        def publish(notes: Notes) -> Coroutine[Any, Any, None]:
            headers = recovery_headers.forwarded(message, error, strategy, notes=notes)
            return self._publisher.forward_copy(message, headers, strategy)

        await _with_most_notes(publish, self._least_notes(strategy))

    async def dead_letter(self, message: Message, exchange: str, key: str | None) -> None:
        """Publish a dead letter of `message` to the target that `dead_letter_target` gives."""

        def publish(notes: Notes) -> Coroutine[Any, Any, None]:
            copy = recovery_headers.dead_letter(message, exchange, key, notes=notes)
            return self._publisher.republish(message.vhost, copy)

        await _with_most_notes(publish, Notes.NO_ERROR)

    def dead_letter_target(self, message: Message) -> tuple[str, str | None] | None:
        """Exchange and key, None for the original one, of a dead letter that we are to publish."""
        setup = self._setup
        if recovery_headers.has_lost_its_key(message) and setup.dead_letter_exchange is not None:
            return setup.dead_letter_exchange, None
        if recovery_headers.has_unsound_deaths(message) and setup.dead_letters is not None:
            exchange, key = setup.dead_letters
            return exchange, message.delivery.routing_key if key is None else key
        return None

    def _least_notes(self, strategy: Republish | Forward) -> Notes:
        """The minimum history of a copy, so that its message reaches the configured limits."""
        is_counted = strategy.attempts is not None or self._setup.config.max_hops is not None
        is_marked = isinstance(strategy, Republish) and strategy.immediate_nack
        return Notes.NO_ERROR if is_counted or is_marked else Notes.NONE


async def _with_most_notes(publish: _Publish, least: Notes) -> None:
    """Publish a copy with as much of its history as its headers have room for, `least` at least."""
    for notes in Notes:
        try:
            await publish(notes)
        except BrokerClientError as failure:
            if notes is least or not _may_be_for_headers(failure):
                raise
        else:
            return


def _may_be_for_headers(failure: BrokerClientError) -> bool:
    """True if a copy with fewer headers may be taken where this one was not."""
    if isinstance(failure, MessageTooLargeError):
        return False  # its body is
    if isinstance(failure, PublishRefusedError):
        return failure.reply_code != _NOT_FOUND
    return isinstance(failure, InvalidMessageError)


def is_unsendable(failure: BrokerClientError) -> bool:
    """True if our own encoder refused a copy although the broker had accepted its message."""
    if isinstance(failure, PublishRefusedError):
        return not isinstance(failure, MessageTooLargeError) and not failure.reply_code
    return isinstance(failure, InvalidMessageError)
