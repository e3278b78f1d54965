"""How deliveries end, for the middleware around their handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.consuming.delivery_log import DeliveryLog
from broker_client.message import Message

log: logging.Logger = logging.getLogger("broker_client.subscription")


class Settlements:
    """Reports to middleware how deliveries ended.

    It takes the place of a subscription's delivery log, and passes everything on to it.
    """

    def __init__(self, log: DeliveryLog | None) -> None:
        self._log = log
        self._watched: dict[Message, list[Callable[[DeliveryOutcome], None]]] = {}

    def watch(self, message: Message, then: Callable[[DeliveryOutcome], None]) -> None:
        """Call `then` with the outcome of `message`, which is unsettled."""
        self._watched.setdefault(message, []).append(then)

    def delivered(self, message: Message) -> None:
        if self._log is not None:
            self._log.delivered(message)

    def ended(
        self,
        message: Message,
        outcome: DeliveryOutcome,
        error: BaseException | str | None,
        *,
        requeues: bool,
    ) -> None:
        """`message` is no longer unacked."""
        if self._log is not None:
            self._log.ended(message, outcome, error, requeues=requeues)
        for then in self._watched.pop(message, ()):
            try:
                then(outcome)
            except Exception:
                log.exception("a when_settled callback failed for message %s", message.message_id)
