"""Notes what happens to messages, in order, for the delivery-event log.

The dispatcher and the engine call it at each change of state; there is none, and it costs
nothing, unless the node has a log. It decides nothing and changes no queue.

Every stay of a message in a queue begins with `enqueued` and ends with exactly one of `acked`,
`dead_lettered`, `expired` and `dropped`.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted

from broker_client.amqp.x_death import EXPIRED as DEATH_EXPIRED
from broker_client.core.queue import ChannelState, Entry
from broker_client.events.delivery_event import (
    ACKED,
    CACHED_STARTS,
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
    Lines,
    trace_id_of,
)
from broker_client.message import Outgoing

_Kind = tuple[str, str, str | None, str | None, int, str | None]
"""Event, vhost, queue, consumer, attempts and reason: what many events have in common."""
_NO_TIME = '"ts":null'


class Observer:
    """Collects the events of one engine, as lines of the log, until the node takes them.

    Args:
        lines: of the log.
    """

    def __init__(self, lines: Lines) -> None:
        self.origin: Entry | None = None
        """The entry whose dead letter is being put: its copies were published when it was."""
        self._lines = lines
        self._number = lines.number
        self._starts: dict[_Kind, str] = {}
        self._told: list[str] = []
        self._timeless: list[int] = []
        # By channel: its vhost, and its publishes as they stand in a line, by sequence number.
        self._unconfirmed: dict[int, tuple[str, dict[int, str]]] = {}
        # The last message as it stands in a line: its queues are told of it next.
        self._message: Outgoing | None = None
        self._published_at = 0.0
        self._text = ""
        # The last time, and how it is written: one command tells of several events.
        self._now = 0.0
        self._micros = "0"

    def take(self, now: float) -> list[str]:
        """What happened since the last call; the caller owns the list.

        Args:
            now: time of what the core was told without one.
        """
        taken, self._told, self._message = self._told, [], None
        for index in self._timeless:
            taken[index] = taken[index].replace(_NO_TIME, f'"ts":{self._at(now)}', 1)
        self._timeless.clear()
        return taken

    # ---------------------------------------------------------------- publishing

    def published(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """A publish was accepted for routing."""
        vhost = channel.vhost
        text = self._about(message, now)
        if channel.confirms:
            waiting = self._unconfirmed.get(channel.id)
            if waiting is None:
                waiting = self._unconfirmed[channel.id] = vhost, {}
            waiting[1][channel.publish_seq + 1] = text
        self._tell((PUBLISHED, vhost, None, None, 0, None), now, text)

    def unroutable(self, channel: ChannelState, message: Outgoing, now: float) -> None:
        """No queue took it: it goes back, or is dropped."""
        event = RETURNED if message.mandatory else DROPPED
        kind = event, channel.vhost, None, None, 0, REASON_UNROUTABLE
        self._tell(kind, now, self._about(message, now))

    def confirmed(self, channel: int, first: int, last: int, acked: bool, now: float) -> None:
        """The publisher is being told that a run of its publishes is safe, or was refused."""
        if channel not in self._unconfirmed:
            return
        vhost, waiting = self._unconfirmed[channel]
        event, reason = (CONFIRMED, None) if acked else (PUBLISH_FAILED, REASON_MAXLEN)
        kind = event, vhost, None, None, 0, reason
        for seq in range(first, last + 1):
            text = waiting.pop(seq, None)
            if text is not None:
                self._tell(kind, now, text)

    def channel_closed(self, channel: int) -> None:
        """Its publishes are confirmed no more."""
        self._unconfirmed.pop(channel, None)

    # ---------------------------------------------------------------- a stay in a queue

    def enqueued(self, entry: Entry, now: float) -> None:
        """A queue took a copy."""
        origin, queue = self.origin, entry.queue
        entry.published_at = published_at = now if origin is None else origin.published_at
        entry.enqueued_at = now
        text = f'{self._about(entry.message, published_at)},"enqueued_at":{self._at(now)}'
        self._tell((ENQUEUED, queue.vhost, queue.name, None, 0, None), now, text)

    def delivered(self, entry: Entry, consumer: str, no_ack: bool, now: float) -> None:
        """It was handed out; without acknowledgements that is its end."""
        entry.delivered_at = now
        entry.told = text = self._stay(entry)
        queue, attempts = entry.queue, entry.attempts
        self._tell((DELIVERED, queue.vhost, queue.name, consumer, attempts, None), now, text)
        if no_ack:
            self._tell((ACKED, queue.vhost, queue.name, consumer, attempts, None), now, text)

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
        kind = DROPPED, entry.queue.vhost, None, None, 0, reason
        self._tell(kind, now, self._about(message, entry.published_at))

    # ---------------------------------------------------------------- lines

    def _note(self, event: str, entry: Entry, now: float | None, reason: str | None = None) -> None:
        queue, attempts = entry.queue, entry.attempts
        consumer = None if entry.consumer is None or not attempts else entry.consumer.tag
        kind = event, queue.vhost, queue.name, consumer, attempts, reason
        self._tell(kind, now, entry.told or self._stay(entry))

    def _tell(self, kind: _Kind, now: float | None, text: str) -> None:
        start = self._starts.get(kind) or self._start(kind)
        seq = str(self._number())
        if now is None:
            at = "null"
            self._timeless.append(len(self._told))
        else:
            at = self._micros if now is self._now else self._at(now)
        self._told.append(f'{start}{seq}","seq":{seq},"ts":{at}{text}}}\n')

    def _at(self, seconds: float) -> str:
        """A time as it is written."""
        if seconds is not self._now:
            self._now, self._micros = seconds, str(int(seconds * 1e6 + 0.5))
        return self._micros

    def _start(self, kind: _Kind) -> str:
        event, vhost, queue, consumer, attempts, reason = kind
        redelivered = attempts > 1 if attempts else None
        if len(self._starts) >= CACHED_STARTS:
            self._starts.clear()
        made = self._starts[kind] = self._lines.start(
            (
                event,
                vhost,
                None,
                None,
                queue,
                consumer or None,
                attempts or None,
                redelivered,
                reason,
            )
        )
        return made

    def _stay(self, entry: Entry) -> str:
        """What the events of a delivery have in common, or those of the wait before the first."""
        text = self._about(entry.message, entry.published_at)
        if entry.enqueued_at:
            text += f',"enqueued_at":{self._at(entry.enqueued_at)}'
        if entry.delivered_at:
            text += f',"delivered_at":{self._at(entry.delivered_at)}'
        return text

    def _about(self, message: Outgoing, published_at: float) -> str:
        """What all events of a message have in common."""
        if message is self._message and published_at == self._published_at:
            return self._text
        exchange, routing_key, body, properties, _ = message
        message_id, headers = properties.message_id, properties.headers
        text = (
            f',"exchange":{quoted(exchange)},"routing_key":{quoted(routing_key)},"message_id":'
            f'{"null" if message_id is None else quoted(message_id)},"size":{len(body)}'
        )
        if published_at:
            text += f',"published_at":{self._at(published_at)}'
        if properties.priority is not None:
            text += f',"priority":{properties.priority}'
        if headers and (trace_id := trace_id_of(headers)) is not None:
            text += f',"trace_id":{quoted(trace_id)}'
        self._message, self._published_at, self._text = message, published_at, text
        return text
