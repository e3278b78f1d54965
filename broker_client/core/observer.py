"""Events of messages, in order, for a delivery-event log.

Transitions and commands tell it of each change of state; there is none, and it costs nothing,
unless the node has a log. It decides nothing and changes no queue.

Every stay of a message in a queue begins with `enqueued` and ends with exactly one of `acked`,
`dead_lettered`, `expired` and `dropped`.
"""

from __future__ import annotations

from broker_client.amqp import x_death
from broker_client.core.queue import ChannelState, Entry
from broker_client.events.delivery_event import (
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
    MessageEvent,
)
from broker_client.message import Outgoing

_new = tuple.__new__  # a named tuple's own constructor is a Python call


class Observer:
    """Collects the events of one engine until the node takes them."""

    def __init__(self) -> None:
        self.origin: Entry | None = None
        """The entry whose dead letter is being put: its copies were published when it was."""
        self._events: list[MessageEvent] = []
        self._unconfirmed: dict[int, dict[int, MessageEvent]] = {}
        """The `published` events of each channel, by sequence number."""

    def take(self) -> list[MessageEvent]:
        """What happened since the last call; the caller owns the list."""
        taken, self._events = self._events, []
        return taken

    # ---------------------------------------------------------------- publishing

    def published(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """A publish was accepted for routing."""
        fields = PUBLISHED, channel.vhost, message, now, None, None, None, 0, now, 0.0, 0.0
        event: MessageEvent = _new(MessageEvent, fields)
        self._events.append(event)
        if channel.confirms:
            waiting = self._unconfirmed.get(channel.id)
            if waiting is None:
                waiting = self._unconfirmed[channel.id] = {}
            waiting[channel.publish_seq + 1] = event

    def unroutable(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """No queue took it: it is returned or dropped."""
        event = RETURNED if message.mandatory else DROPPED
        self._tell(event, channel.vhost, message, now, REASON_UNROUTABLE, published_at=now)

    def confirmed(self, channel: int, first: int, last: int, acked: bool, now: float) -> None:
        """A run of publishes is confirmed to the publisher, or was refused."""
        waiting = self._unconfirmed.get(channel, {})
        event, reason = (CONFIRMED, None) if acked else (PUBLISH_FAILED, REASON_MAXLEN)
        for seq in range(first, last + 1):
            published = waiting.pop(seq, None)
            if published is not None:
                _, vhost, message, at, *_ = published
                fields = event, vhost, message, now, reason, None, None, 0, at or 0.0, 0.0, 0.0
                self._events.append(_new(MessageEvent, fields))

    def channel_closed(self, channel: int) -> None:
        """Its publishes will not be confirmed any more."""
        self._unconfirmed.pop(channel, None)

    # ---------------------------------------------------------------- a stay in a queue

    def enqueued(self, entry: Entry, now: float) -> None:
        """A queue took a copy."""
        entry.published_at = now if self.origin is None else self.origin.published_at
        entry.enqueued_at = now
        self._note(ENQUEUED, entry, now)

    def delivered(self, entry: Entry, consumer: str, no_ack: bool, now: float) -> None:
        """It was delivered; without acknowledgements that is its end."""
        entry.delivered_at = now
        self._note(DELIVERED, entry, now, consumer=consumer)
        if no_ack:
            self._note(ACKED, entry, now, consumer=consumer)

    def acked(self, entry: Entry, now: float) -> None:
        """It was acked."""
        self._note(ACKED, entry, now)

    def nacked(self, entry: Entry, now: float) -> None:
        """Its consumer refused it; the next event says what happened to it."""
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
            event = EXPIRED if reason == x_death.EXPIRED else DROPPED
        self._note(event, entry, now, reason)

    def dropped(self, entry: Entry, reason: str) -> None:
        """It was purged, or went with its queue."""
        self._note(DROPPED, entry, None, reason)

    def lost_dead_letter(self, entry: Entry, message: Outgoing, reason: str, now: float) -> None:
        """No queue takes a dead letter, or one would take it in a circle."""
        vhost, published_at = entry.queue.vhost, entry.published_at
        self._tell(DROPPED, vhost, message, now, reason, published_at=published_at)

    # ---------------------------------------------------------------- events

    def _note(
        self,
        event: str,
        entry: Entry,
        now: float | None,
        reason: str | None = None,
        consumer: str | None = None,
    ) -> None:
        attempts, queue = entry.attempts, entry.queue
        if consumer is None and attempts and entry.consumer is not None:
            consumer = entry.consumer.tag
        fields = (
            event,
            queue.vhost,
            entry.message,
            now,
            reason,
            queue.name,
            consumer,
            attempts,
            entry.published_at,
            entry.enqueued_at,
            entry.delivered_at,
        )
        self._events.append(_new(MessageEvent, fields))

    def _tell(
        self,
        event: str,
        vhost: str,
        message: Outgoing,
        now: float | None,
        reason: str | None = None,
        queue: str | None = None,
        consumer: str | None = None,
        attempts: int = 0,
        published_at: float = 0.0,
        enqueued_at: float = 0.0,
        delivered_at: float = 0.0,
    ) -> None:
        fields = (
            event,
            vhost,
            message,
            now,
            reason,
            queue,
            consumer,
            attempts,
            published_at,
            enqueued_at,
            delivered_at,
        )
        self._events.append(_new(MessageEvent, fields))
