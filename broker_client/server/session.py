"""One client's connection: a socket, the protocol's state machine, and a connection of the node."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from pamqp import commands

from broker_client.amqp import events
from broker_client.amqp.connection_limits import ConnectionLimits
from broker_client.amqp.server_connection import ServerConnection
from broker_client.amqp.states import ConnectionState
from broker_client.config.listen import UNIX
from broker_client.config.server import ServerConfig
from broker_client.errors import BrokerClientError, ReplyError
from broker_client.node.node import Node
from broker_client.runtime.forks import leave_connection_to_parent
from broker_client.server.admission import Admission
from broker_client.server.channel import (
    BASIC_PUBLISH,
    NO_METHOD,
    SETTLE_IDS,
    Ids,
    SessionChannel,
    ids_of,
)
from broker_client.server.connection_info import ConnectionInfo
from broker_client.server.event_lines import log, log_event
from broker_client.server.login import AMQPLAIN, EXTERNAL, PLAIN, check_login
from broker_client.server.permissions import SessionPermissions
from broker_client.server.tls import common_name
from broker_client.server.writer import Writer

_CONNECTION_OPEN: Ids = (10, 40)
_UNREAD_FACTOR = 16
"""Times `write_buffer`: nothing is read from a client that leaves so much unread."""
_LITTLE = 8_192  # bytes, whose effects may be carried out in the turn that reads them
_local_peers = itertools.count(1)
"""For the names of clients by Unix domain sockets, which have no address."""
_DECISIONS = (events.LoginOffered, events.VHostRequested)
"""After these, the protocol reads on when asked to."""

# Why nothing is read from a client at present.
_BLOCKED = "blocked"
_DISK_IS_BEHIND = "the disk is behind"
_UNREAD = "it does not read"


class Session(asyncio.Protocol):
    """Serves one client, from its first byte to its last.

    What the client sends becomes commands of the node, in the order of its bytes. What the node
    sends goes through the writer. The session ends with its socket.
    """

    def __init__(
        self,
        node: Node,
        config: ServerConfig,
        admission: Admission,
        sessions: set[Session],
        server_properties: Mapping[str, Any],
        *,
        owner: str = "",
    ) -> None:
        """
        Args:
            node: is served.
            config: the limits.
            admission: of the server: who is let in.
            sessions: of the server: this one is among them while its socket is open.
            server_properties: what the server says of itself.
            owner: a user who is known and may do everything, whatever the login says; "" where
                the login decides.
        """
        self._node, self._config = node, config
        self._admission, self._sessions = admission, sessions
        self._server_properties, self._owner = server_properties, owner
        self._loop = asyncio.get_running_loop()
        self._protocol: ServerConnection
        self._transport: asyncio.Transport
        self._writer: Writer
        self._permissions: SessionPermissions
        self._channels: dict[int, SessionChannel] = {}
        self._connection: int | None = None
        """How the node calls it, once a vhost is open."""
        self._pending: deque[events.Event] = deque()
        """What was received and not yet carried out."""
        self._handling: events.Event | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """Of the handshake, then of the close."""
        self._unheard = 0
        """Half heartbeat intervals in which nothing was received."""
        self._read_pauses: set[str] = set()
        self._is_congested = False
        """The client does not read what was sent to it: nothing more is delivered."""
        self._client_properties: Mapping[str, Any] = {}
        self._certificate_user = ""
        self._why_closed = ""
        self._opened_at = 0.0
        self._ended = asyncio.Event()
        self._host = ""
        self.peer: str
        self.local: str
        self.name: str
        self.user: str
        self.vhost: str
        self.peer = self.local = self.name = self.user = self.vhost = ""

    def __repr__(self) -> str:
        return f"<Session {self.peer} {self.name!r}>"

    def info(self) -> ConnectionInfo | None:
        """A snapshot; None while no vhost is open."""
        if self._connection is None:
            return None
        return ConnectionInfo(
            connection=self._connection,
            name=f"{self.peer} -> {self.local}",
            connection_name=self.name,
            user=self.user,
            vhost=self.vhost,
            peer=self.peer,
            channels=sum(not channel.is_gone for channel in self._channels.values()),
            opened_at=self._opened_at,
            client_properties=self._client_properties,
            is_blocked=_BLOCKED in self._read_pauses,
            is_tls=self._transport.get_extra_info("ssl_object") is not None,
        )

    # ---------------------------------------------------------------- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not asyncio's classes
        self._transport = transport
        leave_connection_to_parent(transport)
        transport.set_write_buffer_limits(high=self._config.write_buffer)
        self._look_at(transport)
        # Not to one whose certificate is no login: clients may prefer it to their password.
        by_certificate = self._certificate_user in self._node.access.users
        mechanisms = (PLAIN, AMQPLAIN, *((EXTERNAL,) if by_certificate else ()))
        config = self._config
        self._protocol = ServerConnection(
            ConnectionLimits(
                config.frame_max,
                config.channel_max,
                config.heartbeat,
                self._node.max_message_size or 2**63,
            ),
            self._server_properties,
            mechanisms,
        )
        self._writer = Writer(
            self._protocol,
            transport,
            config.write_buffer * _UNREAD_FACTOR,
            self._node.call_after_run,
        )
        self._sessions.add(self)
        if self._admission.is_shut_out(self._host):
            log_event(logging.DEBUG, "connection refused", peer=self.peer, reason="failed logins")
            transport.abort()
            return
        self._end_after(config.handshake_timeout, "handshake timeout")

    def _look_at(self, transport: asyncio.Transport) -> None:
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.peer = _shown(peer) or f"{UNIX}:{next(_local_peers)}"  # names are to be unique
        self.local = _shown(local) or str(local)
        self._host = str(peer[0]) if isinstance(peer, tuple) else ""
        raw = transport.get_extra_info("socket")
        if raw is not None and isinstance(peer, tuple):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._certificate_user = common_name(transport.get_extra_info("peercert"))

    def data_received(self, data: bytes) -> None:
        self._unheard = 0
        try:
            self._pending.extend(self._protocol.receive_data(data))
            self._proceed()
        except Exception:  # noqa: BLE001 - an error of one client: others continue, and this one gets it
            log.exception("%r: failed", self)
            self.closed(541, "INTERNAL_ERROR")
        if len(data) <= _LITTLE:
            self._node.carry_out()
        self._writer.flush()
        self._look_at_unread()

    def connection_lost(self, error: Exception | None) -> None:
        self._sessions.discard(self)
        self._ended.set()
        self._pending.clear()
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.cancel()
        self._leave_node()
        if self._opened_at:
            reason = self._why_closed or (str(error) if error else "the client closed the socket")
            self._log(logging.INFO, "connection closed", reason=reason)

    def _proceed(self) -> None:
        """Carry out what was received, until there is a reason to wait."""
        pending = self._pending
        while pending and not self._read_pauses:
            event = self._handling = pending.popleft()
            self._HANDLERS[type(event)](self, event)
            if not pending and type(event) in _DECISIONS:
                pending.extend(self._protocol.receive_data(b""))
        self._handling = None

    # ---------------------------------------------------------------- the handshake

    def _login_offered(self, event: events.LoginOffered) -> None:
        properties = self._client_properties = event.client_properties
        self.name = str(properties.get("connection_name", ""))
        user, refusal = self._owner, ""
        if not user:
            user, refusal = check_login(
                self._node.access,
                event.mechanism,
                event.response,
                host=self._host,
                certificate_user=self._certificate_user,
            )
        if refusal:
            self._log(
                logging.WARNING,
                "login refused",
                user=user,
                mechanism=event.mechanism,
                reason=refusal,
            )
            self._admission.login_failed(self._host)
            self._protocol.refuse_login(event.mechanism)
            self._await_close("login refused")
        else:
            self.user = user
            self._writer.tells_cancel = self._has_capability("consumer_cancel_notify")
            self._protocol.tune()

    def _tuned(self, _event: events.Tuned) -> None:
        self._beat_later()

    def _vhost_requested(self, event: events.VHostRequested) -> None:
        vhost, user = event.vhost, self.user
        try:
            may_use = self._owner or self._node.access.may_use_vhost(user, vhost)
            if self._node.administration.has_vhost(vhost) and not may_use:
                refused = f"NOT_ALLOWED - access to vhost '{vhost}' refused for user '{user}'"
                raise ReplyError(530, refused, "connection")
            self._admission.admit(user, vhost)
            try:
                self._connection = self._node.open_connection(vhost, self, create=False, user=user)
            except BaseException:
                self._admission.leave(user)
                raise
        except ReplyError as refusal:
            self._close(refusal.reply_code, refusal.reply_text, _CONNECTION_OPEN)
            return
        except BrokerClientError as error:
            self._close(541, f"INTERNAL_ERROR - {error}", _CONNECTION_OPEN)
            return
        self.vhost = vhost
        self._permissions = SessionPermissions(self._node, user, vhost, is_owner=bool(self._owner))
        self._opened_at = time.time()
        self._end_timer()
        self._protocol.open_ok()
        self._log(logging.INFO, "connection opened", user=user, vhost=vhost)

    def _secret_updated(self, _event: events.SecretUpdated) -> None:
        self._protocol.send(0, commands.Connection.UpdateSecretOk())

    # ---------------------------------------------------------------- channels

    def _channel_opened(self, event: events.ChannelOpened) -> None:
        assert self._connection is not None, "the protocol opens no channel before the vhost"
        channel = SessionChannel(
            self._node,
            self._config,
            self._writer,
            self._permissions,
            self._connection,
            event.channel,
        )
        self._channels[event.channel] = channel
        if self._is_congested:
            channel.set_flow(active=False)
        self._writer.send(event.channel, commands.Channel.OpenOk())

    def _channel_close_asked(self, event: events.ChannelCloseAsked) -> None:
        self._channels[event.channel].close()

    def _channel_failed(self, event: events.ChannelFailed) -> None:
        self._log(logging.WARNING, "channel failed", channel=event.channel, reason=event.reply_text)
        self._channels[event.channel].fail()

    def _channel_closed(self, event: events.ChannelClosed) -> None:
        del self._channels[event.channel]

    def _method_received(self, event: events.MethodReceived) -> None:
        self._channels[event.channel].handle(event.method)
        if isinstance(event.method, commands.Basic.Get):
            self._writer.flush()  # a body may be large, and more of them asked for
            self._look_at_unread()

    def _published(self, event: events.PublishesReceived) -> None:
        if self._node.is_short and self._connection is not None:
            self._node.block_publisher(self._connection)
            if self._read_pauses:  # RabbitMQ: what arrives after the alarm waits for its end
                self._pending.appendleft(event)
                return
        self._channels[event.channel].publish(event.messages)
        if self._node.is_behind and _DISK_IS_BEHIND not in self._read_pauses:
            self._pause_reading(_DISK_IS_BEHIND)
            self._node.call_after_effects(lambda: self._resume_reading(_DISK_IS_BEHIND))

    def _acked(self, event: events.AcksReceived) -> None:
        self._channels[event.channel].ack_each(event.delivery_tags)

    def _settled(self, event: events.SettlementReceived) -> None:
        self._channels[event.channel].settle(event)

    def _heartbeat_received(self, event: events.HeartbeatReceived) -> None:
        """That it was heard is noted of any byte."""

    # ---------------------------------------------------------------- the end

    def _connection_close_asked(self, event: events.ConnectionCloseAsked) -> None:
        self._why_closed = f"the client closed it: {event.reply_code} {event.reply_text}"
        self._node.call_after_effects(self._close_ok)

    def _close_ok(self) -> None:
        """Answer the client's close; RabbitMQ: it is for the client to end the socket then.

        If we did, some would take that for a failure before they have read the answer.
        """
        self._leave_node()
        self._protocol.close_ok()
        self._writer.flush()
        self._transport.resume_reading()
        self._end_after(self._config.close_timeout, self._why_closed)

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        self._end_socket()

    def _connection_failed(self, event: events.ConnectionFailed) -> None:
        self._leave_node()
        reason = f"{event.reply_code} {event.reply_text}"
        self._log(logging.WARNING, "protocol violated", reason=reason)
        self._await_close(reason)

    def _close(self, reply_code: int, reply_text: str, ids: Ids = NO_METHOD) -> None:
        """Send connection.close, and wait for the answer."""
        self._writer.close(reply_code, reply_text, ids)
        reason = f"{reply_code} {reply_text}"
        if not self._opened_at:
            self._log(logging.WARNING, "connection refused", user=self.user, reason=reason)
        self._await_close(reason)

    def _await_close(self, reason: str) -> None:
        self._why_closed = self._why_closed or reason
        if self._protocol.state is ConnectionState.CLOSED:
            self._end_socket()
        else:
            self._end_after(self._config.close_timeout, reason)
            for why in tuple(self._read_pauses):  # its close-ok is to be read
                self._resume_reading(why)

    def _end_socket(self) -> None:
        """Write what is left, and end the socket once the client has ended it, too.

        A socket that is closed with bytes unread resets the connection, which may cost the client
        what it has not read yet, such as connection.close. So what it still sends is read and
        dropped.
        """
        self._writer.flush()
        transport = self._transport
        if transport.is_closing():
            return
        if self._writer.has_written and transport.can_write_eof():
            transport.write_eof()
            transport.resume_reading()
        else:
            transport.close()
        self._end_after(self._config.close_timeout, self._why_closed)

    def _end_after(self, seconds: float, reason: str) -> None:
        self._end_timer()
        self._deadline = self._loop.call_later(seconds, self.abort, reason)

    def _end_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _leave_node(self) -> None:
        """Requeue what is in flight, at once; nothing more comes from the node."""
        for channel in self._channels.values():
            channel.drop()
        if self._connection is not None:
            self._node.close_connection(self._connection)
            self._connection = None
            self._admission.leave(self.user)

    def abort(self, reason: str) -> None:
        """End the socket, at once."""
        self._why_closed = self._why_closed or reason
        if not self._opened_at and not self._transport.is_closing():
            self._log(logging.WARNING, "connection refused", reason=reason)
        self._transport.abort()

    async def wait_ended(self) -> None:
        """Wait until the socket is closed."""
        await self._ended.wait()

    def cancel_consumers(self) -> None:
        """Stop the consumers, and tell the client so: the server will stop."""
        for channel in self._channels.values():
            channel.cancel_consumers()

    # ---------------------------------------------------------------- heartbeats

    def _beat_later(self) -> None:
        if self._protocol.heartbeat:
            self._heartbeat = self._loop.call_later(self._protocol.heartbeat / 2, self._beat)

    def _beat(self) -> None:
        if not self._read_pauses or _UNREAD in self._read_pauses:
            self._unheard += 1
        if self._unheard > 4:  # RabbitMQ: two intervals without a byte
            self._log(logging.WARNING, "heartbeats missed", timeout=self._protocol.heartbeat)
            self.abort("missed heartbeats")
            return
        if not self._writer.has_written and not self._transport.get_write_buffer_size():
            self._protocol.send_heartbeat()
            self._writer.flush()
        self._writer.has_written = False
        self._beat_later()

    # ---------------------------------------------------------------- flow

    def pause_writing(self) -> None:
        """The client reads more slowly than it is sent to: deliver nothing more."""
        self._is_congested = True
        for channel in self._channels.values():
            channel.set_flow(active=False)

    def resume_writing(self) -> None:
        """It has read."""
        self._is_congested = False
        for channel in self._channels.values():
            channel.set_flow(active=True)
        self._resume_reading(_UNREAD)

    def _look_at_unread(self) -> None:
        """Carry nothing more out for a client that leaves its answers unread."""
        if self._is_congested and self._writer.is_overfull:
            self._pause_reading(_UNREAD)

    def _pause_reading(self, why: str) -> None:
        if not self._read_pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._read_pauses.add(why)

    def _resume_reading(self, why: str) -> None:
        if why not in self._read_pauses:
            return
        self._read_pauses.discard(why)
        if self._read_pauses or self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._handling is None:
            self.data_received(b"")

    # ---------------------------------------------------------------- from the node

    def closed(self, reply_code: int, reply_text: str) -> None:
        """The node has closed the connection."""
        ids = self._offender()
        self._leave_node()
        self._pending.clear()
        self._close(reply_code, reply_text, ids)

    def blocked(self, reason: str) -> None:
        """The node is short of something: tell the client, and read nothing more from it."""
        self._pause_reading(_BLOCKED)
        self._log(logging.WARNING, "connection blocked", reason=reason)
        if self._has_capability("connection.blocked"):
            self._writer.send(0, commands.Connection.Blocked(reason))

    def unblocked(self) -> None:
        """There is room again."""
        self._log(logging.INFO, "connection unblocked")
        if self._has_capability("connection.blocked"):
            self._writer.send(0, commands.Connection.Unblocked())
        self._resume_reading(_BLOCKED)

    def _has_capability(self, name: str) -> bool:
        capabilities = self._client_properties.get("capabilities")
        return isinstance(capabilities, Mapping) and capabilities.get(name) is True

    def _offender(self) -> Ids:
        """Of the method that is being carried out."""
        event = self._handling
        if isinstance(event, events.MethodReceived):
            return ids_of(event.method)
        if isinstance(event, events.PublishesReceived):
            return BASIC_PUBLISH
        if isinstance(event, events.AcksReceived):
            return SETTLE_IDS["ack"]
        if isinstance(event, events.SettlementReceived):
            return SETTLE_IDS[event.kind]
        return NO_METHOD

    def _log(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, peer=self.peer, name=self.name, **fields)

    _HANDLERS: ClassVar[dict[type[Any], Callable[[Session, Any], None]]] = {
        events.LoginOffered: _login_offered,
        events.Tuned: _tuned,
        events.VHostRequested: _vhost_requested,
        events.SecretUpdated: _secret_updated,
        events.ChannelOpened: _channel_opened,
        events.ChannelCloseAsked: _channel_close_asked,
        events.ChannelFailed: _channel_failed,
        events.ChannelClosed: _channel_closed,
        events.MethodReceived: _method_received,
        events.PublishesReceived: _published,
        events.AcksReceived: _acked,
        events.SettlementReceived: _settled,
        events.HeartbeatReceived: _heartbeat_received,
        events.ConnectionCloseAsked: _connection_close_asked,
        events.ConnectionClosed: _connection_closed,
        events.ConnectionFailed: _connection_failed,
    }


def _shown(address: object) -> str:
    """A TCP address as ``host:port``; "" for the path of a Unix socket."""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
