"""Every method in every state: what a client may send by the specification, and nothing else.

The lists here are written from the specification (AMQP 0-9-1 §1.1 and the class reference) and
RabbitMQ's extensions, not from `broker_client.amqp.states`.
"""

from __future__ import annotations

import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING

from broker_client.amqp.events import ConnectionFailed, Event
from broker_client.amqp.method_codec import encode_method
from broker_client.amqp.server_connection import ServerConnection
from broker_client.amqp.states import (
    CHANNEL_RECEIVES,
    CONNECTION_RECEIVES,
    ChannelProtocolState,
    ConnectionState,
)
from tests.support.wire import (
    PROTOCOL_HEADER,
    a_server_connection,
    an_open_connection,
    frame,
    method,
    open_vhost,
    start_ok,
    tune_ok,
)

FROM_CLIENTS = {
    "Channel.Flow",
    "Exchange.Declare",
    "Exchange.Delete",
    "Exchange.Bind",
    "Exchange.Unbind",
    "Queue.Declare",
    "Queue.Bind",
    "Queue.Unbind",
    "Queue.Purge",
    "Queue.Delete",
    "Basic.Qos",
    "Basic.Consume",
    "Basic.Cancel",
    "Basic.Publish",
    "Basic.Get",
    "Basic.Ack",
    "Basic.Nack",
    "Basic.Reject",
    "Basic.Recover",
    "Basic.RecoverAsync",
    "Confirm.Select",
    "Tx.Select",
    "Tx.Commit",
    "Tx.Rollback",
}
"""Commands on an open channel (AMQP 0-9-1, "C:" in the grammar of each class)."""

ALLOWED_ON_CHANNELS = {
    "closed": {"Channel.Open"},
    "open": {*FROM_CLIENTS, "Channel.Close"},
    "close asked": set[str](),
    "closing": {"Channel.Close", "Channel.CloseOk"},
}
DROPS = {"close asked", "closing"}
"""In these states what is not allowed is dropped, but channel.open."""

ALLOWED_ON_CONNECTIONS = {
    "header": set[str](),
    "starting": {"Connection.StartOk"},
    "tuning": {"Connection.TuneOk"},
    "tuned": {"Connection.Open"},
    "open": {"Connection.Close", "Connection.UpdateSecret"},
    "close asked": set[str](),
    "closing": {"Connection.Close", "Connection.CloseOk"},
}
BY_KEY: dict[int, type[Frame]] = dict(INDEX_MAPPING)
METHODS = list(BY_KEY.values())


def a_method(kind: type[Frame]) -> Frame:
    """One with some value for each argument."""
    values = {"table": {}, "shortstr": "", "longstr": "", "bit": False}
    value = kind.__new__(kind)
    for name in kind.attributes():
        setattr(value, name, values.get(kind.amqp_type(name), 1))
    if isinstance(value, commands.Connection.TuneOk):
        value.frame_max = 4_096
    return value


def a_channel(state: str) -> ServerConnection:
    if state == "closed":
        return an_open_connection()
    connection = an_open_connection(1)
    if state == "close asked":
        connection.receive_data(method(commands.Channel.Close(200, "bye", 0, 0), 1))
    if state == "closing":
        connection.close_channel(1, 404, "gone")
    connection.data_to_send()
    return connection


def a_connection(state: str) -> ServerConnection:
    connection = a_server_connection()
    if state == "header":
        return connection
    connection.receive_data(PROTOCOL_HEADER)
    if state == "starting":
        return connection
    connection.receive_data(start_ok())
    connection.tune()
    if state == "tuning":
        return connection
    connection.receive_data(tune_ok())
    if state == "tuned":
        return connection
    connection.receive_data(open_vhost())
    connection.open_ok()
    if state == "close asked":
        connection.receive_data(method(commands.Connection.Close(200, "bye", 0, 0)))
    if state == "closing":
        connection.close(320, "CONNECTION_FORCED")
    return connection


def outcome(events: list[Event]) -> str:
    if any(isinstance(event, ConnectionFailed) for event in events):
        return "refused"
    return "taken" if events else "dropped"


@pytest.mark.parametrize("state", ALLOWED_ON_CHANNELS)
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_method_on_a_channel_then_as_the_specification_says(kind: type[Frame], state: str) -> None:
    connection = a_channel(state)
    sent = encode_method(1, a_method(kind))
    if kind is commands.Basic.Publish:
        sent += frame(2, 1, bytes((0, 60)) + bytes(12))
    got = outcome(connection.receive_data(sent))
    if kind.name in ALLOWED_ON_CHANNELS[state]:
        answered = kind is commands.Channel.Close and state == "closing"
        assert got == ("dropped" if answered else "taken")
        assert bool(connection.data_to_send()) is answered
    elif state in DROPS and kind is not commands.Channel.Open:
        assert got == "dropped"
        assert connection.data_to_send() == b""
    else:
        assert got == "refused"


@pytest.mark.parametrize("state", ALLOWED_ON_CONNECTIONS)
@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.name)
def test_method_on_channel_0_then_as_the_specification_says(kind: type[Frame], state: str) -> None:
    connection = a_connection(state)
    connection.data_to_send()
    events = connection.receive_data(encode_method(0, a_method(kind)))
    got = outcome(events)
    if kind.name in ALLOWED_ON_CONNECTIONS[state]:
        answered = kind is commands.Connection.Close and state == "closing"
        assert got == ("dropped" if answered else "taken")
        assert bool(connection.data_to_send()) is answered
    elif state in ("close asked", "closing"):
        assert got == "dropped"
        assert connection.data_to_send() == b""
    elif state == "header":
        assert connection.data_to_send() == PROTOCOL_HEADER
    else:
        assert got == "refused"
        assert bool(connection.data_to_send()) is (state in ("tuned", "open"))


def test_tables_name_all_states() -> None:
    assert set(CHANNEL_RECEIVES) == set(ChannelProtocolState)
    decided_elsewhere = {
        ConnectionState.HEADER,
        ConnectionState.LOGIN,
        ConnectionState.OPENING,
        ConnectionState.CLOSED,
    }
    assert set(CONNECTION_RECEIVES) == set(ConnectionState) - decided_elsewhere


@pytest.mark.parametrize("state", list(ChannelProtocolState))
def test_channel_table_allows_what_the_specification_allows(state: ChannelProtocolState) -> None:
    names = {BY_KEY[key].name for key in CHANNEL_RECEIVES[state]}
    assert names == ALLOWED_ON_CHANNELS[state.name.lower().replace("_", " ")]


@pytest.mark.parametrize("state", list(CONNECTION_RECEIVES))
def test_connection_table_allows_what_the_specification_allows(state: ConnectionState) -> None:
    names = {BY_KEY[key].name for key in CONNECTION_RECEIVES[state]}
    assert names == ALLOWED_ON_CONNECTIONS[state.name.lower().replace("_", " ")]
