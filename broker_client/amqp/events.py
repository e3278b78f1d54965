"""What a peer did: the events that `ServerConnection.receive_data` returns.

A connection yields, in this order: `LoginOffered`, `Tuned`, `VHostRequested`, then events of its
channels, then `ConnectionCloseAsked` or `ConnectionFailed`, and at last `ConnectionClosed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pamqp.base import Frame

from broker_client.message import Outgoing


class LoginOffered(NamedTuple):
    """connection.start-ok: answer with `tune` or `refuse_login`."""

    mechanism: str
    response: bytes
    locale: str
    client_properties: Mapping[str, Any]


class Tuned(NamedTuple):
    """connection.tune-ok: `frame_max`, `channel_max` and `heartbeat` are agreed on."""


class VHostRequested(NamedTuple):
    """connection.open: answer with `open_ok` or `close`."""

    vhost: str


class SecretUpdated(NamedTuple):
    """connection.update-secret: answer with connection.update-secret-ok."""

    new_secret: bytes
    reason: str


class ConnectionCloseAsked(NamedTuple):
    """connection.close: answer with `close_ok` once nothing of the connection is left."""

    reply_code: int
    reply_text: str


class ConnectionFailed(NamedTuple):
    """The peer broke the protocol. The answer of AMQP is queued where there is one."""

    reply_code: int
    reply_text: str


class ConnectionClosed(NamedTuple):
    """Stop reading. Write what is queued, then end the socket."""


class HeartbeatReceived(NamedTuple):
    """A heartbeat frame."""


class ChannelOpened(NamedTuple):
    """channel.open: answer with channel.open-ok."""

    channel: int


class ChannelCloseAsked(NamedTuple):
    """channel.close: answer with channel.close-ok once nothing of the channel is left."""

    channel: int
    reply_code: int
    reply_text: str


class ChannelFailed(NamedTuple):
    """The peer broke a rule that closes the channel; channel.close is queued."""

    channel: int
    reply_code: int
    reply_text: str


class ChannelClosed(NamedTuple):
    """channel.close-ok: the number of the channel is free again."""

    channel: int


class MethodReceived(NamedTuple):
    """Any method of a channel that has no event of its own."""

    channel: int
    method: Frame


class PublishesReceived(NamedTuple):
    """Publishes of one channel that came in one read with nothing between them, in order."""

    channel: int
    messages: list[Outgoing]


class AcksReceived(NamedTuple):
    """basic.ack of single deliveries of one channel, with nothing between them, in order."""

    channel: int
    delivery_tags: list[int]


class SettlementReceived(NamedTuple):
    """basic.ack of all deliveries up to one, basic.nack or basic.reject."""

    channel: int
    kind: str
    """``ack``, ``nack`` or ``reject``."""
    delivery_tag: int
    multiple: bool
    requeue: bool


Event = (
    LoginOffered
    | Tuned
    | VHostRequested
    | SecretUpdated
    | ConnectionCloseAsked
    | ConnectionFailed
    | ConnectionClosed
    | HeartbeatReceived
    | ChannelOpened
    | ChannelCloseAsked
    | ChannelFailed
    | ChannelClosed
    | MethodReceived
    | PublishesReceived
    | AcksReceived
    | SettlementReceived
)
