"""A whole conversation with a server connection."""

from __future__ import annotations

from pamqp import commands

from broker_client.amqp.encode import publish_frames
from broker_client.amqp.events import (
    AcksReceived,
    ChannelCloseAsked,
    ChannelOpened,
    ConnectionCloseAsked,
    LoginOffered,
    MethodReceived,
    PublishesReceived,
    SettlementReceived,
    Tuned,
    VHostRequested,
)
from broker_client.amqp.states import ConnectionState
from broker_client.message import Delivery, Outgoing, Properties
from tests.support.wire import (
    PROTOCOL_HEADER,
    a_server_connection,
    an_open_connection,
    method,
    names_in,
    open_vhost,
    start_ok,
    tune_ok,
)


def test_handshake_then_each_decision_is_asked_for_and_answered() -> None:
    connection = a_server_connection()
    connection.receive_data(PROTOCOL_HEADER)
    events = connection.receive_data(start_ok(properties={}))
    assert events == [LoginOffered("PLAIN", b"\0guest\0guest", "en_US", {})]
    connection.tune()
    events = connection.receive_data(tune_ok() + open_vhost())
    assert events == [Tuned(), VHostRequested("/")]
    connection.open_ok()
    sent = names_in(connection.data_to_send())
    assert sent == ["Connection.Start", "Connection.Tune", "Connection.OpenOk"]
    assert connection.state is ConnectionState.OPEN


def test_publish_and_settle_when_open_then_events_in_order() -> None:
    connection = an_open_connection()
    assert connection.receive_data(method(commands.Channel.Open(), 1)) == [ChannelOpened(1)]
    connection.send(1, commands.Channel.OpenOk())
    message = Outgoing("e", "k", b"body", Properties(headers={"a": 1}, delivery_mode=2), True)
    data = publish_frames(1, message, 131072)
    acks = commands.Basic.Ack(3), commands.Basic.Ack(4), commands.Basic.Ack(5, True)
    data += data + b"".join(method(ack, 1) for ack in acks)
    events = connection.receive_data(data)
    assert events == [
        PublishesReceived(1, [message, message]),
        AcksReceived(1, [3, 4]),
        SettlementReceived(1, "ack", 5, True, False),
    ]
    received = events[0].messages[0] if isinstance(events[0], PublishesReceived) else message
    connection.send_deliver(1, Delivery("t", 1, False, "e", "k", b"body", received.properties))
    connection.send_confirm(1, 2, multiple=True, acked=True)
    assert names_in(connection.data_to_send()) == [
        "Channel.OpenOk",
        "Basic.Deliver",
        "ContentHeader",
        "ContentBody",
        "Basic.Ack",
    ]


def test_close_when_asked_then_answered_by_the_server() -> None:
    connection = an_open_connection()
    connection.receive_data(method(commands.Channel.Open(), 1))
    declare = commands.Queue.Declare(queue="q")
    (event,) = connection.receive_data(method(declare, 1))
    assert isinstance(event, MethodReceived)
    close = commands.Channel.Close(200, "bye", 0, 0)
    assert connection.receive_data(method(close, 1)) == [ChannelCloseAsked(1, 200, "bye")]
    connection.send(1, commands.Channel.CloseOk())
    assert connection.receive_data(method(commands.Connection.Close(200, "bye", 0, 0))) == [
        ConnectionCloseAsked(200, "bye")
    ]
    connection.close_ok()
    assert names_in(connection.data_to_send()) == ["Channel.CloseOk", "Connection.CloseOk"]
    assert connection.state is ConnectionState.CLOSED
