"""One connection to a RabbitMQ that is open: its channels, its notices, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aio_pika
import aiormq.abc
import aiormq.channel
import aiormq.exceptions
import pamqp.frame
from pamqp import commands

from broker_client.config.access import Credentials
from broker_client.errors import (
    ChannelClosedError,
    ChannelsExhaustedError,
    ConnectFailedError,
    ConnectionLostError,
    OperationTimeoutError,
    TransportError,
)
from broker_client.runtime.tasks import TaskGroup
from broker_client.runtime.tracebacks import without_cycles
from broker_client.transport.base import Capabilities
from broker_client.transport.limits import NO_SIZE_LIMIT, SizeLimit, usual_size_limit
from broker_client.transport.rabbitmq.channel import NetworkChannel
from broker_client.transport.rabbitmq.errors import (
    FOREIGN_ERRORS,
    Cancellation,
    close_quietly,
    is_bare,
    translate,
)
from broker_client.transport.rabbitmq.rewritten_frames import CLOSE_OK_FRAME, Limits
from broker_client.transport.rabbitmq.streams import Streams
from broker_client.transport.versions import (
    DELAYED_RETRY_SINCE,
    SHARED_PREFETCH_UNTIL,
    rabbitmq_version,
)

log: logging.Logger = logging.getLogger("broker_client.transport")

_CLOSE_TIMEOUT = 3.0  # seconds for an orderly connection.close; then the socket is dropped
_HEARTBEATS_MISSED = 2
_REASON_GRACE = 0.25  # seconds between a lost socket and aiormq's word on why
_LAST_TURNS = 50  # of the loop, in which aiormq's last tasks end, which nobody can wait for
_IN_ORDER = (200, 320)  # RabbitMQ: closed in order; 320 when it stops, or an operator says so
_MOST_CHANNELS = 65_535  # AMQP 0-9-1 §4.2.3: a channel number has 16 bits


class NetworkLink:
    """`transport.base.Link` on a RabbitMQ."""

    def __init__(
        self, url: str, operation_timeout: float, heartbeat: float, limits: Limits
    ) -> None:
        self.on_close: Callable[[TransportError], None] | None = None
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.used_at: float = float("-inf")
        self.url = url
        self.operation_timeout = operation_timeout
        self.frame_max: int = 0
        self.size_limit: SizeLimit = NO_SIZE_LIMIT
        self.tasks: TaskGroup = TaskGroup(f"link {url}")
        self.streams: Streams = Streams(self, limits)
        self.socket_error: BaseException | None = None
        """What the socket ended with during the handshake."""
        self._channel_max = _MOST_CHANNELS
        self._capabilities = Capabilities()
        self._underlay: aiormq.abc.AbstractConnection | None = None
        self._channels: dict[int, NetworkChannel] = {}
        self._open = False
        self._ending = False  # by us
        self._lost: TransportError | None = None
        self.refusal: tuple[int, str] | None = None
        """Reply code and text of a connection.close from the broker."""
        self._told = False
        self._heartbeat = heartbeat
        self._watch: asyncio.TimerHandle | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._secret_updated: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<NetworkLink {self.url}: {state}, {len(self._channels)} channels>"

    @property
    def is_open(self) -> bool:
        return self._open

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def established(
        self, connection: aio_pika.Connection, size_limit: SizeLimit | None = None
    ) -> None:
        """The handshake is done; None takes the size limit that the broker has by default."""
        transport = connection.transport
        if transport is None or self._lost is not None:
            raise ConnectFailedError(self.url, "closed right after the handshake")
        underlay = transport.connection
        if not isinstance(underlay.server_properties.get("capabilities"), Mapping):
            reason = (
                "the broker names no capabilities; basic.nack and publisher confirms are needed"
            )
            raise ConnectFailedError(self.url, reason)
        self._underlay = underlay
        # aio-pika's own callback would start a task, which nobody owns, at the end of the
        # connection: at the end of a forgotten Broker's loop that is a task too many. We see to
        # the end ourselves, so the callback may as well count as done.
        transport.close_callback.finished.set()
        self.frame_max = underlay.connection_tune.frame_max or 0
        self._channel_max = underlay.connection_tune.channel_max or _MOST_CHANNELS
        self.size_limit = size_limit or usual_size_limit(underlay.server_properties)
        self._capabilities = _capabilities_of(underlay.server_properties)
        if self.streams.reader is not None:
            self.streams.reader.established(self.frame_max)
        underlay.closing.add_done_callback(self._underlay_closed)
        # At the end of a loop nobody may be left to take the error that aiormq's writer ends with.
        writer = getattr(underlay, "_writer_task", None)
        if writer is not None:
            writer.add_done_callback(_take_error)
        self._open = True
        if self._heartbeat:
            self._watch_silence()

    def keep_header_types(self) -> None:
        if self.streams.reader is not None:
            self.streams.reader.keep_header_types()

    async def open_channel(self, *, confirm: bool = False) -> NetworkChannel:
        underlay, reader = self._underlay, self.streams.reader
        if not self._open or underlay is None or reader is None:
            raise self._gone()
        cancellation = Cancellation()
        try:
            async with asyncio.timeout(self.operation_timeout):
                raw = await underlay.channel(
                    self._free_number(underlay),
                    publisher_confirms=confirm,
                    on_return_raises=False,
                )
        except asyncio.CancelledError:
            cancellation.reraise()
            raise self._gone() from None
        except TimeoutError as error:
            what = f"opening a channel at {self.url} (connect_timeout)"
            raise OperationTimeoutError(what, self.operation_timeout) from error
        except FOREIGN_ERRORS as error:
            cancellation.reraise()
            raise (self._lost or translate(self.url, error)) from without_cycles(error)
        except Exception as error:
            cancellation.reraise()
            if is_bare(error):
                raise self._gone() from None
            raise
        assert isinstance(raw, aiormq.channel.Channel), "aiormq makes channels of one kind"
        channel = NetworkChannel(self, raw, confirm=confirm)
        if not self._open:
            raise self._gone()
        self._channels[channel.number] = channel
        reader.attach(channel.number, channel)
        raw.closing.add_done_callback(lambda _: self._channel_ended(channel))
        if cancellation.came:
            channel.abort()
            raise asyncio.CancelledError
        return channel

    def _free_number(self, underlay: aiormq.abc.AbstractConnection) -> int:
        """The lowest free one. aiormq counts on above the highest, whatever was agreed on.

        RabbitMQ ends the whole connection for a channel above its channel_max.
        """
        taken = underlay.channels
        for number in range(1, self._channel_max + 1):
            if number not in taken:
                return number
        consuming = sum(bool(channel.consumes) for channel in self._channels.values())
        raise ChannelsExhaustedError(self.url, self._channel_max, consuming)

    # ------------------------------------------------------------------ credentials

    def refresh_secret(
        self, read: Callable[[], Awaitable[Credentials]], interval: float, login: Credentials
    ) -> None:
        """Keep the broker's copy of the password current for as long as the link is open.

        Args:
            read: returns the credentials as they are now.
            interval: seconds between two calls of it.
            login: those that the link logged in with.
        """
        work = self._keep_secret_current(read, interval, login)
        self._refresh = self.tasks.spawn(work, "refresh credentials")

    async def _keep_secret_current(
        self, read: Callable[[], Awaitable[Credentials]], interval: float, sent: Credentials
    ) -> None:
        while self._open:
            await asyncio.sleep(interval)
            deadline = asyncio.timeout(self.operation_timeout)
            try:
                async with deadline:
                    found = await read()
                    if found.password != sent.password:
                        await self._update_secret(found)
            except Exception as error:  # noqa: BLE001 - whatever the application's function raises
                # The link is of use until the old secret expires; the next turn tries again.
                reason: object = error
                if deadline.expired():
                    reason = f"no answer within {self.operation_timeout:g} s (connect_timeout)"
                log.warning("%s: credentials were not refreshed: %s", self.url, reason)
                continue
            if found.password != sent.password:
                sent = found
                log.info("%s: the broker took the new secret", self.url)

    async def _update_secret(self, login: Credentials) -> None:
        """Send connection.update-secret and wait for its answer.

        A broker that refuses it closes the connection. Written here because aiormq logs what it
        writes, at level DEBUG.
        """
        method = commands.Connection.UpdateSecret(login.password.get_secret_value(), "refreshed")
        self._secret_updated = asyncio.get_running_loop().create_future()
        self.write(pamqp.frame.marshal(method, 0))
        await self._secret_updated

    # ------------------------------------------------------------------ for the channels

    def write(self, data: bytes) -> None:
        """Put `data`, whole frames, behind what was written before."""
        if data and self._open and self.streams.writer is not None:
            self.streams.writer.write(data)

    @property
    def takes_more(self) -> bool:
        """True while `drain` would return at once."""
        return self._open and self.streams.takes_more

    async def drain(self) -> None:
        """Wait while the socket's buffer is full."""
        if self.streams.writer is not None:
            await self.streams.writer.drain()

    def lost_reason(self) -> TransportError | None:
        return self._lost

    def forget(self, channel: NetworkChannel) -> None:
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
        if self.streams.reader is not None:
            self.streams.reader.detach(channel.number, channel)

    def _channel_ended(self, channel: NetworkChannel) -> None:
        """aiormq closed the channel for a reason of its own, such as a time-out of a question."""
        channel.fail(ChannelClosedError(0, "closed"))
        self.forget(channel)

    # ------------------------------------------------------------------ notices

    def blocked(self, reason: str) -> None:
        if self.on_blocked is not None:
            self.on_blocked(reason)

    def unblocked(self) -> None:
        if self.on_unblocked is not None:
            self.on_unblocked()

    def secret_updated(self) -> None:
        if self._secret_updated is not None and not self._secret_updated.done():
            self._secret_updated.set_result(None)

    def closing_by_broker(self, reply_code: int, reply_text: str) -> None:
        self.refusal = reply_code, reply_text
        self.write(CLOSE_OK_FRAME)
        reason, in_order = f"{reply_code} {reply_text}", reply_code in _IN_ORDER
        self._end(ConnectionLostError(self.url, reason, in_order=in_order, close_code=reply_code))
        self._tell()

    def socket_lost(self, error: BaseException | None) -> None:
        if self.streams.reader is not None:
            self.streams.reader.finish()
        if self._underlay is None:
            self.socket_error = error
        if self._open:
            reason = str(error) if error else "the broker closed the socket"
            self._end(ConnectionLostError(self.url, reason))
            # aiormq may know better, a missed heartbeat for one, a moment later.
            asyncio.get_running_loop().call_later(_REASON_GRACE, self._tell)

    def _underlay_closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if not self._told and not self._ending:
            reason = " ".join(str(part) for part in error.args if part) if error else ""
            self._open = False
            if reason or self._lost is None:
                self._lost = ConnectionLostError(self.url, reason or "closed")
            self._tell()

    def _watch_silence(self) -> None:
        """RabbitMQ: the peer is gone after two heartbeat intervals without a byte.

        aiormq waits for three and a bit, and longer still where it writes meanwhile.
        """
        reader = self.streams.reader
        if not self._open or reader is None:
            return
        loop = asyncio.get_running_loop()
        limit = _HEARTBEATS_MISSED * self._heartbeat
        silent = loop.time() - reader.heard_at
        if silent >= limit:
            self._end(ConnectionLostError(self.url, f"nothing received for {silent:.0f} s"))
            self._tell()
            self.streams.abort()
            return
        self._watch = loop.call_later(limit - silent, self._watch_silence)

    def _end(self, error: TransportError) -> None:
        """Nothing may be written from now on."""
        self._open = False
        if self._lost is None:
            self._lost = error

    def _tell(self) -> None:
        """Report the loss once: the channels' first, then our own."""
        if self._told or self._ending:
            return
        self._told = True
        error = self._lost or ConnectionLostError(self.url, "closed")
        self._end_channels(str(error), getattr(error, "close_code", 0))
        if self.on_close is not None:
            self.on_close(error)

    def _gone(self) -> TransportError:
        if self._lost is not None:
            return self._lost
        return ConnectionLostError(self.url, "closed by us")

    # ------------------------------------------------------------------ closing

    async def close(self) -> None:
        was_open, self._ending = self._open, True
        cancellation = Cancellation()
        self._end_channels("the link was closed")
        self._open = False
        try:
            if self._underlay is not None:
                closing = self._underlay.close(aiormq.exceptions.ConnectionClosed(0, "closed"))
                timeout = _CLOSE_TIMEOUT if was_open else 0.5
                await close_quietly(closing, self, timeout, cancellation)
        finally:
            self.streams.abort()
            await self.tasks.cancel()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)
        cancellation.reraise()

    def abort(self) -> None:
        self._ending = True
        self._open = False
        self._end_channels("the link was aborted")
        self.streams.abort()

    def _end_channels(self, reason: str, code: int = 0) -> None:
        """End them all; acks that wait for the end of this turn are written first."""
        if self._refresh is not None:
            self._refresh.cancel()
            self._refresh = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for channel in list(self._channels.values()):
            channel.flush()
            channel.fail(ChannelClosedError(0, reason, connection_code=code))
            self.forget(channel)


def _capabilities_of(server: Mapping[str, Any]) -> Capabilities:
    """What a broker with these server properties can do."""
    version = rabbitmq_version(server)
    if version is None:
        return Capabilities()
    return Capabilities(
        shared_prefetch=version < SHARED_PREFETCH_UNTIL,
        delayed_retry=version >= DELAYED_RETRY_SINCE,
    )


def _take_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
