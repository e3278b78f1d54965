"""One client's connection: a socket, the protocol's state machine, and a connection of the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar

from pamqp import commands

from broker_client.amqp import events
from broker_client.amqp.server_connection import ConnectionLimits, ServerConnection
from broker_client.errors import BrokerClientError
from broker_client.node.node import Node
from broker_client.server.channel import (
    BASIC_PUBLISH,
    NO_METHOD,
    SETTLE_IDS,
    Ids,
    SessionChannel,
    ids_of,
)
from broker_client.server.login import AMQPLAIN, PLAIN, read_login
from broker_client.server.writer import Writer

log = logging.getLogger("broker_client.server")

_CONNECTION_OPEN: Ids = (10, 40)
_SERVER_PROPERTIES: dict[str, Any] = {
    "product": "broker_client",
    "platform": "Python",
    "information": "The built-in broker of broker_client",
    "capabilities": {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    },
}


_DECISIONS = (events.LoginOffered, events.VHostRequested)
"""After these, the protocol reads on when asked to."""


class Session(asyncio.Protocol):
    """Serves one client, from its first byte to its last.

    What the client sends becomes commands of the node, in the order of its bytes. What the node
    sends goes through the writer. The session ends with its socket.
    """

    def __init__(self, node: Node, sessions: set[Session]) -> None:
        """
        Args:
            node: is served.
            sessions: of the server: this one is among them while its socket is open.
        """
        self._node, self._sessions = node, sessions
        self._protocol = ServerConnection(
            ConnectionLimits(max_message_size=node.max_message_size),
            _SERVER_PROPERTIES,
            (PLAIN, AMQPLAIN),
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._writer: Writer
        self._channels: dict[int, SessionChannel] = {}
        self._connection: int | None = None
        """How the node calls it, once a vhost is open."""
        self._handling: events.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unheard = 0
        """Half heartbeat intervals in which nothing was received."""
        self._read_pauses: set[str] = set()
        """Why nothing is read from the client at present."""
        self._capabilities: dict[str, Any] = {}
        self.peer = self.name = self.user = self.vhost = ""

    def __repr__(self) -> str:
        return f"<Session {self.peer} {self.name!r} {self._protocol.state.name.lower()}>"

    # ---------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = Writer(self._protocol, transport)
        self._sessions.add(self)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix socket"

    def data_received(self, data: bytes) -> None:
        self._unheard = 0
        try:
            self._receive(data)
        except Exception:
            # What fails for one client must not fail for others, nor in silence for this one.
            log.exception("%r: failed", self)
            self.closed(541, "INTERNAL_ERROR")
        self._handling = None
        self._writer.flush()

    def _receive(self, data: bytes) -> None:
        received = self._protocol.receive_data(data)
        while received:
            for event in received:
                self._handling = event
                self._HANDLERS[type(event)](self, event)
            decided = type(received[-1]) in _DECISIONS
            received = self._protocol.receive_data(b"") if decided else []

    def connection_lost(self, error: Exception | None) -> None:
        self._sessions.discard(self)
        self._stop_timer()
        self._leave_node()
        log.info("%s: connection closed%s", self, f": {error}" if error else "")

    # ---------------------------------------------------------------- the handshake

    def _login_offered(self, event: events.LoginOffered) -> None:
        properties = event.client_properties
        self.name = str(properties.get("connection_name", ""))
        capabilities = properties.get("capabilities")
        self._capabilities = dict(capabilities) if isinstance(capabilities, dict) else {}
        login = read_login(event.mechanism, event.response)
        if login != ("guest", "guest"):
            self._protocol.refuse_login(event.mechanism)
            return
        self.user = login.user
        self._protocol.tune()

    def _tuned(self, _event: events.Tuned) -> None:
        if self._protocol.heartbeat:
            self._unheard = 0
            self._beat_later()

    def _vhost_requested(self, event: events.VHostRequested) -> None:
        try:
            self._connection = self._node.open_connection(event.vhost, self)
        except BrokerClientError as error:
            self._writer.close(541, f"INTERNAL_ERROR - {error}", _CONNECTION_OPEN)
            return
        self.vhost = event.vhost
        self._protocol.open_ok()
        log.info("%r: connection opened", self)

    def _secure_answered(self, _event: events.SecureAnswered) -> None:
        raise AssertionError("no mechanism of ours asks for more")

    def _secret_updated(self, _event: events.SecretUpdated) -> None:
        self._protocol.send(0, commands.Connection.UpdateSecretOk())

    # ---------------------------------------------------------------- channels

    def _channel_opened(self, event: events.ChannelOpened) -> None:
        assert self._connection is not None, "the protocol opens no channel before the vhost"
        channel = SessionChannel(self._node, self._writer, self._connection, event.channel)
        self._channels[event.channel] = channel
        self._writer.send(event.channel, commands.Channel.OpenOk())

    def _channel_close_asked(self, event: events.ChannelCloseAsked) -> None:
        self._channels[event.channel].close()

    def _channel_failed(self, event: events.ChannelFailed) -> None:
        log.warning("%r: channel %d: %s", self, event.channel, event.reply_text)
        self._channels[event.channel].fail()

    def _channel_closed(self, event: events.ChannelClosed) -> None:
        del self._channels[event.channel]

    def _method_received(self, event: events.MethodReceived) -> None:
        self._channels[event.channel].handle(event.method)

    def _published(self, event: events.Published) -> None:
        self._channels[event.channel].publish(event.messages)
        if self._node.is_behind and "disk" not in self._read_pauses:
            self._pause_reading("disk")
            self._node.call_after_effects(lambda: self._resume_reading("disk"))

    def _settled(self, event: events.Settled) -> None:
        self._channels[event.channel].settle(event)

    def _heartbeat_received(self, event: events.HeartbeatReceived) -> None:
        """That it was heard is noted of any byte."""

    # ---------------------------------------------------------------- the end

    def _connection_close_asked(self, event: events.ConnectionCloseAsked) -> None:
        self._node.call_after_effects(self._close_ok)

    def _close_ok(self) -> None:
        self._leave_node()
        self._protocol.close_ok()
        self._writer.flush()
        self._transport.close()

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        self._writer.flush()
        self._transport.close()

    def _connection_failed(self, event: events.ConnectionFailed) -> None:
        log.warning("%r: %s %s", self, event.reply_code, event.reply_text)
        self._leave_node()

    def _leave_node(self) -> None:
        """Requeue what is in flight, at once; nothing more comes from the node."""
        for channel in self._channels.values():
            channel.drop()
        if self._connection is not None:
            self._node.close_connection(self._connection)
            self._connection = None

    def abort(self) -> None:
        """End the socket, at once."""
        self._transport.abort()

    # ---------------------------------------------------------------- heartbeats

    def _beat_later(self) -> None:
        self._timer = self._loop.call_later(self._protocol.heartbeat / 2, self._beat)

    def _beat(self) -> None:
        if not self._read_pauses:
            self._unheard += 1
        if self._unheard > 4:  # RabbitMQ: two intervals without a byte
            log.warning("%r: missed heartbeats", self)
            self._transport.abort()
            return
        if not self._writer.has_written:
            self._protocol.send_heartbeat()
            self._writer.flush()
        self._writer.has_written = False
        self._beat_later()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------- flow

    def _pause_reading(self, why: str) -> None:
        if not self._read_pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._read_pauses.add(why)

    def _resume_reading(self, why: str) -> None:
        self._read_pauses.discard(why)
        if not self._read_pauses and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---------------------------------------------------------------- from the node

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection."""
        self._leave_node()
        self._writer.close(reply_code, reply_text, self._offender())

    def blocked(self, reason: str) -> None:
        """The node is short of memory: tell the client, and read nothing more from it."""
        self._pause_reading("blocked")
        if self._capabilities.get("connection.blocked") is True:
            self._writer.send(0, commands.Connection.Blocked(reason))

    def unblocked(self) -> None:
        """There is room again."""
        if self._capabilities.get("connection.blocked") is True:
            self._writer.send(0, commands.Connection.Unblocked())
        self._resume_reading("blocked")

    def _offender(self) -> Ids:
        """Of the method that is being carried out."""
        event = self._handling
        if isinstance(event, events.MethodReceived):
            return ids_of(event.method)
        if isinstance(event, events.Published):
            return BASIC_PUBLISH
        if isinstance(event, events.Settled):
            return SETTLE_IDS[event.kind]
        return NO_METHOD

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Session, Any], None]]] = {
        events.LoginOffered: _login_offered,
        events.SecureAnswered: _secure_answered,
        events.Tuned: _tuned,
        events.VHostRequested: _vhost_requested,
        events.SecretUpdated: _secret_updated,
        events.ChannelOpened: _channel_opened,
        events.ChannelCloseAsked: _channel_close_asked,
        events.ChannelFailed: _channel_failed,
        events.ChannelClosed: _channel_closed,
        events.MethodReceived: _method_received,
        events.Published: _published,
        events.Settled: _settled,
        events.HeartbeatReceived: _heartbeat_received,
        events.ConnectionCloseAsked: _connection_close_asked,
        events.ConnectionClosed: _connection_closed,
        events.ConnectionFailed: _connection_failed,
    }
