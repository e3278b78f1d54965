"""The delivery-event log of a client's deliveries, for a broker that writes none.

A client does not see what goes into a queue, nor what becomes of a message it
refused: there is no `enqueued`, `dead_lettered`, `expired` or `dropped` in its log.
"""

from __future__ import annotations

import time

from broker_client.config import SubscriptionConfig
from broker_client.consuming.delivery import DeliveryOutcome
from broker_client.errors import text_of
from broker_client.events.delivery_event import (
    ACKED,
    DELIVERED,
    NACKED,
    REASON_CONNECTION_LOST,
    REASON_HANDLER_ERROR,
    REASON_REJECTED,
    REASON_TIMEOUT,
    REQUEUED,
    TIMED_OUT,
    DeliveryEvent,
    trace_id_of,
)
from broker_client.events.log import EventLog
from broker_client.message import Message

REASON_FORWARDED = "forwarded"
REASON_DUPLICATE = "duplicate"
REASON_CANCELLED = "consumer_cancelled"
"""Given back unhandled: the subscription ended, or was paused."""


class DeliveryLog:
    """Logs the outcome of one subscription's deliveries.

    Args:
        event_log: where to.
        config: the subscription's.
    """

    def __init__(self, event_log: EventLog, config: SubscriptionConfig) -> None:
        self._event_log = event_log
        self._config = config
        self._since: dict[int, float] = {}  # delivery tag of the present channel -> time

    def delivered(self, message: Message) -> None:
        now = time.time()
        self._note(DELIVERED, message, now)
        if self._config.options.no_ack:
            self._note(ACKED, message, now)
        else:
            self._since[message.delivery.delivery_tag] = now

    def ended(
        self,
        message: Message,
        outcome: DeliveryOutcome,
        error: BaseException | str | None,
        *,
        requeues: bool,
    ) -> None:
        """`message` is no longer unacked."""
        reason = REASON_HANDLER_ERROR if isinstance(error, BaseException) else REASON_REJECTED
        match outcome:
            case DeliveryOutcome.ACKED:
                self._note(ACKED, message)
            case DeliveryOutcome.DUPLICATE:
                self._note(ACKED, message, reason=REASON_DUPLICATE)
            case DeliveryOutcome.FORWARDED:
                self._note(ACKED, message, reason=REASON_FORWARDED, error=error)
            case DeliveryOutcome.REPUBLISHED:
                self._note(REQUEUED, message, reason=reason, error=error)
            case DeliveryOutcome.LOST:
                self._note(REQUEUED, message, reason=REASON_CONNECTION_LOST)
            case DeliveryOutcome.TIMED_OUT:
                self._note(TIMED_OUT, message, reason=REASON_TIMEOUT)
            case DeliveryOutcome.RELEASED:
                self._note(REQUEUED, message, reason=REASON_CANCELLED)
            case DeliveryOutcome.NACKED:
                self._note(NACKED, message, reason=reason, error=error)
                if requeues:
                    self._note(REQUEUED, message, reason=reason, error=error)
        self._since.pop(message.delivery.delivery_tag, None)

    def _note(
        self,
        event: str,
        message: Message,
        now: float | None = None,
        reason: str | None = None,
        error: BaseException | str | None = None,
    ) -> None:
        delivery = message.delivery
        self._event_log.record(
            DeliveryEvent(
                event,
                message.vhost,
                delivery.exchange,
                delivery.routing_key,
                message.queue,
                delivery.consumer_tag,
                message.attempts,
                message.redelivered,
                reason,
                subscription=self._config.name,
                message_id=message.message_id,
                ts=time.time() if now is None else now,
                size=len(delivery.body),
                delivered_at=now or self._since.get(delivery.delivery_tag),
                priority=delivery.properties.priority,
                error_class=type(error).__name__ if isinstance(error, BaseException) else None,
                error=None if error is None else text_of(error),
                trace_id=trace_id_of(delivery.properties.headers),
            )
        )
