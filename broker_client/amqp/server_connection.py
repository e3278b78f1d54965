"""The server's side of an AMQP 0-9-1 connection, without I/O: bytes in, events out, bytes out.

`receive_data` takes what a peer sent and returns what it did; the methods that send queue bytes,
which `data_to_send` gives. What a peer sends raises nothing: a violation queues the close that
the specification and RabbitMQ give, and yields `ConnectionFailed` or `ChannelFailed`. Lengths are
checked against the limits before anything of that length is kept.

After the events that ask for a decision (`LoginOffered`, `VHostRequested`) nothing more is read
until `tune`, `open_ok` or `close` has been called; then ``receive_data(b"")`` reads what came
meanwhile. No mechanism here asks for more than one answer (connection.secure).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection

from broker_client.amqp import decode, server_frames, violations
from broker_client.amqp.ack_reader import ACK_SIZE, read_acks
from broker_client.amqp.connection_limits import FRAME_MIN_SIZE, ConnectionLimits, check_limit
from broker_client.amqp.events import (
    AcksReceived,
    ChannelCloseAsked,
    ChannelClosed,
    ChannelFailed,
    ChannelOpened,
    ConnectionCloseAsked,
    ConnectionClosed,
    ConnectionFailed,
    Event,
    HeartbeatReceived,
    LoginOffered,
    MethodReceived,
    PublishesReceived,
    SecretUpdated,
    SettlementReceived,
    Tuned,
    VHostRequested,
)
from broker_client.amqp.method_codec import decode_method, encode_method
from broker_client.amqp.publish_reader import PUBLISH, PublishAssembler, read_publishes
from broker_client.amqp.states import (
    CHANNEL_RECEIVES,
    CONNECTION_RECEIVES,
    RABBITMQ_WORDS,
    WAITING,
    ChannelProtocolState,
    ConnectionState,
)
from broker_client.errors import ReplyError
from broker_client.message import Delivery, Outgoing, Returned

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

_UNTUNED_FRAME_MAX = 8_192  # bytes; RabbitMQ: initial_frame_max
_FRAME_OVERHEAD = 8
_MOST_WAITING = 2**20  # bytes kept unread while the server decides
_LEAST_UNLIMITED = 131_072  # bytes; room for the headers of small messages
_KEY_SIZE = 4
_SETTLEMENTS = {
    Basic.Ack.index: "ack",
    Basic.Nack.index: "nack",
    Basic.Reject.index: "reject",
}
_ACK = Basic.Ack.index
_TAG_AND_BITS = struct.Struct(">QB")


class _Channel:
    """One channel: its state, and the publish whose content is arriving."""

    __slots__ = ("publish", "state")

    def __init__(self) -> None:
        self.state = ChannelProtocolState.OPEN
        self.publish = PublishAssembler()


class ServerConnection:
    """The server's side of one connection.

    Attributes:
        state: where the connection stands.
        frame_max: bytes of the largest frame, as agreed on; 0 for no limit.
        channel_max: number of channels, as agreed on; 0 for no limit.
        heartbeat: seconds, as agreed on; 0 for none.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        server_properties: Mapping[str, Any],
        mechanisms: Sequence[str],
    ) -> None:
        """
        Args:
            limits: what is offered in connection.tune, and enforced.
            server_properties: of connection.start.
            mechanisms: names of the SASL mechanisms, best first.
        """
        self.state: ConnectionState = ConnectionState.HEADER
        self.frame_max: int = _UNTUNED_FRAME_MAX
        self.channel_max: int = limits.channel_max
        self.heartbeat: int = limits.heartbeat
        self._limits = limits
        self._server_properties = server_properties
        self._mechanisms = mechanisms
        self._client_capabilities: Mapping[str, Any] = {}
        self._rest = b""
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._channels: dict[int, _Channel] = {}
        self._payload_max = _UNTUNED_FRAME_MAX - _FRAME_OVERHEAD
        self._largest = 0  # payload of a frame that is taken without another look
        self._method_key = 0  # of the method that is being read, for the ids in a close

    # ------------------------------------------------------------------ in

    def receive_data(self, data: bytes) -> list[Event]:
        """Process received bytes; returns what the peer did, in order.

        Args:
            data: bytes as they came; empty to go on after a decision.
        """
        if self.state not in _DEAF:
            buffer = self._rest + data if self._rest else data
            self._rest = b""
            if self.state is ConnectionState.HEADER:
                self._protocol_header(buffer)
            else:
                self._read(buffer, 0)
        events, self._events = self._events, []
        return events

    def _protocol_header(self, buffer: bytes) -> None:
        size = len(PROTOCOL_HEADER)
        if not PROTOCOL_HEADER.startswith(buffer[:size]):
            self._out.append(PROTOCOL_HEADER)  # AMQP 0-9-1 §4.2.2: ours, then the end
            self._end()
        elif len(buffer) < size:
            self._rest = buffer
        else:
            self._start()
            self._read(buffer, size)

    def _read(self, buffer: bytes, at: int) -> None:
        """Process the complete frames of `buffer`, and keep the rest."""
        end = len(buffer)
        state = self.state
        while end - at >= decode.FRAME_HEADER_SIZE and state not in WAITING:
            kind, number, size = decode.frame_header(buffer, at)
            start = at + decode.FRAME_HEADER_SIZE
            stop = start + size
            if kind == decode.METHOD and stop < end and state is ConnectionState.OPEN:
                taken = self._frequent(buffer, at, number, size)
                if taken > at:
                    at = taken
                    continue
            self._method_key = 0
            try:
                if size > self._payload_max:
                    raise violations.frame_too_large(kind, size, self._payload_max)
                if stop >= end:
                    break
                payload = buffer[start:stop]
                if buffer[stop] != decode.FRAME_END:
                    raise violations.wrong_frame_end(kind, payload, buffer[stop])
                self._frame(kind, number, payload)
            except ReplyError as error:
                if error.scope == "channel":
                    self._fail_channel(number, error)
                else:
                    self._fail(error)
            at = stop + 1
            state = self.state
            if state in _DEAF:
                return
        if state in WAITING and end - at > _MOST_WAITING:
            self._fail(violations.frame_error(f"more than {_MOST_WAITING} bytes in the handshake"))
            return
        self._rest = buffer[at:] if at else buffer

    def _frequent(self, buffer: bytes, at: int, number: int, size: int) -> int:
        """Take complete, valid publishes or acks.

        Returns:
            Where the first frame begins that was not taken.
        """
        channel = self._channels.get(number)
        if (
            channel is None
            or channel.state is not ChannelProtocolState.OPEN
            or not channel.publish.is_idle
        ):
            return at
        if size == ACK_SIZE:
            tags: list[int] = []
            taken = read_acks(buffer, at, number, tags)
            if taken > at:
                self._acked(number, tags)
                return taken
        return self._publishes(buffer, at, number)

    def _publishes(self, buffer: bytes, at: int, number: int) -> int:
        last = self._events[-1] if self._events else None
        if type(last) is PublishesReceived and last.channel == number:
            return read_publishes(buffer, at, number, self._largest, last.messages)
        messages: list[Outgoing] = []
        taken = read_publishes(buffer, at, number, self._largest, messages)
        if messages:
            self._events.append(PublishesReceived(number, messages))
        return taken

    def _acked(self, number: int, tags: list[int]) -> None:
        last = self._events[-1] if self._events else None
        if type(last) is AcksReceived and last.channel == number:
            last.delivery_tags.extend(tags)
        else:
            self._events.append(AcksReceived(number, tags))

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is ConnectionState.CLOSING and (kind != decode.METHOD or number):
            return
        if kind == decode.METHOD:
            if len(payload) < _KEY_SIZE:
                raise violations.unknown_frame(kind, payload)
            if number:
                self._channel_method(number, payload)
            else:
                self._connection_method(payload)
        elif kind in (decode.HEADER, decode.BODY):
            self._content(kind, number, payload)
        elif kind == decode.HEARTBEAT and not payload:
            if number:
                raise violations.unexpected_frame(kind, payload)
            self._events.append(HeartbeatReceived())
        else:
            raise violations.unknown_frame(kind, payload)

    # ------------------------------------------------------------------ the connection's methods

    def _connection_method(self, payload: bytes) -> None:
        state = self.state
        (key,) = decode.method_key(payload, 0)
        self._method_key = key
        after = CONNECTION_RECEIVES[state].get(key)
        if after is None and state is ConnectionState.CLOSING:
            return
        method = decode_method(payload)
        if after is None:
            raise violations.unexpected_method(RABBITMQ_WORDS[state])
        if isinstance(method, Connection.TuneOk):
            self._agree(method)
        self.state = after
        match method:
            case Connection.StartOk():
                properties = method.client_properties or {}
                capabilities = properties.get("capabilities")
                if isinstance(capabilities, Mapping):
                    self._client_capabilities = capabilities
                self._events.append(
                    LoginOffered(
                        method.mechanism or "",
                        _as_bytes(method.response),
                        method.locale or "",
                        properties,
                    )
                )
            case Connection.TuneOk():
                self._events.append(Tuned())
            case Connection.Open():
                self._events.append(VHostRequested(method.virtual_host))
            case Connection.UpdateSecret():
                self._events.append(
                    SecretUpdated(_as_bytes(method.new_secret), method.reason or "")
                )
            case Connection.Close() if after is ConnectionState.CLOSE_ASKED:
                self._channels.clear()
                self._events.append(
                    ConnectionCloseAsked(method.reply_code or 0, method.reply_text or "")
                )
            case Connection.Close():
                self._out.append(encode_method(0, Connection.CloseOk()))
            case Connection.CloseOk():
                self._end()

    def _agree(self, method: Connection.TuneOk) -> None:
        """Take the limits of tune-ok, or refuse them as RabbitMQ does."""
        check_limit("frame_max", method.frame_max, self._limits.frame_max, FRAME_MIN_SIZE)
        check_limit("channel_max", method.channel_max, self._limits.channel_max, 1)
        self.frame_max = method.frame_max
        self.channel_max = method.channel_max
        self.heartbeat = method.heartbeat
        most = self._limits.max_message_size
        # Where frames have no limit, no frame of use is larger than the largest body.
        self._payload_max = (
            self.frame_max - _FRAME_OVERHEAD if self.frame_max else max(most, _LEAST_UNLIMITED)
        )
        self._largest = min(self._payload_max, most)

    # ------------------------------------------------------------------ a channel's methods

    def _channel_method(self, number: int, payload: bytes) -> None:
        if self.state is not ConnectionState.OPEN:
            self._outside_of_open(decode.METHOD, payload)
            return
        (key,) = decode.method_key(payload, 0)
        self._method_key = key
        channel = self._channels.get(number)
        if channel is None:
            self._open_channel(number, key, payload)
            return
        if not channel.publish.is_idle:
            self._method_key = PUBLISH
            raise channel.publish.interrupted()
        state = channel.state
        after = CHANNEL_RECEIVES[state].get(key)
        if after is None:
            if key == Channel.Open.index:
                raise violations.channel_already_open()
            if state is not ChannelProtocolState.OPEN:
                return  # dropped, whatever it is
            decode_method(payload)  # raises if there is no such method
            raise violations.unimplemented_method()
        if key == PUBLISH:
            channel.publish.method(payload)
            return
        method = decode_method(payload)
        channel.state = after
        if (settlement := _SETTLEMENTS.get(key)) is not None:
            tag, bits = _TAG_AND_BITS.unpack_from(payload, _KEY_SIZE)
            if key == _ACK and not bits & 1:
                self._acked(number, [tag])
            else:
                self._events.append(_settled(number, settlement, tag, bits))
        elif isinstance(method, Channel.Close):
            if state is ChannelProtocolState.CLOSING:
                self._put(number, Channel.CloseOk())
            else:
                code, text = method.reply_code or 0, method.reply_text or ""
                self._events.append(ChannelCloseAsked(number, code, text))
        elif isinstance(method, Channel.CloseOk):
            del self._channels[number]
            self._events.append(ChannelClosed(number))
        else:
            self._events.append(MethodReceived(number, method))

    def _open_channel(self, number: int, key: int, payload: bytes) -> None:
        method = decode_method(payload)
        if CHANNEL_RECEIVES[ChannelProtocolState.CLOSED].get(key) is None:
            raise violations.channel_not_open()
        assert isinstance(method, Channel.Open), "nothing else opens a channel"
        # RabbitMQ: channel_max bounds how many are open, not their numbers.
        if self.channel_max and len(self._channels) >= self.channel_max:
            raise violations.too_many_channels(len(self._channels), self.channel_max)
        self._channels[number] = _Channel()
        self._events.append(ChannelOpened(number))

    def _content(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is not ConnectionState.OPEN:
            self._outside_of_open(kind, payload)
            return
        if number == 0:
            raise violations.unexpected_frame(kind, payload)
        channel = self._channels.get(number)
        if channel is None:
            raise violations.expected_method()
        if channel.state is not ChannelProtocolState.OPEN:
            return
        if not channel.publish.is_idle:
            self._method_key = PUBLISH
        if kind == decode.HEADER:
            message = channel.publish.header(payload, self._limits.max_message_size)
        else:
            message = channel.publish.body(payload)
        if message is None:
            return
        last = self._events[-1] if self._events else None
        if type(last) is PublishesReceived and last.channel == number:
            last.messages.append(message)
        else:
            self._events.append(PublishesReceived(number, [message]))

    def _outside_of_open(self, kind: int, payload: bytes) -> None:
        """A frame of a channel that comes while the connection is not open."""
        if self.state not in _ENDING:
            raise violations.unexpected_frame(kind, payload)

    # ------------------------------------------------------------------ violations

    def _fail(self, error: ReplyError) -> None:
        """Answer a violation that closes the connection."""
        state, text = self.state, error.reply_text
        if state is ConnectionState.CLOSING:
            if isinstance(error, violations.FramingError):
                self._end()
            return
        self._events.append(ConnectionFailed(error.reply_code, text))
        # RabbitMQ: before connection.open a violation ends the socket without a word. The limits
        # that a client wants are answered, so that its author sees the error.
        if state in (ConnectionState.OPEN, ConnectionState.TUNED) or (
            state is ConnectionState.TUNING and error.reply_code == 530
        ):
            self.close(error.reply_code, text, self._method_key >> 16, self._method_key & 0xFFFF)
            if not isinstance(error, violations.FramingError):
                return
        self._end()

    def _fail_channel(self, number: int, error: ReplyError) -> None:
        self.close_channel(
            number,
            error.reply_code,
            error.reply_text,
            self._method_key >> 16,
            self._method_key & 0xFFFF,
        )
        self._events.append(ChannelFailed(number, error.reply_code, error.reply_text))

    def _end(self) -> None:
        self.state = ConnectionState.CLOSED
        self._channels.clear()
        self._rest = b""
        self._events.append(ConnectionClosed())

    # ------------------------------------------------------------------ out: the connection

    def data_to_send(self) -> bytes:
        """Everything queued since the last call."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _start(self) -> None:
        self._put(
            0,
            Connection.Start(
                0,
                9,
                dict(self._server_properties),
                " ".join(self._mechanisms),
                "en_US",
            ),
        )
        self.state = ConnectionState.STARTING

    def tune(self) -> None:
        """Accept the login: send connection.tune."""
        if self._decides(ConnectionState.LOGIN):
            limits = self._limits
            self._put(0, Connection.Tune(limits.channel_max, limits.frame_max, limits.heartbeat))
            self.state = ConnectionState.TUNING

    def refuse_login(self, mechanism: str) -> None:
        """Refuse the login: 403 to a client that can read it, otherwise the socket is closed.

        In that case ``receive_data(b"")`` gives `ConnectionClosed`.
        """
        if not self._decides(ConnectionState.LOGIN):
            return
        if self._client_capabilities.get("authentication_failure_close") is True:
            self.close(
                403,
                f"ACCESS_REFUSED - Login was refused using authentication mechanism {mechanism}. "
                "For details see the broker logfile.",
            )
        else:
            self._end()

    def open_ok(self) -> None:
        """Send connection.open-ok."""
        if self._decides(ConnectionState.OPENING):
            self._put(0, Connection.OpenOk())
            self.state = ConnectionState.OPEN

    def close(
        self, reply_code: int, reply_text: str, class_id: int = 0, method_id: int = 0
    ) -> None:
        """Send connection.close; afterwards everything but its answer is dropped.

        A peer that has not sent its protocol header could not read it, so the socket is closed.

        Args:
            reply_code: why.
            reply_text: why, in words; cut to 255 bytes.
            class_id: class of the method that is at fault, 0 for none.
            method_id: that method.
        """
        if self.state in _ENDING:
            return
        if self.state is ConnectionState.HEADER:
            self._end()
            return
        self._put(0, Connection.Close(reply_code, _short(reply_text), class_id, method_id))
        self._channels.clear()
        self.state = ConnectionState.CLOSING

    def close_ok(self) -> None:
        """Send connection.close-ok; nothing is sent or read afterwards."""
        if self._decides(ConnectionState.CLOSE_ASKED):
            self._put(0, Connection.CloseOk())
            self.state = ConnectionState.CLOSED
            self._rest = b""

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        if self.state is not ConnectionState.CLOSED:
            self._out.append(server_frames.HEARTBEAT_FRAME)

    def _decides(self, state: ConnectionState) -> bool:
        """True in `state`; False when the connection ended while the server decided.

        The server's own order of calls is an invariant.
        """
        assert self.state is state or self.state in _ENDING, f"{self.state}, not {state}"
        return self.state is state

    def _put(self, channel: int, method: Frame) -> None:
        self._out.append(encode_method(channel, method))

    # ------------------------------------------------------------------ out: channels

    def send(self, channel: int, method: Frame) -> None:
        """Send a method without content; dropped if its channel is closed.

        channel.close-ok frees the number of its channel.
        """
        if channel == 0:
            if self.state in (ConnectionState.OPEN, ConnectionState.CLOSE_ASKED):
                self._put(0, method)
            return
        found = self._channels.get(channel)
        if isinstance(method, Channel.CloseOk):
            if found is None:
                return
            self._put(channel, method)
            if found.state is ChannelProtocolState.CLOSE_ASKED:
                del self._channels[channel]
        elif found is not None and found.state is not ChannelProtocolState.CLOSING:
            self._put(channel, method)

    def send_deliver(self, channel: int, delivery: Delivery) -> None:
        """Send basic.deliver; dropped if its channel is not open."""
        found = self._channels.get(channel)
        if found is not None and found.state in _SENDS_CONTENT:
            server_frames.deliver(self._out, channel, delivery, self.frame_max)

    def send_get_ok(self, channel: int, delivery: Delivery, message_count: int) -> None:
        """Send basic.get-ok; dropped if its channel is not open.

        Args:
            channel: its number.
            delivery: what is delivered; its consumer tag is not sent.
            message_count: messages left in the queue.
        """
        if self._may_send(channel):
            server_frames.get_ok(self._out, channel, delivery, message_count, self.frame_max)

    def send_return(self, channel: int, returned: Returned) -> None:
        """Send basic.return; dropped if its channel is not open."""
        if self._may_send(channel):
            server_frames.returned(self._out, channel, returned, self.frame_max)

    def send_confirm(self, channel: int, delivery_tag: int, *, multiple: bool, acked: bool) -> None:
        """Send basic.ack, or basic.nack, of a publish; dropped if its channel is not open."""
        if self._may_send(channel):
            server_frames.confirm(self._out, channel, delivery_tag, multiple=multiple, acked=acked)

    def close_channel(
        self,
        channel: int,
        reply_code: int,
        reply_text: str,
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        """Send channel.close; its frames are dropped until close-ok.

        Args:
            channel: its number.
            reply_code: why.
            reply_text: why, in words; cut to 255 bytes.
            class_id: class of the method that is at fault, 0 for none.
            method_id: that method.
        """
        found = self._channels.get(channel)
        if found is None or found.state is ChannelProtocolState.CLOSING:
            return
        found.state = ChannelProtocolState.CLOSING
        found.publish.reset()
        self._put(channel, Channel.Close(reply_code, _short(reply_text), class_id, method_id))

    def _may_send(self, channel: int) -> bool:
        found = self._channels.get(channel)
        return found is not None and found.state in _SENDS_CONTENT


_DEAF = (ConnectionState.CLOSE_ASKED, ConnectionState.CLOSED)
"""Stop reading."""
_ENDING = (ConnectionState.CLOSING, ConnectionState.CLOSED, ConnectionState.CLOSE_ASKED)
_SENDS_CONTENT = (ChannelProtocolState.OPEN, ChannelProtocolState.CLOSE_ASKED)


def _settled(number: int, kind: str, tag: int, bits: int) -> SettlementReceived:
    if kind == "reject":
        return SettlementReceived(number, kind, tag, False, bits & 1 == 1)
    return SettlementReceived(number, kind, tag, bits & 1 == 1, kind == "nack" and bits & 2 == 2)


def _as_bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _short(text: str) -> str:
    """`text`, cut to what a short string holds."""
    return text.encode()[:255].decode(errors="ignore")
