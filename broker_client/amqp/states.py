"""The states of a connection and of a channel on the server's side, as tables.

Each table says which methods a client may send in a state, and which state follows. What has no
entry costs the client its connection, or is dropped where the connection or channel is closing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx


class ConnectionState(Enum):
    """Where the server's side of a connection stands (AMQP 0-9-1 §2.2.4)."""

    HEADER = "waits for the protocol header"
    STARTING = "waits for connection.start-ok"
    LOGIN = "has a login to decide on"
    TUNING = "waits for connection.tune-ok"
    TUNED = "waits for connection.open"
    OPENING = "has a vhost to decide on"
    OPEN = "open"
    CLOSE_ASKED = "has been asked to close"
    CLOSING = "waits for connection.close-ok"
    CLOSED = "closed"


class ChannelProtocolState(Enum):
    """Where the server's side of a channel stands."""

    CLOSED = "closed"
    OPEN = "open"
    CLOSE_ASKED = "has been asked to close"
    CLOSING = "waits for channel.close-ok"


CONNECTION_RECEIVES: Mapping[ConnectionState, Mapping[int, ConnectionState]] = {
    ConnectionState.STARTING: {Connection.StartOk.index: ConnectionState.LOGIN},
    ConnectionState.TUNING: {Connection.TuneOk.index: ConnectionState.TUNED},
    ConnectionState.TUNED: {Connection.Open.index: ConnectionState.OPENING},
    ConnectionState.OPEN: {
        Connection.UpdateSecret.index: ConnectionState.OPEN,
        Connection.Close.index: ConnectionState.CLOSE_ASKED,
    },
    ConnectionState.CLOSE_ASKED: {},
    ConnectionState.CLOSING: {
        Connection.Close.index: ConnectionState.CLOSING,
        Connection.CloseOk.index: ConnectionState.CLOSED,
    },
}
"""State, method that comes on channel 0, state after it."""

WAITING = frozenset({ConnectionState.LOGIN, ConnectionState.OPENING})
"""The server decides: what a client sends meanwhile is read afterwards."""

RABBITMQ_WORDS: Mapping[ConnectionState, str] = {
    ConnectionState.STARTING: "starting",
    ConnectionState.TUNING: "tuning",
    ConnectionState.TUNED: "opening",
    ConnectionState.OPEN: "running",
}
"""States in RabbitMQ's reply texts."""

_COMMANDS: tuple[int, ...] = (
    Channel.Flow.index,
    Exchange.Declare.index,
    Exchange.Delete.index,
    Exchange.Bind.index,
    Exchange.Unbind.index,
    Queue.Declare.index,
    Queue.Bind.index,
    Queue.Unbind.index,
    Queue.Purge.index,
    Queue.Delete.index,
    Basic.Qos.index,
    Basic.Consume.index,
    Basic.Cancel.index,
    Basic.Publish.index,
    Basic.Get.index,
    Basic.Ack.index,
    Basic.Nack.index,
    Basic.Reject.index,
    Basic.Recover.index,
    Basic.RecoverAsync.index,
    Confirm.Select.index,
    Tx.Select.index,
    Tx.Commit.index,
    Tx.Rollback.index,
)

CHANNEL_RECEIVES: Mapping[ChannelProtocolState, Mapping[int, ChannelProtocolState]] = {
    ChannelProtocolState.CLOSED: {Channel.Open.index: ChannelProtocolState.OPEN},
    ChannelProtocolState.OPEN: {
        **dict.fromkeys(_COMMANDS, ChannelProtocolState.OPEN),
        Channel.Close.index: ChannelProtocolState.CLOSE_ASKED,
    },
    ChannelProtocolState.CLOSE_ASKED: {},
    ChannelProtocolState.CLOSING: {
        Channel.Close.index: ChannelProtocolState.CLOSING,
        Channel.CloseOk.index: ChannelProtocolState.CLOSED,
    },
}
"""State, method that comes on the channel, state after it.

A channel that is closing drops everything else (AMQP 0-9-1, class channel, method close), but
channel.open, which cannot come before the answer. RabbitMQ sends neither channel.flow nor
basic.cancel with an answer asked for, so that their answers have no entry.
"""
