"""The states of a connection and of a channel on the server's side, as tables.

Each table says which methods a client may send in a state. `None` in place of a table: whatever
comes is dropped. What a client may not send has no entry, and costs it the connection.
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
    SECURING = "waits for connection.secure-ok"
    TUNING = "waits for connection.tune-ok"
    TUNED = "waits for connection.open"
    OPENING = "has a vhost to decide on"
    OPEN = "open"
    CLOSE_ASKED = "has been asked to close"
    CLOSING = "waits for connection.close-ok"
    CLOSED = "closed"


class ChannelState(Enum):
    """Where the server's side of a channel stands."""

    CLOSED = "closed"
    OPEN = "open"
    CLOSE_ASKED = "has been asked to close"
    CLOSING = "waits for channel.close-ok"


CONNECTION_RECEIVES: Mapping[ConnectionState, Mapping[int, ConnectionState]] = {
    ConnectionState.STARTING: {Connection.StartOk.index: ConnectionState.LOGIN},
    ConnectionState.SECURING: {Connection.SecureOk.index: ConnectionState.LOGIN},
    ConnectionState.TUNING: {Connection.TuneOk.index: ConnectionState.TUNED},
    ConnectionState.TUNED: {Connection.Open.index: ConnectionState.OPENING},
    ConnectionState.OPEN: {
        Connection.UpdateSecret.index: ConnectionState.OPEN,
        Connection.Close.index: ConnectionState.CLOSE_ASKED,
    },
    ConnectionState.CLOSING: {
        Connection.Close.index: ConnectionState.CLOSING,
        Connection.CloseOk.index: ConnectionState.CLOSED,
    },
}
"""State, method that comes on channel 0, state after it."""

WAITING = frozenset({ConnectionState.LOGIN, ConnectionState.OPENING})
"""The server decides: what a client sends meanwhile is read afterwards."""

_COMMANDS: tuple[int, ...] = (
    Channel.Flow.index,
    Channel.FlowOk.index,
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
    Basic.CancelOk.index,
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

CHANNEL_RECEIVES: Mapping[ChannelState, Mapping[int, ChannelState]] = {
    ChannelState.CLOSED: {Channel.Open.index: ChannelState.OPEN},
    ChannelState.OPEN: {
        **dict.fromkeys(_COMMANDS, ChannelState.OPEN),
        Channel.Close.index: ChannelState.CLOSE_ASKED,
    },
    ChannelState.CLOSING: {
        Channel.Close.index: ChannelState.CLOSING,
        Channel.CloseOk.index: ChannelState.CLOSED,
    },
}
"""State, method, state after it.

A channel that is closing drops everything else (AMQP 0-9-1 §1.5.2.5, channel.close). One that has
been asked to close drops everything until it has answered.
"""
