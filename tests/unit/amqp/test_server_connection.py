"""A whole conversation with a server connection."""

from __future__ import annotations

from pamqp import commands
from pamqp.base import Frame
from pamqp.frame import marshal, unmarshal

from broker_client.amqp.encode import publish_frames
from broker_client.amqp.events import (
    Acked,
    ChannelCloseAsked,
    ChannelOpened,
    ConnectionCloseAsked,
    LoginOffered,
    MethodReceived,
    Published,
    Settled,
    Tuned,
    VHostRequested,
)
from broker_client.amqp.server_connection import ConnectionLimits, ServerConnection
from broker_client.amqp.states import ConnectionState
from broker_client.message import Delivery, Outgoing, Properties


def sent(connection: ServerConnection) -> list[str]:
    """Names of the frames it has queued."""
    data, names = connection.data_to_send(), []
    while data:
        used, _, frame = unmarshal(data)
        names.append(frame.name)
        data = data[used:]
    return names


def from_client(*methods: Frame, channel: int = 0) -> bytes:
    return b"".join(marshal(method, channel) for method in methods)


def an_open_connection() -> ServerConnection:
    connection = ServerConnection(ConnectionLimits(), {"product": "test"}, ["PLAIN"])
    connection.receive_data(b"AMQP\x00\x00\x09\x01")
    start_ok = commands.Connection.StartOk({}, "PLAIN", "\0guest\0secret", "en_US")
    events = connection.receive_data(from_client(start_ok))
    assert events == [LoginOffered("PLAIN", b"\0guest\0secret", "en_US", {})]
    connection.tune()
    tune_ok = commands.Connection.TuneOk(2047, 131072, 60)
    events = connection.receive_data(from_client(tune_ok, commands.Connection.Open("/")))
    assert events == [Tuned(), VHostRequested("/")]
    connection.open_ok()
    assert sent(connection) == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"]
    assert connection.state is ConnectionState.OPEN
    return connection


def test_publish_and_settle_when_open_then_events_in_order() -> None:
    connection = an_open_connection()
    assert connection.receive_data(from_client(commands.Channel.Open(), channel=1)) == [
        ChannelOpened(1)
    ]
    connection.send(1, commands.Channel.OpenOk())
    message = Outgoing("e", "k", b"body", Properties(headers={"a": 1}, delivery_mode=2), True)
    data = publish_frames(1, message, 131072)
    acks = commands.Basic.Ack(3), commands.Basic.Ack(4), commands.Basic.Ack(5, True)
    ack = from_client(*acks, channel=1)
    events = connection.receive_data(data + data + ack)
    assert events == [
        Published(1, [message, message]),
        Acked(1, [3, 4]),
        Settled(1, "ack", 5, True, False),
    ]
    received = events[0].messages[0] if isinstance(events[0], Published) else message
    connection.send_deliver(1, Delivery("t", 1, False, "e", "k", b"body", received.properties))
    connection.send_confirm(1, 2, multiple=True, acked=True)
    assert sent(connection) == [
        "Channel.OpenOk",
        "Basic.Deliver",
        "ContentHeader",
        "ContentBody",
        "Basic.Ack",
    ]


def test_close_when_asked_then_answered_by_the_server() -> None:
    connection = an_open_connection()
    connection.receive_data(from_client(commands.Channel.Open(), channel=1))
    declare = commands.Queue.Declare(queue="q")
    (event,) = connection.receive_data(from_client(declare, channel=1))
    assert isinstance(event, MethodReceived)
    close = commands.Channel.Close(200, "bye", 0, 0)
    assert connection.receive_data(from_client(close, channel=1)) == [
        ChannelCloseAsked(1, 200, "bye")
    ]
    connection.send(1, commands.Channel.CloseOk())
    assert connection.receive_data(from_client(commands.Connection.Close(200, "bye", 0, 0))) == [
        ConnectionCloseAsked(200, "bye")
    ]
    connection.close_ok()
    assert sent(connection) == ["Channel.CloseOk", "Connection.CloseOk"]
    assert connection.state is ConnectionState.CLOSED
