"""The socket between us and aiormq: what is frequent is taken here, the rest goes on to it.

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
from collections.abc import Callable, Iterable
from typing import Any, Protocol, SupportsIndex

from aiormq.connection import TransportFactory
from yarl import URL

from broker_client.amqp import decode
from broker_client.errors import MalformedFrameError
from broker_client.message import Delivery, Properties, Returned

log = logging.getLogger("broker_client.transport")

_HEARTBEAT_FRAME = bytes((decode.HEARTBEAT, 0, 0, 0, 0, 0, 0, decode.FRAME_END))
_UNTUNED_FRAME_MAX = 131_072  # bytes; RabbitMQ's own, until connection.tune says otherwise
_READ_LIMIT = 2**20  # bytes aiormq may leave unread before the socket is paused


_UNREADABLE = (
    MalformedFrameError,
    IndexError,
    struct.error,
    RecursionError,  # tables within tables
)
"""What splitting or decoding raises when the bytes are not what they claim to be."""


class ChannelReceiver(Protocol):
    """What a channel gets to see of its own frames."""

    def delivered(self, delivery: Delivery) -> None: ...
    def got(self, delivery: Delivery | None) -> None: ...
    def message_returned(self, message: Returned) -> None: ...
    def confirmed(self, seq: int, multiple: bool, acked: bool) -> None: ...
    def consumer_cancelled(self, consumer_tag: str) -> None: ...
    def closed_by_broker(self, reply_code: int, reply_text: str) -> None: ...


class LinkReceiver(Protocol):
    """What a link gets to see."""

    def blocked(self, reason: str) -> None: ...
    def unblocked(self) -> None: ...
    def closing_by_broker(self, reply_code: int, reply_text: str) -> None: ...
    def socket_lost(self, error: BaseException | None) -> None: ...


class _Content:
    """A delivery or return whose content frames are still arriving on one channel."""

    __slots__ = ("body", "method", "missing", "parts", "properties")

    def __init__(self) -> None:
        self.method: decode.Deliver | decode.GetOk | decode.Return | None = None
        self.properties: Properties | None = None
        self.missing = 0
        self.parts: list[bytes] = []


class FrameReader(asyncio.StreamReader):
    """The StreamReader that aiormq reads from, with the frequent frames taken out."""

    def __init__(self, link: LinkReceiver) -> None:
        super().__init__(limit=_READ_LIMIT)
        self._link = link
        self._channels: dict[int, ChannelReceiver] = {}
        self._contents: dict[int, _Content] = {}
        self._rest = b""
        self._seen_at = 0.0
        self._clock = asyncio.get_running_loop().time
        self._broken = False
        self._passed_on = 0  # bytes of the present buffer that aiormq has, or must not have
        self.heard_at = self._clock()
        """Loop time of the last bytes from the broker."""
        self.frame_max = _UNTUNED_FRAME_MAX
        """Largest frame in bytes, as negotiated; 0 for no limit."""

    def attach(self, number: int, channel: ChannelReceiver) -> None:
        """Hand the frames of channel `number` to `channel` from now on."""
        self._channels[number] = channel

    def detach(self, number: int, channel: ChannelReceiver) -> None:
        """Stop; what still arrives for it is dropped. Another owner of the number is left alone."""
        if self._channels.get(number) is channel:
            del self._channels[number]

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.heard_at = self._clock()
        buffer = self._rest + bytes(data) if self._rest else bytes(data)
        if self._broken:
            super().feed_data(buffer)
            return
        try:
            used = self._split(buffer)
        except _UNREADABLE as error:
            # aiormq may read on for ever where we cannot: the connection ends here. Before it is
            # established, aiormq reads the same bytes and says what is wrong with them.
            log.error("unreadable bytes from the broker: %s", error)
            self._broken = True
            super().feed_data(buffer[self._passed_on :])
            self._link.socket_lost(error)
            return
        self._rest = buffer[used:]

    def _split(self, buffer: bytes) -> int:
        """Go through the whole frames in `buffer`; returns how many bytes they take."""
        end = len(buffer)
        at = forward_from = self._passed_on = 0
        taken = False
        while end - at > decode.FRAME_HEADER_SIZE:
            kind, number, size = decode.frame_header(buffer, at)
            if kind == ord("A"):  # "AMQP....": the broker speaks another version
                self._broken = True
                raise MalformedFrameError("the broker offers another version of AMQP")
            stop = at + decode.FRAME_HEADER_SIZE + size + 1
            if self.frame_max and stop - at > self.frame_max:
                raise MalformedFrameError(f"{size} bytes in a frame of {self.frame_max} at most")
            if stop > end:
                break
            if buffer[stop - 1] != decode.FRAME_END:
                raise MalformedFrameError("frame end missing")
            if self._take(kind, number, buffer, at + decode.FRAME_HEADER_SIZE, stop - 1):
                if forward_from < at:
                    super().feed_data(buffer[forward_from:at])
                forward_from = self._passed_on = stop
                taken = True
            at = stop
        if forward_from < at:
            super().feed_data(buffer[forward_from:at])
        elif taken:
            self._tell_alive()
        return at

    def _tell_alive(self) -> None:
        """RabbitMQ: no heartbeat is sent while other frames are, so aiormq must hear of those."""
        if self.heard_at - self._seen_at > 1.0:
            self._seen_at = self.heard_at
            super().feed_data(_HEARTBEAT_FRAME)

    def _take(self, kind: int, number: int, buffer: bytes, at: int, stop: int) -> bool:
        """Handle one frame; True when aiormq must not see it."""
        if kind == decode.METHOD:
            return self._take_method(number, buffer, at)
        content = self._contents.get(number)
        if content is None or content.method is None:
            return False
        if kind == decode.HEADER:
            content.missing, content.properties = decode.content_header(buffer, at)
        elif kind == decode.BODY:
            content.parts.append(buffer[at:stop])
            content.missing -= stop - at
        else:
            return False
        if content.missing <= 0:
            self._complete(number, content)
        return True

    def _take_method(self, number: int, buffer: bytes, at: int) -> bool:
        (method,) = decode.method_key(buffer, at)
        arguments = at + 4
        channel = self._channels.get(number)
        if method == decode.BASIC_DELIVER:
            self._begin(number, decode.deliver(buffer, arguments))
            return True
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
                self._guard(channel.consumer_cancelled, decode.short_string(buffer, arguments)[0])
        elif method == decode.CHANNEL_CLOSE:
            self._contents.pop(number, None)
            if channel is not None:
                self._guard(channel.closed_by_broker, *decode.close_reason(buffer, arguments))
        elif method == decode.CHANNEL_CLOSE_OK:
            self._contents.pop(number, None)
        elif method == decode.CONNECTION_BLOCKED:
            self._guard(self._link.blocked, decode.short_string(buffer, arguments)[0])
        elif method == decode.CONNECTION_UNBLOCKED:
            self._guard(self._link.unblocked)
        elif method == decode.CONNECTION_CLOSE:
            self._guard(self._link.closing_by_broker, *decode.close_reason(buffer, arguments))
        return False

    def _begin(self, number: int, method: decode.Deliver | decode.GetOk | decode.Return) -> None:
        content = self._contents.get(number)
        if content is None:
            content = self._contents[number] = _Content()
        content.method, content.properties, content.parts = method, None, []

    def _complete(self, number: int, content: _Content) -> None:
        method, properties, parts = content.method, content.properties, content.parts
        content.method = None
        if properties is None:
            raise MalformedFrameError("a body without its content header")
        channel = self._channels.get(number)
        if channel is None:
            return
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if isinstance(method, decode.Deliver):
            self._guard(channel.delivered, Delivery(*method, body, properties))
        elif isinstance(method, decode.GetOk):
            self._guard(channel.got, Delivery("", *method, body, properties))
        elif method is not None:
            self._guard(channel.message_returned, Returned(*method, body, properties))

    def _guard(self, callback: Callable[..., None], *args: Any) -> None:
        """A fault of ours in one callback must not be taken for a fault of the peer's."""
        try:
            callback(*args)
        except Exception:
            log.exception("internal error while handling a frame")


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """Tells the link at once when the socket is gone."""

    def __init__(self, reader: FrameReader, link: LinkReceiver) -> None:
        super().__init__(reader, loop=asyncio.get_running_loop())
        self._link = link

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._link.socket_lost(exc)


class Streams(TransportFactory):
    """Opens the socket for aiormq, and keeps both of its ends within our reach."""

    def __init__(self, link: LinkReceiver) -> None:
        self._link = link
        self.reader: FrameReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = kwargs.pop("ssl_context_provider")
        context = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = FrameReader(self._link)
        protocol = _StreamProtocol(reader, self._link)
        transport, _ = await loop.create_connection(
            lambda: protocol, url.host or "", url.port or 0, ssl=context, **kwargs
        )
        self.reader = reader
        self.writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return reader, self.writer

    def abort(self) -> None:
        """Drop the socket, if there is one."""
        if self.writer is not None:
            self.writer.transport.abort()
