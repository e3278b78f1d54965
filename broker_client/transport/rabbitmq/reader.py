"""The socket between us and aiormq: frequent frames are handled here, the rest is passed on.

aiormq awaits three reads, a lock and two queues for each frame and makes a task for each
delivery. This reader splits the bytes once, as they arrive: deliveries, returns and confirms go
straight to their channel, and so do the answers to basic.get: aiormq never sees them. Notices
(blocked, close, cancel) are seen and passed on; all other frames, the answers aiormq waits for,
are passed on untouched. It hooks on through aiormq's public `transport_factory` alone, so it
touches nothing private of it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, SupportsIndex

from broker_client.amqp import decode
from broker_client.amqp.delivery_reader import DeliveryReader, Header
from broker_client.amqp.properties import HeaderReader
from broker_client.amqp.received_properties import received_header
from broker_client.amqp.table_decoding import decode_short
from broker_client.errors import MalformedFrameError
from broker_client.message import Delivery, Properties, Returned
from broker_client.transport.rabbitmq.other_protocols import other_protocol
from broker_client.transport.rabbitmq.rewritten_frames import (
    CLOSE_OK_FRAME,
    TUNE,
    Limits,
    lowered_tune,
    readable_close,
)

log: logging.Logger = logging.getLogger("broker_client.transport")

_HEARTBEAT_FRAME = bytes((decode.HEARTBEAT, 0, 0, 0, 0, 0, 0, decode.FRAME_END))
_UPDATE_SECRET_OK = 10 << 16 | 71  # RabbitMQ: connection.update-secret-ok
_new = tuple.__new__  # a named tuple's own constructor is a Python call
_UNTUNED_FRAME_MAX = 131_072  # bytes; RabbitMQ's own, until connection.tune says otherwise
_LARGEST_HEADER = 2**24
"""Bytes of a content header. RabbitMQ takes headers of up to the publisher's frame_max, which may
be larger than ours, adds its own (x-death), and does not look at ours as it sends them."""
_INTERNAL = "internal error while handling a frame"
_READ_LIMIT = 2**20  # bytes aiormq may leave unread before the socket is paused


_UNREADABLE = (
    MalformedFrameError,
    IndexError,
    struct.error,
)
"""What splitting or decoding raises for malformed bytes."""


class OtherProtocolError(MalformedFrameError):
    """The server's first bytes are not of AMQP 0-9-1."""

    def __str__(self) -> str:
        return self.reason


class ChannelReceiver(Protocol):
    """What a channel receives of its frames."""

    def delivered(self, delivery: Delivery) -> None: ...
    def got(self, delivery: Delivery | None) -> None: ...
    def message_returned(self, message: Returned) -> None: ...
    def confirmed(self, seq: int, multiple: bool, acked: bool) -> None: ...
    def consumer_cancelled(self, consumer_tag: str) -> None: ...
    def closed_by_broker(self, reply_code: int, reply_text: str) -> None: ...


class LinkReceiver(Protocol):
    """What a link receives."""

    def blocked(self, reason: str) -> None: ...
    def unblocked(self) -> None: ...
    def secret_updated(self) -> None: ...
    def closing_by_broker(self, reply_code: int, reply_text: str) -> None: ...
    def socket_lost(self, error: BaseException | None) -> None: ...


_NO_LIMITS = Limits()


class _Content:
    """A delivery or return whose content frames are still arriving on one channel."""

    __slots__ = ("fault", "method", "missing", "parts", "properties")

    def __init__(self, method: decode.DeliverMethod | decode.GetOk | decode.ReturnMethod) -> None:
        self.method = method
        self.properties: Properties | None = None
        self.fault = ""
        self.missing = 0
        self.parts: list[bytes] = []


