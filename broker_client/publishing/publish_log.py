"""The delivery-event log of a client's publishes, for a broker that writes none."""

from __future__ import annotations

import asyncio
import time

from broker_client.errors import PublishError
from broker_client.events.delivery_event import (
    CONFIRMED,
    PUBLISH_FAILED,
    PUBLISHED,
    REASON_UNROUTABLE,
    RETURNED,
    DeliveryEvent,
    trace_id_of,
)
from broker_client.events.log import EventLog
from broker_client.publication import Publication


class PublishLog:
    """Logs the outcome of one vhost's publishes.

    Args:
        event_log: the log to write to.
        vhost: name of the vhost.
    """

    def __init__(self, event_log: EventLog, vhost: str) -> None:
        self._event_log = event_log
        self._vhost = vhost
        self._offset = time.time() - asyncio.get_running_loop().time()
        self._unconfirmable: set[Publication] = set()  # sent on channels without confirms

    def accepted(self, publication: Publication, confirm: bool) -> None:
        self._note(PUBLISHED, publication)
        if not confirm:
            self._unconfirmable.add(publication)

    def succeeded(self, publication: Publication) -> None:
        if publication not in self._unconfirmable:
            self._note(CONFIRMED, publication)
        self._unconfirmable.discard(publication)

    def failed(self, publication: Publication, error: PublishError) -> None:
        self._note(PUBLISH_FAILED, publication, error=error)
        self._unconfirmable.discard(publication)

    def returned(self, publication: Publication) -> None:
        self._note(RETURNED, publication, REASON_UNROUTABLE)
        self._unconfirmable.discard(publication)

    def _note(
        self,
        event: str,
        publication: Publication,
        reason: str | None = None,
        error: PublishError | None = None,
    ) -> None:
        message = publication.outgoing
        self._event_log.record(
            DeliveryEvent(
                event,
                self._vhost,
                message.exchange,
                message.routing_key,
                reason=reason,
                publication=publication.name,
                message_id=publication.message_id or None,
                ts=time.time(),
                size=publication.size,
                published_at=publication.started + self._offset,
                priority=message.properties.priority,
                error_class=None if error is None else type(error).__name__,
                error=None if error is None else str(error),
                trace_id=trace_id_of(message.properties.headers),
            )
        )
