"""Notes what happens to messages, in order, for the delivery-event log.

The dispatcher and the engine call it at each change of state; there is none, and it costs
nothing, unless the node has a log. It decides nothing and changes no queue.

Every stay of a message in a queue begins with `enqueued` and ends with exactly one of `acked`,
`dead_lettered`, `expired` and `dropped`.
"""

from __future__ import annotations

from broker_client.core.deadletter import EXPIRED as DEATH_EXPIRED
from broker_client.core.queue import ChannelState, Entry
from broker_client.delivery_event import (
    ACKED,
    CONFIRMED,
    DEAD_LETTERED,
    DELIVERED,
    DROPPED,
    ENQUEUED,
    EXPIRED,
    NACKED,
    PUBLISH_FAILED,
    PUBLISHED,
    REASON_MAXLEN,
    REASON_QUEUE_DELETED,
    REASON_REJECTED,
    REASON_TIMEOUT,
    REASON_UNROUTABLE,
    REQUEUED,
    RETURNED,
    TIMED_OUT,
    DeliveryEvent,
    trace_id_of,
)
from broker_client.message import Outgoing

_new = tuple.__new__  # a quarter of the time of calling a named tuple; a few are made a message


class Observer:
    """Collects the events of one engine until the node takes them."""

    def __init__(self) -> None:
        self.events: list[DeliveryEvent] = []
        self.origin: Entry | None = None
        """The entry whose dead letter is being put: its copies were published when it was."""
        self._unconfirmed: dict[int, dict[int, tuple[str, Outgoing, float]]] = {}

    def take(self) -> list[DeliveryEvent]:
        """What happened since the last call; the caller owns the list."""
        taken, self.events = self.events, []
        return taken

    # ---------------------------------------------------------------- publishing

    def published(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """A publish was accepted for routing."""
        if channel.confirms:
            waiting = self._unconfirmed.setdefault(channel.id, {})
            waiting[channel.publish_seq + 1] = channel.vhost, message, now
        self._publishing(PUBLISHED, channel.vhost, message, now, now)

    def unroutable(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """No queue took it: it goes back, or is dropped."""
        event = RETURNED if message.mandatory else DROPPED
        self._publishing(event, channel.vhost, message, now, now, REASON_UNROUTABLE)

    def confirmed(self, channel: int, first: int, last: int, acked: bool, now: float) -> None:
        """The publisher is being told that a run of its publishes is safe, or was refused."""
        waiting = self._unconfirmed.get(channel)
        if waiting is None:
            return
        event, reason = (CONFIRMED, None) if acked else (PUBLISH_FAILED, REASON_MAXLEN)
        for seq in range(first, last + 1):
            found = waiting.pop(seq, None)
            if found is not None:
                vhost, message, published_at = found
                self._publishing(event, vhost, message, now, published_at, reason)

    def channel_closed(self, channel: int) -> None:
        """Its publishes are confirmed no more."""
        self._unconfirmed.pop(channel, None)

    def _publishing(
        self,
        event: str,
        vhost: str,
        message: Outgoing,
        now: float,
        published_at: float,
        reason: str | None = None,
    ) -> None:
        exchange, routing_key, body, properties, _ = message
        headers = properties.headers
        fields = (
            event,
            vhost,
            exchange,
            routing_key,
            None,
            None,
            None,
            None,
            reason,
            None,
            None,
            properties.message_id,
            now,
            len(body),
            published_at,
            None,
            None,
            properties.priority,
            None,
            None,
            trace_id_of(headers) if headers else None,
        )
        self.events.append(_new(DeliveryEvent, fields))

    # ---------------------------------------------------------------- a stay in a queue

    def enqueued(self, entry: Entry, now: float) -> None:
        """A queue took a copy."""
        origin = self.origin
        entry.published_at = now if origin is None else origin.published_at
        entry.enqueued_at = now
        self._note(ENQUEUED, entry, now)

    def delivered(self, entry: Entry, consumer: str, no_ack: bool, now: float) -> None:
        """It was handed out; without acknowledgements that is its end."""
        entry.delivered_at = now
        self._note(DELIVERED, entry, now, None, consumer)
        if no_ack:
            self._note(ACKED, entry, now, None, consumer)

    def acked(self, entry: Entry, now: float) -> None:
        """It is done."""
        self._note(ACKED, entry, now)

    def nacked(self, entry: Entry, now: float) -> None:
        """Its consumer refused it; what then becomes of it is the next event."""
        self._note(NACKED, entry, now, REASON_REJECTED)

    def requeued(self, entry: Entry, reason: str, now: float) -> None:
        """It goes back to its queue, if that is still there."""
        if entry.queue.deleted:
            self._note(DROPPED, entry, now, REASON_QUEUE_DELETED)
        else:
            self._note(REQUEUED, entry, now, reason)

    def timed_out(self, entry: Entry, now: float) -> None:
        """It was in flight too long, and goes back to its queue if that is still there."""
        self._note(TIMED_OUT, entry, now, REASON_TIMEOUT)
        if entry.queue.deleted:
            self._note(DROPPED, entry, now, REASON_QUEUE_DELETED)

    def died(self, entry: Entry, reason: str, now: float) -> None:
        """It leaves its queue without an ack; `dead_lettered` where an exchange takes it."""
        if entry.queue.settings.dead_letter_exchange is not None and not entry.queue.deleted:
            event = DEAD_LETTERED
        else:
            event = EXPIRED if reason == DEATH_EXPIRED else DROPPED
        self._note(event, entry, now, reason)

    def dropped(self, entry: Entry, reason: str) -> None:
        """It was purged, or went with its queue."""
        self._note(DROPPED, entry, None, reason)

    def lost_dead_letter(self, entry: Entry, message: Outgoing, reason: str, now: float) -> None:
        """No queue takes a dead letter, or one would take it in a circle."""
        vhost = entry.queue.vhost
        self._publishing(DROPPED, vhost, message, now, entry.published_at, reason)

    def _note(
        self,
        event: str,
        entry: Entry,
        now: float | None,
        reason: str | None = None,
        consumer: str | None = None,
    ) -> None:
        exchange, routing_key, body, properties, _ = entry.message
        queue, attempts = entry.queue, entry.attempts
        if consumer is None and attempts and entry.consumer is not None:
            consumer = entry.consumer.tag
        headers = properties.headers
        fields = (
            event,
            queue.vhost,
            exchange,
            routing_key,
            queue.name,
            consumer or None,
            attempts or None,
            attempts > 1 if attempts else None,
            reason,
            None,
            None,
            properties.message_id,
            now,
            len(body),
            entry.published_at or None,
            entry.enqueued_at or None,
            entry.delivered_at or None,
            properties.priority,
            None,
            None,
            trace_id_of(headers) if headers else None,
        )
        self.events.append(_new(DeliveryEvent, fields))