class FrameReader(asyncio.StreamReader):
    """The StreamReader that aiormq reads from, with the frequent frames taken out."""

    def __init__(self, link: LinkReceiver, limits: Limits = _NO_LIMITS) -> None:
        super().__init__(limit=_READ_LIMIT)
        self._link = link
        self._limits = limits
        self._instead = b""  # what aiormq is to read in place of the frame just taken
        self._greeted = False
        self._established = False
        self._finished = False
        self._at_end = False
        self._channels: dict[int, ChannelReceiver] = {}
        self._contents: dict[int, _Content] = {}
        self._header: Header = HeaderReader()
        self._deliveries = DeliveryReader()
        self._rest = b""
        self._seen_at = 0.0
        self._clock = asyncio.get_running_loop().time
        self._broken = False
        self._passed_on = 0  # bytes of the present buffer that aiormq has, or must not have
        self.heard_at: float = self._clock()
        """Loop time of the last bytes from the broker."""
        self.has_heard: bool = False
        """True once there were any."""
        self.frame_max: int = _UNTUNED_FRAME_MAX
        """Largest frame in bytes, as negotiated; 0 for no limit."""

    def keep_header_types(self) -> None:
        """Leave the headers of messages encoded until they are read."""
        self._header = received_header

    def established(self, frame_max: int) -> None:
        """The handshake is done, and this is the largest frame, in bytes, agreed on in it."""
        self.frame_max = frame_max
        self._established = True

    def finish(self) -> None:
        """Have aiormq's reader end as after a close in order: the loss is ours to report.

        It would log the traceback of the error that its reader ends with.
        """
        if self._established and not self._finished:
            self._finished = True
            if not self._at_end:
                super().feed_data(CLOSE_OK_FRAME)

    def abandon(self) -> None:
        """`finish`, also in the handshake: nobody waits for that any more."""
        self._established = True
        self.finish()

    def feed_eof(self) -> None:
        self._at_end = True
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        if self._finished:
            self.feed_eof()
        else:
            super().set_exception(exc)

    def attach(self, number: int, channel: ChannelReceiver) -> None:
        """Hand the frames of channel `number` to `channel` from now on."""
        self._channels[number] = channel

    def detach(self, number: int, channel: ChannelReceiver) -> None:
        """Stop; what still arrives for it is dropped. Another owner of the number is left alone."""
        if self._channels.get(number) is channel:
            del self._channels[number]

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        if self._finished:
            return
        self.heard_at = self._clock()
        buffer = self._rest + bytes(data) if self._rest else bytes(data)
        self.has_heard = True
        if self._broken:
            super().feed_data(buffer)
            return
        try:
            if not self._greeted:
                self._greet(buffer)
            used = self._split(buffer)
        except _UNREADABLE as error:
            # aiormq may read on forever where we cannot: the connection ends here.
            self._broken = True
            if self._established:
                log.error("unreadable bytes from the broker: %s", error)
                super().feed_data(buffer[self._passed_on :])
            else:
                known = isinstance(error, MalformedFrameError)
                self.set_exception(error if known else MalformedFrameError(str(error)))
            self._link.socket_lost(error)
            return
        self._rest = buffer[used:]

    def _greet(self, first: bytes) -> None:
        """Look at the first bytes of all."""
        reason = other_protocol(first)
        if reason is not None:
            raise OtherProtocolError(reason)
        self._greeted = len(first) > decode.FRAME_HEADER_SIZE

    def _split(self, buffer: bytes) -> int:
        """Go through the whole frames in `buffer`; returns how many bytes they take."""
        end = len(buffer)
        frame_max = self.frame_max or sys.maxsize
        at = forward_from = self._passed_on = 0
        taken = False
        while end - at > decode.FRAME_HEADER_SIZE:
            kind, number, size = decode.frame_header(buffer, at)
            if kind == decode.METHOD and not self._contents:
                deliveries, stop = self._deliveries(buffer, at, frame_max, self._header)
                if deliveries:
                    if forward_from < at:
                        super().feed_data(buffer[forward_from:at])
                    forward_from = self._passed_on = at = stop
                    taken = True
                    self._hand_over(deliveries)
                    continue
            stop = at + decode.FRAME_HEADER_SIZE + size + 1
            if stop - at > frame_max and (
                kind != decode.HEADER or stop - at > max(frame_max, _LARGEST_HEADER)
            ):
                raise MalformedFrameError(f"{size} bytes in a frame of {frame_max} at most")
            if stop > end:
                break
            if buffer[stop - 1] != decode.FRAME_END:
                raise MalformedFrameError("frame end missing")
            if self._take(kind, number, buffer, at + decode.FRAME_HEADER_SIZE, stop - 1):
                if forward_from < at:
                    super().feed_data(buffer[forward_from:at])
                forward_from = self._passed_on = stop
                if self._instead:
                    super().feed_data(self._instead)
                    self._instead, taken = b"", False
                else:
                    taken = True
            at = stop
        if forward_from < at:
            super().feed_data(buffer[forward_from:at])
        elif taken:
            self._tell_alive()
        return at

    def _tell_alive(self) -> None:
        """RabbitMQ: no heartbeat is sent while other frames are, so aiormq must see those."""
        if self.heard_at - self._seen_at > 1.0:
            self._seen_at = self.heard_at
            super().feed_data(_HEARTBEAT_FRAME)

    def _take(self, kind: int, number: int, buffer: bytes, at: int, stop: int) -> bool:
        """Handle one frame; True when aiormq must not see it."""
        if kind == decode.METHOD:
            return self._take_method(number, buffer, at, stop)
        content = self._contents.get(number)
        if content is None:
            return False
        if kind == decode.HEADER:
            content.missing, content.properties, content.fault = self._header(buffer[at:stop])
        elif kind == decode.BODY:
            content.parts.append(buffer[at:stop])
            content.missing -= stop - at
        else:
            return False
        if content.missing <= 0:
            self._complete(number, content)
        return True

    def _take_method(self, number: int, buffer: bytes, at: int, stop: int) -> bool:
        (method,) = decode.method_key(buffer, at)
        arguments = at + 4
        if method == decode.BASIC_DELIVER:
            self._begin(number, decode.deliver(buffer, arguments)[0])
            return True
        channel = self._channels.get(number)
        if method in (decode.BASIC_ACK, decode.BASIC_NACK):
            if channel is not None:
                seq, multiple = decode.confirm(buffer, arguments)
                self._guard(channel.confirmed, seq, multiple, method == decode.BASIC_ACK)
            return True
        if method == decode.BASIC_RETURN:
            self._begin(number, decode.returned(buffer, arguments))
            return True
        if method == decode.BASIC_GET_OK:
            self._begin(number, decode.get_ok(buffer, arguments))
            return True
        if method == decode.BASIC_GET_EMPTY:
            if channel is not None:
                self._guard(channel.got, None)
            return True
        if method == decode.BASIC_CANCEL:
            if channel is not None:
                self._guard(channel.consumer_cancelled, decode_short(buffer, arguments)[0])
        elif method == decode.CHANNEL_CLOSE:
            self._contents.pop(number, None)
            if channel is not None:
                self._guard(channel.closed_by_broker, *decode.close_reason(buffer, arguments))
            self._instead = readable_close(number, method, buffer, arguments)
            return True
        elif method == decode.CHANNEL_CLOSE_OK:
            self._contents.pop(number, None)
        elif method == decode.CONNECTION_BLOCKED:
            self._guard(self._link.blocked, decode_short(buffer, arguments)[0])
        elif method == decode.CONNECTION_UNBLOCKED:
            self._guard(self._link.unblocked)
        elif method == _UPDATE_SECRET_OK:
            self._guard(self._link.secret_updated)
            return True
        elif method == decode.CONNECTION_CLOSE:
            self._guard(self._link.closing_by_broker, *decode.close_reason(buffer, arguments))
            if self._established:
                self.finish()
            else:
                self._instead = readable_close(number, method, buffer, arguments)
            return True
        elif method == TUNE:
            self._instead = lowered_tune(buffer, arguments, self._limits)
            return True
        return False

    def _begin(
        self, number: int, method: decode.DeliverMethod | decode.GetOk | decode.ReturnMethod
    ) -> None:
        self._contents[number] = _Content(method)

    def _complete(self, number: int, content: _Content) -> None:
        method, properties, parts = content.method, content.properties, content.parts
        del self._contents[number]
        if properties is None:
            raise MalformedFrameError("a body without its content header")
        channel = self._channels.get(number)
        if channel is None:
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if isinstance(method, decode.DeliverMethod):
            fields = (*method, body, properties, None, content.fault)
            self._guard(channel.delivered, _new(Delivery, fields))
        elif isinstance(method, decode.GetOk):
            self._guard(channel.got, Delivery("", *method, body, properties, fault=content.fault))
        else:
            self._guard(channel.message_returned, Returned(*method, body, properties))

    def _hand_over(self, deliveries: Iterable[tuple[int, Delivery]]) -> None:
        channels = self._channels
        for number, delivery in deliveries:
            channel = channels.get(number)
            if channel is not None:
                try:
                    channel.delivered(delivery)
                except Exception:
                    log.exception(_INTERNAL)

    def _guard(self, callback: Callable[..., None], *args: Any) -> None:
        """An error of ours in a callback must not be taken for an error of the peer."""
        try:
            callback(*args)
        except Exception:
            log.exception(_INTERNAL)
