"""A delivery as its consumer sees it, and its time-out."""

from __future__ import annotations

from broker_client.amqp.properties import ReceivedProperties
from broker_client.amqp.tables import FrozenTable, replaced, without_first
from broker_client.core.dead_lettering import OUR_DEATHS, WRITTEN_HERE
from broker_client.core.effects import CloseChannel
from broker_client.core.queue import ChannelState, Entry, Queue
from broker_client.core.settings import EngineSettings
from broker_client.message import Headers, Properties, with_headers

HIDDEN = frozenset(("BCC", OUR_DEATHS))
_HIDDEN_AND_COUNTED = HIDDEN | {"x-delivery-count"}


def shown_properties(entry: Entry, properties: Properties) -> Properties:
    """The properties as a consumer sees them: without BCC, and with the count of returns where
    the queue counts them (absent at the first delivery)."""
    counts = entry.queue.settings.counts_deliveries
    headers = properties.headers
    hidden = _HIDDEN_AND_COUNTED if counts else HIDDEN
    if type(properties) is ReceivedProperties and type(headers) is FrozenTable:
        rest = without_first(headers, WRITTEN_HERE)
        shown_table = headers if rest is None else rest
        if not (counts and entry.attempts > 1) and shown_table.lacks(_HIDDEN_AND_COUNTED):
            if shown_table is headers:
                return properties  # its bytes go out as they came
            return properties._replace(headers=shown_table)
        added = {"x-delivery-count": entry.attempts - 1} if counts and entry.attempts > 1 else {}
        return properties._replace(headers=replaced(shown_table, hidden, added))
    shown = without(headers, hidden)
    if counts and entry.attempts > 1:
        shown = {**(shown or {}), "x-delivery-count": entry.attempts - 1}
    if shown is headers:
        return properties
    if type(properties) is Properties:
        return with_headers(properties, shown)
    return properties._replace(headers=shown)


def without(headers: Headers | None, hidden: frozenset[str]) -> Headers | None:
    """`headers` as a plain table without those that are `hidden`."""
    if headers is None:
        return None
    if type(headers) is FrozenTable:
        headers = headers.plain()
    if type(headers) is dict and hidden.isdisjoint(headers):
        return headers
    shown = dict(headers)
    for name in hidden:  # few, and the headers of a dead letter are many
        shown.pop(name, None)
    return shown


def time_limit(settings: EngineSettings, queue: Queue, channel: ChannelState) -> tuple[float, bool]:
    """Seconds that a delivery from `queue` may be in flight on `channel`, 0 for no limit; and
    whether a longer one ends the channel or consumer (RabbitMQ), or is given back (nsq).

    Where the queue says nothing the channel's own limit holds, and without one the engine's.
    """
    if queue.settings.consumer_timeout is not None:
        return queue.settings.consumer_timeout, True
    if queue.settings.message_timeout is not None:
        return queue.settings.message_timeout, False
    if channel.consumer_timeout is not None:
        return channel.consumer_timeout, True
    return settings.message_timeout, False


def consumer_timed_out(
    settings: EngineSettings, channel: ChannelState, now: float
) -> CloseChannel | None:
    """Why `channel` must close, where one of its deliveries is in flight for too long.

    That is RabbitMQ's way with a slow consumer, x-consumer-timeout; otherwise the delivery is
    requeued. From 4.3 on, a consumer of a quorum queue is cancelled instead: see
    `Transitions.time_out`.
    """
    if channel.closes_on_timeout:
        for entry in channel.ledger.overdue(now):
            queue, consumer = entry.queue, entry.consumer
            if consumer is None:
                timeout, closes = time_limit(settings, queue, channel)
            else:
                timeout, closes = consumer.timeout, consumer.closes_on_timeout
            if closes and not queue.deleted:
                return CloseChannel(
                    channel.id,
                    406,
                    f"PRECONDITION_FAILED - delivery acknowledgement on channel {channel.number} "
                    f"timed out. Timeout value used: {int(timeout * 1000)} ms. This timeout "
                    "value can be configured, see consumers doc guide to learn more",
                )
    return None
