"""Delivery events: what happens to messages, as lines of the log.

The built-in broker notes these inside its pure core, the client from what it sees of a remote
broker; `events.log` writes them and `broker_client.spark.event_log` reads them. docs/event-log.md
says what each event means and which fields it carries.

A line is made where the event happens: one f-string, of which most is the same for many events or
for all of a message, costs less than a tuple that is kept and taken apart by another thread. The
collector has nothing to look at either, and no body is kept alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from broker_client.message import Outgoing

SCHEMA_VERSION = 1
ERROR_TEXT_BYTES = 512

PUBLISHED = "published"
CONFIRMED = "confirmed"
RETURNED = "returned"
PUBLISH_FAILED = "publish_failed"
ENQUEUED = "enqueued"
DELIVERED = "delivered"
ACKED = "acked"
NACKED = "nacked"
REQUEUED = "requeued"
TIMED_OUT = "timed_out"
DEAD_LETTERED = "dead_lettered"
EXPIRED = "expired"
DROPPED = "dropped"
REPLAYED = "replayed"

EVENTS = (
    PUBLISHED,
    CONFIRMED,
    RETURNED,
    PUBLISH_FAILED,
    ENQUEUED,
    DELIVERED,
    ACKED,
    NACKED,
    REQUEUED,
    TIMED_OUT,
    DEAD_LETTERED,
    EXPIRED,
    DROPPED,
    REPLAYED,
)

# Reasons; the first four are also RabbitMQ's in x-death.
REASON_REJECTED = "rejected"
REASON_EXPIRED = "expired"
REASON_MAXLEN = "maxlen"
REASON_DELIVERY_LIMIT = "delivery_limit"
REASON_TIMEOUT = "timeout"
REASON_HANDLER_ERROR = "handler_error"
REASON_CONNECTION_LOST = "connection_lost"
REASON_UNROUTABLE = "unroutable"
REASON_PURGED = "purged"
REASON_QUEUE_DELETED = "queue_deleted"
REASON_RECOVERED = "recovered"
REASON_CYCLE = "cycle"


class DeliveryEvent(NamedTuple):
    """One change of state. Times are seconds since the epoch; None is absent.

    First the fields that are the same in many events: the log writes them as one piece.
    """

    event: str
    vhost: str
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    """1 is the first delivery."""
    redelivered: bool | None = None
    reason: str | None = None
    publication: str | None = None
    subscription: str | None = None
    message_id: str | None = None
    ts: float | None = None
    """When; None if the core did not get the time: the log uses that of `record`."""
    size: int | None = None
    published_at: float | None = None
    enqueued_at: float | None = None
    delivered_at: float | None = None
    priority: int | None = None
    error_class: str | None = None
    error: str | None = None
    trace_id: str | None = None


class MessageEvent(NamedTuple):
    """One change of state as the core notes it: with the message itself, which is not looked at
    before its line is made. 0.0 is a time that is not known."""

    event: str
    vhost: str
    message: Outgoing
    ts: float | None
    reason: str | None = None
    queue: str | None = None
    consumer: str | None = None
    attempts: int = 0
    published_at: float = 0.0
    enqueued_at: float = 0.0
    delivered_at: float = 0.0


COMMON_FIELDS = 11
"""How many of the fields are the same in many events."""
CACHED_STARTS = 4_096

_TIMES = slice(COMMON_FIELDS, COMMON_FIELDS + 6)
_RARE = slice(COMMON_FIELDS + 6, None)
_NOTHING_RARE = (None,) * len(DeliveryEvent._fields[_RARE])


class _Micros(dict[float, str]):
    """Seconds as whole microseconds, in digits; events of one command have times in common."""

    def __missing__(self, seconds: float) -> str:
        if len(self) >= CACHED_STARTS:
            self.clear()
        micros = self[seconds] = str(int(seconds * 1e6 + 0.5))
        return micros


class Lines:
    """Events as lines of JSON, numbered; what is never written has a number too.

    Args:
        node: who writes.
        boot: what tells this run of it from all others.
    """

    def __init__(self, node: str, boot: str) -> None:
        self.number: Callable[[], int] = count(1).__next__
        self._node = f'{{"v":{SCHEMA_VERSION},"node":{quoted(node)}'
        self._event_id = f',"event_id":{quoted(f"{node}-{boot}-")[:-1]}'
        self._starts: dict[tuple[Any, ...], str] = {}
        self._routes: dict[tuple[str, str], str] = {}
        self._micros = _Micros()

    def line(self, event: DeliveryEvent, now: float) -> str:
        """The line of `event`, at `now` unless it has a time of its own."""
        fields: tuple[Any, ...] = event
        common = fields[:COMMON_FIELDS]
        start = self._starts.get(common)
        if start is None:
            start = self._remember(common, common)
        message_id, ts, size, published_at, enqueued_at, delivered_at = fields[_TIMES]
        seq, micros = self.number(), self._micros
        line = (
            f'{start}{seq}","seq":{seq},"ts":{micros[now if ts is None else ts]}'
            f',"message_id":{"null" if message_id is None else quoted(message_id)}'
        )
        if size is not None:
            line += f',"size":{size}'
        if published_at is not None:
            line += f',"published_at":{micros[published_at]}'
        if enqueued_at is not None:
            line += f',"enqueued_at":{micros[enqueued_at]}'
        if delivered_at is not None:
            line += f',"delivered_at":{micros[delivered_at]}'
        rare = fields[_RARE]
        return line + "}\n" if rare == _NOTHING_RARE else f"{line}{_rare(*rare)}}}\n"

    def message_lines(self, events: Iterable[MessageEvent], now: float) -> list[str]:
        """The lines of `events`, at `now` if the core did not get the time."""
        micros, number, starts, routes = self._micros, self.number, self._starts, self._routes
        described, about = None, ""
        lines = []
        for (
            event,
            vhost,
            message,
            ts,
            reason,
            queue,
            consumer,
            attempts,
            published_at,
            enqueued_at,
            delivered_at,
        ) in events:
            kind = event, vhost, queue, consumer, attempts, reason
            start = starts.get(kind)
            if start is None:
                start = self._remember(
                    kind,
                    (
                        *(event, vhost, None, None, queue, consumer or None),
                        *(attempts or None, attempts > 1 if attempts else None, reason),
                    ),
                )
            if message is not described:  # else the next event of the same
                described = message
                exchange, routing_key, body, properties, _, _ = message
                route = routes.get((exchange, routing_key))
                if route is None:
                    route = self._remember_route(exchange, routing_key)
                message_id = properties.message_id
                about = (
                    f"{route}{'null' if message_id is None else quoted(message_id)}"
                    f',"size":{len(body)}'
                )
                if properties.priority is not None or properties.headers:
                    about += _rare(properties.priority, None, None, trace_id_of(properties.headers))
            seq = number()
            line = f'{start}{seq}","seq":{seq},"ts":{micros[now if ts is None else ts]}{about}'
            if published_at:
                line += f',"published_at":{micros[published_at]}'
            if enqueued_at:
                line += f',"enqueued_at":{micros[enqueued_at]}'
            if delivered_at:
                line += f',"delivered_at":{micros[delivered_at]}'
            lines.append(line + "}\n")
        return lines

    def _remember_route(self, exchange: str, routing_key: str) -> str:
        if len(self._routes) >= CACHED_STARTS:
            self._routes.clear()
        route = self._routes[exchange, routing_key] = (
            f',"exchange":{quoted(exchange)},"routing_key":{quoted(routing_key)},"message_id":'
        )
        return route

    def _remember(self, kind: tuple[Any, ...], common: tuple[Any, ...]) -> str:
        if len(self._starts) >= CACHED_STARTS:
            self._starts.clear()
        start = self._starts[kind] = self.start(common)
        return start

    def start(self, common: tuple[Any, ...]) -> str:
        """How a line begins whose event has the fields `common`, the first ones; keep it.

        Its number comes next, then ``","seq":`` and the number again.
        """
        text = self._node
        for field, value in zip(DeliveryEvent._fields, common, strict=False):
            if isinstance(value, str):
                text += f',"{field}":{quoted(value)}'
            elif value is not None:  # a number or a truth value
                text += f',"{field}":{str(value).lower()}'
        return text + self._event_id


def _rare(
    priority: int | None, error_class: str | None, error: str | None, trace_id: str | None
) -> str:
    text = "" if priority is None else f',"priority":{priority}'
    if error_class is not None:
        text += f',"error_class":{quoted(error_class)}'
    if error is not None:
        text += f',"error":{quoted(_shortened(error))}'
    if trace_id is not None:
        text += f',"trace_id":{quoted(trace_id)}'
    return text


def _shortened(text: str) -> str:
    data = text.encode("utf-8", "replace")
    return (
        text if len(data) <= ERROR_TEXT_BYTES else data[:ERROR_TEXT_BYTES].decode("utf-8", "ignore")
    )


def trace_id_of(headers: Mapping[str, Any] | None) -> str | None:
    """The trace id in a W3C ``traceparent`` header (``00-<trace id>-<span id>-<flags>``)."""
    value = headers.get("traceparent") if headers else None
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if not isinstance(value, str):
        return None
    parts = value.split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
