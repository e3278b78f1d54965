"""The server's side of an AMQP 0-9-1 connection, without I/O: bytes in, events out, bytes out.

`receive_data` takes what a peer sent and returns what it did; the methods that send queue bytes,
which `data_to_send` gives. What a peer sends raises nothing: a violation queues the close that
the specification and RabbitMQ give, and yields `ConnectionFailed` or `ChannelFailed`. Lengths are
checked against the limits before anything of that length is kept.

After the events that ask for a decision (`LoginOffered`, `SecureAnswered`, `VHostRequested`)
nothing more is read until `tune`, `secure`, `open_ok` or `close` has been called; then
``receive_data(b"")`` reads what came meanwhile.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pamqp.base import Frame
from pamqp.commands import Basic, Channel, Connection

from broker_client.amqp import decode, server_frames
from broker_client.amqp.events import (
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
    Published,
    SecretUpdated,
    SecureAnswered,
    Settled,
    Tuned,
    VHostRequested,
)
from broker_client.amqp.method_codec import decode_method, encode_method, strict_short
from broker_client.amqp.received_properties import ReceivedProperties, received_properties
from broker_client.amqp.states import (
    CHANNEL_RECEIVES,
    CONNECTION_RECEIVES,
    WAITING,
    ChannelState,
    ConnectionState,
)
from broker_client.amqp.tables import UNREADABLE
from broker_client.errors import MalformedFrameError, ReplyError
from broker_client.message import Delivery, Outgoing, Returned

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_SIZE = 4_096
"""Every peer must take frames of this size (AMQP 0-9-1 §1.4.2.6, tune-ok.frame-max)."""

_UNTUNED_FRAME_MAX = 8_192  # bytes; RabbitMQ: initial_frame_max
_FRAME_OVERHEAD = 8
_CONTENT = struct.Struct(">HHQ")  # class, weight, body size
_BASIC = 60
_SETTLEMENTS = {
    Basic.Ack.index: "ack",
    Basic.Nack.index: "nack",
    Basic.Reject.index: "reject",
}
_TAG_AND_BITS = struct.Struct(">QB")


class ConnectionLimits(NamedTuple):
    """What a server offers and takes."""

    frame_max: int = 131_072
    """Bytes of the largest frame; 0 for no limit."""
    channel_max: int = 2_047
    """Channels of one connection; 0 for no limit."""
    heartbeat: int = 60
    """Seconds; 0 for none."""
    max_message_size: int = 134_217_728
    """Bytes of the largest body."""


class _Channel:
    """One channel: its state, and the publish whose content is arriving."""

    __slots__ = ("missing", "parts", "properties", "publish", "size", "state")

    def __init__(self) -> None:
        self.state = ChannelState.OPEN
        self.publish: _Publish | None = None
        self.properties: ReceivedProperties | None = None
        self.size = 0
        self.missing = 0
        self.parts: list[bytes] = []


class _Publish(NamedTuple):
    exchange: str
    routing_key: str
    mandatory: bool


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
        self.state = ConnectionState.HEADER
        self.frame_max = _UNTUNED_FRAME_MAX
        self.channel_max = limits.channel_max
        self.heartbeat = limits.heartbeat
        self._limits = limits
        self._server_properties = server_properties
        self._mechanisms = mechanisms
        self._client_capabilities: Mapping[str, Any] = {}
        self._rest = b""
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._channels: dict[int, _Channel] = {}
        self._method_key = 0  # of the method that is being read, for the ids in a close

    # ------------------------------------------------------------------ in

    def receive_data(self, data: bytes) -> list[Event]:
        """What the peer did, in order.

        Args:
            data: bytes as they came; empty to go on after a decision.
        """
        events: list[Event] = []
        self._events = events
        if self.state is ConnectionState.CLOSED:
            return events
        buffer = self._rest + data if self._rest else data
        self._rest = b""
        at = 0
        if self.state is ConnectionState.HEADER:
            if not PROTOCOL_HEADER.startswith(buffer[:8]):
                self._out.append(PROTOCOL_HEADER)
                self._end()
                return events
            if len(buffer) < len(PROTOCOL_HEADER):
                self._rest = buffer
                return events
            at = len(PROTOCOL_HEADER)
            self._start()
        self._read(buffer, at)
        return events

    def _read(self, buffer: bytes, at: int) -> None:
        """Go through the whole frames of `buffer`, and keep what is left."""
        end = len(buffer)
        state = self.state
        while end - at >= decode.FRAME_HEADER_SIZE and state not in WAITING:
            kind, number, size = decode.frame_header(buffer, at)
            start = at + decode.FRAME_HEADER_SIZE
            stop = start + size
            try:
                if self.frame_max and size > self.frame_max - _FRAME_OVERHEAD:
                    raise _FramingError(
                        f"{_frame_text(kind, b'')}: "
                        f"{{frame_too_large,{size},{self.frame_max - _FRAME_OVERHEAD}}}"
                    )
                if stop >= end:
                    break
                if buffer[stop] != decode.FRAME_END:
                    raise _FramingError(
                        f"{_frame_text(kind, buffer[start:stop])}: "
                        f"{{invalid_frame_end_marker,{buffer[stop]}}}"
                    )
                self._method_key = 0
                self._frame(kind, number, buffer[start:stop])
            except _FramingError as error:
                self._fail(error)
                self._end()
            except ReplyError as error:
                if error.scope == "channel":
                    self._fail_channel(number, error)
                else:
                    self._fail(error)
            at = stop + 1
            state = self.state
            if state is ConnectionState.CLOSED:
                return
        self._rest = buffer[at:] if at else buffer

    def _frame(self, kind: int, number: int, payload: bytes) -> None:
        if kind == decode.METHOD:
            if number:
                self._channel_method(number, payload)
            else:
                self._connection_method(payload)
        elif kind in (decode.HEADER, decode.BODY):
            self._content(kind, number, payload)
        elif kind == decode.HEARTBEAT:
            if number:
                raise _unexpected_frame(kind, payload)
            self._events.append(HeartbeatReceived())
        else:
            text = f"{_frame_text(kind, payload)}: unknown_frame"
            raise ReplyError(501, f"FRAME_ERROR - {text}", "connection")

    # ------------------------------------------------------------------ the connection's methods

    def _connection_method(self, payload: bytes) -> None:
        state = self.state
        method = decode_method(payload)
        key = self._method_key = method.index
        if state is ConnectionState.CLOSE_ASKED:
            return
        after = CONNECTION_RECEIVES.get(state, {}).get(key)
        if after is None:
            if state is ConnectionState.CLOSING:
                return
            raise ReplyError(
                504,
                f"CHANNEL_ERROR - unexpected method in connection state {state.name.lower()}",
                "connection",
            )
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
            case Connection.SecureOk():
                self._events.append(SecureAnswered(_as_bytes(method.response)))
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
        _check_limit("frame_max", method.frame_max, self._limits.frame_max, FRAME_MIN_SIZE)
        _check_limit("channel_max", method.channel_max, self._limits.channel_max, 1)
        self.frame_max = method.frame_max
        self.channel_max = method.channel_max
        self.heartbeat = method.heartbeat

    # ------------------------------------------------------------------ a channel's methods

    def _channel_method(self, number: int, payload: bytes) -> None:
        if self.state is not ConnectionState.OPEN:
            if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSE_ASKED):
                return
            raise _unexpected_frame(decode.METHOD, payload)
        channel = self._channels.get(number)
        state = ChannelState.CLOSED if channel is None else channel.state
        if len(payload) < 4:
            raise ReplyError(501, "FRAME_ERROR - a method frame needs 4 bytes", "connection")
        (key,) = decode.method_key(payload, 0)
        self._method_key = key
        if channel is not None and state is ChannelState.OPEN:
            if channel.publish is not None:
                raise _unexpected_content(channel, "method")
            if key == Basic.Publish.index:
                channel.publish = _publish(payload)
                return
            if (settlement := _SETTLEMENTS.get(key)) is not None:
                self._events.append(_settled(number, settlement, payload))
                return
        after = CHANNEL_RECEIVES.get(state, {}).get(key)
        if after is None:
            if state in (ChannelState.CLOSING, ChannelState.CLOSE_ASKED):
                return
            raise _refused(state, key, payload)
        if channel is None:
            if self.channel_max and number > self.channel_max:
                raise ReplyError(
                    530,
                    f"NOT_ALLOWED - channel number {number} is above the negotiated channel_max "
                    f"({self.channel_max})",
                    "connection",
                )
            decode_method(payload)
            self._channels[number] = _Channel()
            self._events.append(ChannelOpened(number))
            return
        method = decode_method(payload)
        channel.state = after
        if isinstance(method, Channel.Close):
            if after is ChannelState.CLOSING:
                self._out.append(encode_method(number, Channel.CloseOk()))
            else:
                event = ChannelCloseAsked(number, method.reply_code or 0, method.reply_text or "")
                self._events.append(event)
        elif isinstance(method, Channel.CloseOk):
            del self._channels[number]
            self._events.append(ChannelClosed(number))
        else:
            self._events.append(MethodReceived(number, method))

    # ------------------------------------------------------------------ content

    def _content(self, kind: int, number: int, payload: bytes) -> None:
        if self.state is not ConnectionState.OPEN:
            if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSE_ASKED):
                return
            raise _unexpected_frame(kind, payload)
        channel = self._channels.get(number)
        if channel is None:
            if number == 0:
                raise _unexpected_frame(kind, payload)
            raise ReplyError(504, "CHANNEL_ERROR - expected 'channel.open'", "connection")
        if channel.state is not ChannelState.OPEN:
            return
        if channel.publish is None:
            raise ReplyError(
                505,
                "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
                "connection",
            )
        self._method_key = Basic.Publish.index
        if channel.properties is None:
            if kind != decode.HEADER:
                raise _unexpected_content(channel, "body")
            self._content_header(channel, payload)
        else:
            if kind != decode.BODY:
                raise _unexpected_content(channel, "header")
            if len(payload) > channel.missing:
                raise ReplyError(
                    501,
                    f"FRAME_ERROR - the body has {channel.size - channel.missing + len(payload)} "
                    f"bytes, its header says {channel.size}",
                    "connection",
                )
            channel.parts.append(payload)
            channel.missing -= len(payload)
        if not channel.missing:
            self._complete(number, channel)

    def _content_header(self, channel: _Channel, payload: bytes) -> None:
        if len(payload) < 14:
            raise ReplyError(501, "FRAME_ERROR - a content header needs 14 bytes", "connection")
        class_id, _, size = _CONTENT.unpack_from(payload)
        if class_id != _BASIC:
            raise ReplyError(
                505,
                f"UNEXPECTED_FRAME - expected content header for class {_BASIC}, got one for "
                f"class {class_id} instead",
                "connection",
            )
        if size > self._limits.max_message_size:
            raise ReplyError(
                406,
                f"PRECONDITION_FAILED - message size {size} is larger than configured max size "
                f"{self._limits.max_message_size}",
            )
        try:
            channel.properties = received_properties(payload[12:])
        except MalformedFrameError as error:
            raise ReplyError(501, f"FRAME_ERROR - {error.reason}", "connection") from error
        channel.size = channel.missing = size

    def _complete(self, number: int, channel: _Channel) -> None:
        publish, properties, parts = channel.publish, channel.properties, channel.parts
        assert publish is not None, "content comes after basic.publish"
        assert properties is not None, "the content header comes before the body"
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        channel.publish = channel.properties = None
        channel.parts = []
        message = Outgoing(
            publish.exchange, publish.routing_key, body, properties, publish.mandatory
        )
        last = self._events[-1] if self._events else None
        if type(last) is Published and last.channel == number:
            last.messages.append(message)
        else:
            self._events.append(Published(number, [message]))

    # ------------------------------------------------------------------ violations

    def _fail(self, error: ReplyError) -> None:
        """Answer a violation that costs the connection."""
        state, text = self.state, error.reply_text
        self._events.append(ConnectionFailed(error.reply_code, text))
        tells = (
            state is ConnectionState.OPEN
            # RabbitMQ: while they agree, only a 530 is told; other violations end the socket.
            or (state is ConnectionState.TUNING and error.reply_code == 530)
        )
        if tells:
            self.close(error.reply_code, text, self._method_key >> 16, self._method_key & 0xFFFF)
        elif state is not ConnectionState.CLOSED:
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

    def secure(self, challenge: bytes) -> None:
        """Send connection.secure: the mechanism needs one more answer."""
        if self._decides(ConnectionState.LOGIN):
            method = Connection.Secure()
            method.challenge = challenge  # type: ignore[assignment] # a long string is any bytes
            self._put(0, method)
            self.state = ConnectionState.SECURING

    def tune(self) -> None:
        """Send connection.tune: the login is good."""
        if self._decides(ConnectionState.LOGIN):
            limits = self._limits
            self._put(0, Connection.Tune(limits.channel_max, limits.frame_max, limits.heartbeat))
            self.state = ConnectionState.TUNING

    def refuse_login(self, mechanism: str) -> None:
        """The login is not good: 403 to a client that can read it; else the socket just ends.

        Look at `state` afterwards: ``CLOSED`` means that nothing is to be waited for.
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

        Args:
            reply_code: why.
            reply_text: why, in words; cut to 255 bytes.
            class_id: class of the method that is at fault, 0 for none.
            method_id: that method.
        """
        if self.state in _ENDING:
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
            if found is not None and found.state is ChannelState.CLOSE_ASKED:
                del self._channels[channel]
                self._put(channel, method)
        elif found is not None and found.state is not ChannelState.CLOSING:
            self._put(channel, method)

    def send_deliver(self, channel: int, delivery: Delivery) -> None:
        """Send basic.deliver; dropped if its channel is not open."""
        if self._may_send(channel):
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
        if found is None or found.state is not ChannelState.OPEN:
            return
        found.state = ChannelState.CLOSING
        found.publish = found.properties = None
        found.parts = []
        self._put(channel, Channel.Close(reply_code, _short(reply_text), class_id, method_id))

    def _may_send(self, channel: int) -> bool:
        found = self._channels.get(channel)
        return found is not None and found.state in _SENDS_CONTENT


_ENDING = (ConnectionState.CLOSING, ConnectionState.CLOSED, ConnectionState.CLOSE_ASKED)
_SENDS_CONTENT = (ChannelState.OPEN, ChannelState.CLOSE_ASKED)


class _FramingError(ReplyError):
    """Where the next frame starts is no longer known."""

    def __init__(self, text: str) -> None:
        super().__init__(501, f"FRAME_ERROR - {text}", "connection")


def _publish(payload: bytes) -> _Publish:
    """The arguments of a basic.publish."""
    try:
        exchange, at = strict_short(payload, 6)
        routing_key, at = strict_short(payload, at)
        bits = payload[at]
        if at + 1 != len(payload):
            raise MalformedFrameError("its length is not that of its arguments")
    except UNREADABLE as error:
        raise ReplyError(
            501, f"FRAME_ERROR - cannot decode basic.publish: {error}", "connection"
        ) from error
    if bits & 2:
        # RabbitMQ: the flag immediate is not supported.
        raise ReplyError(540, "NOT_IMPLEMENTED - immediate=true", "connection")
    return _Publish(exchange, routing_key, bits & 1 == 1)


def _settled(number: int, kind: str, payload: bytes) -> Settled:
    if len(payload) != 13:
        raise ReplyError(501, f"FRAME_ERROR - cannot decode basic.{kind}", "connection")
    tag, bits = _TAG_AND_BITS.unpack_from(payload, 4)
    if kind == "ack":
        return Settled(number, kind, tag, bits & 1 == 1, False)
    if kind == "nack":
        return Settled(number, kind, tag, bits & 1 == 1, bits & 2 == 2)
    return Settled(number, kind, tag, False, bits & 1 == 1)


def _refused(state: ChannelState, key: int, payload: bytes) -> ReplyError:
    """What a method costs that may not come in `state`."""
    if state is ChannelState.CLOSED:
        return ReplyError(504, "CHANNEL_ERROR - expected 'channel.open'", "connection")
    if key == Channel.Open.index:
        return ReplyError(504, "CHANNEL_ERROR - second 'channel.open' seen", "connection")
    decode_method(payload)  # raises of a method that there is not
    return ReplyError(503, "COMMAND_INVALID - unimplemented method", "connection")


def _unexpected_content(channel: _Channel, got: str) -> ReplyError:
    if channel.properties is None:
        text = "expected content header for class 60, got non content header frame instead"
    else:
        text = "expected content body, got non content body frame instead"
    del got
    return ReplyError(505, f"UNEXPECTED_FRAME - {text}", "connection")


def _unexpected_frame(kind: int, payload: bytes) -> ReplyError:
    return ReplyError(505, f"UNEXPECTED_FRAME - {_frame_text(kind, payload)}", "connection")


def _frame_text(kind: int, payload: bytes) -> str:
    """A frame in RabbitMQ's words."""
    shown = ",".join(map(str, payload[:16]))
    which = "all" if len(payload) <= 16 else "first 16"
    return f"type {kind}, {which} octets = <<{shown}>>"


def _check_limit(name: str, wanted: int, offered: int, minimum: int) -> None:
    """Refuse what a client wants in tune-ok beyond what it may (RabbitMQ's rules and text)."""
    if wanted and wanted < minimum:
        which, kind, allowed = "lower", "minimum", minimum
    elif offered and (not wanted or wanted > offered):
        which, kind, allowed = "higher", "maximum", offered
    else:
        return
    detail = "" if wanted else " (no limit)"
    raise ReplyError(
        530,
        f"NOT_ALLOWED - negotiated {name} = {wanted}{detail} is {which} than the {kind} allowed "
        f"value ({allowed})",
        "connection",
    )


def _as_bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _short(text: str) -> str:
    """`text`, cut to what a short string holds."""
    return text.encode()[:255].decode(errors="ignore")
