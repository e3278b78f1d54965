"""Links to a RabbitMQ, on aio-pika's connection; foreign errors stop here."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aio_pika
import aio_pika.abc
import aiormq.abc
import aiormq.channel
import aiormq.exceptions
import pamqp.encode
from yarl import URL

from broker_client.config.access import Credentials, TlsConfig
from broker_client.errors import (
    AuthenticationRefusedError,
    ChannelClosedError,
    ConnectFailedError,
    ConnectionLostError,
    TransportError,
    UnsupportedError,
)
from broker_client.runtime.tasks import TaskGroup
from broker_client.transport.base import Capabilities
from broker_client.transport.limits import NO_SIZE_LIMIT, SizeLimit, usual_size_limit
from broker_client.transport.rabbitmq.channel import NetworkChannel
from broker_client.transport.rabbitmq.errors import (
    FOREIGN_ERRORS,
    cancelled_from_outside,
    is_bare,
    translate,
    unreachable,
)
from broker_client.transport.rabbitmq.reader import CLOSE_OK_FRAME, Limits, Streams
from broker_client.transport.rabbitmq.tls import explained, tls_context
from broker_client.transport.versions import (
    DELAYED_RETRY_SINCE,
    LEAST_FRAME_MAX,
    SHARED_PREFETCH_UNTIL,
    rabbitmq_version,
)

log = logging.getLogger("broker_client.transport")

_CLOSE_TIMEOUT = 3.0  # seconds for an orderly connection.close; then the socket is dropped
_LOGIN_REFUSED = (403, 530)  # RabbitMQ: bad login; vhost unknown or not allowed
_HEARTBEATS_MISSED = 2
_REASON_GRACE = 0.25  # seconds between a lost socket and aiormq's word on why
_LAST_TURNS = 50  # of the loop, in which aiormq's last tasks end, which nobody can wait for
_IN_ORDER = (200, 320)  # RabbitMQ: closed in order; 320 when it stops, or an operator says so
_CUT_SHORT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ConnectionError)
_PORTS = {"amqp": 5672, "amqps": 5671}
_MOST_CHANNELS = 65_535  # AMQP 0-9-1 §4.2.3: a channel number has 16 bits
_CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


class _Connection(aio_pika.Connection):
    """aio-pika's own connection, told which socket factory to pass down."""

    PARAMETERS = (
        *aio_pika.Connection.PARAMETERS,
        aio_pika.abc.ConnectionParameter(
            name="transport_factory", parser=lambda factory: factory, is_kwarg=True
        ),
    )

    def __del__(self) -> None:
        """Nothing: aio-pika's would start a close, in whichever thread the collector works.

        What is open is closed by `NetworkLink`.
        """


class NetworkConnector:
    """Opens links to one RabbitMQ address.

    Args:
        url: ``amqp://`` or ``amqps://`` with user, password, host and port; a path is ignored.
        vhost: the vhost to open, decoded.
        heartbeat: seconds, whole; 0 turns heartbeats off.
        name: shown by the broker's management pages.
        client_properties: further properties that the broker is told.
        channel_max: most channels of a connection; None takes what the broker proposes.
        frame_max: largest frame in bytes; None takes what the broker proposes.
        max_message_size: largest body in bytes, 0 for no limit; None takes the default of the
            broker's kind and version.
        operation_timeout: seconds the broker has to answer a declaration, bind or the like.
        ssl_context: for ``amqps``; None makes one from the system's certificates.
        credentials: called at each connect for user and password, in place of those of `url`.

    Raises:
        UnsupportedError: a vhost, or a client property, that cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        vhost: str = "/",
        heartbeat: float = 10.0,
        name: str = "broker_client",
        client_properties: Mapping[str, Any] | None = None,
        channel_max: int | None = None,
        frame_max: int | None = None,
        max_message_size: int | None = None,
        operation_timeout: float = 10.0,
        ssl_context: ssl.SSLContext | None = None,
        credentials: Callable[[], Awaitable[Credentials]] | None = None,
    ) -> None:
        # aiormq reads the vhost from the path and undoes %2F alone, and its other settings from
        # the query: build exactly what it reads.
        self._target = (
            URL(url)
            .with_path("/" + quote(vhost, safe=""), encoded=True)
            .with_query(heartbeat=str(int(heartbeat)))
        )
        if not vhost or self._target.path[1:].replace("%2F", "/") != vhost:
            raise UnsupportedError(f"the vhost {vhost!r}", "aio-pika cannot ask for one so named")
        self._masked = masked(url, vhost)
        self._credentials = credentials
        self._heartbeat = float(int(heartbeat))
        self._properties = _properties(name, client_properties or {})
        self._limits = Limits(channel_max, frame_max)
        self._size_limit: SizeLimit | None = None
        if max_message_size is not None:
            self._size_limit = SizeLimit(max_message_size, "max_message_size of the connection")
        self._operation_timeout = operation_timeout
        self._ssl_context: ssl.SSLContext | None = None
        if self._target.scheme == "amqps":
            self._ssl_context = ssl_context or tls_context(TlsConfig())

    def __repr__(self) -> str:
        return f"<NetworkConnector {self._masked}>"

    @property
    def url(self) -> str:
        return self._masked

    async def connect(self, *, timeout: float) -> NetworkLink:
        link = NetworkLink(self._masked, self._operation_timeout, self._heartbeat, self._limits)
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                try:
                    await link.streams.open(*self._place, self._ssl_context)
                    connection = _Connection(
                        await self._target_now(),
                        client_properties=self._properties,
                        transport_factory=link.streams,
                    )
                    await connection.connect()
                except (ssl.SSLError, *FOREIGN_ERRORS) as error:
                    reason = await self._tls_failure(link, link.socket_error or error)
                    if reason is None:
                        raise
                    raise ConnectFailedError(self._masked, reason) from error
                link.established(connection, self._size_limit)
                return link
        except ConnectFailedError:
            raise
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise ConnectFailedError(self._masked, "closed during the handshake") from None
        except TimeoutError as error:
            reason = f"no answer within {timeout:g} s" if deadline.expired() else str(error)
            raise ConnectFailedError(self._masked, reason) from error
        except FOREIGN_ERRORS as error:
            raise self._refusal(link, error) from error
        finally:
            if not link.is_open:
                link.abort()

    async def _target_now(self) -> URL:
        """The address with user and password as they are now."""
        if self._credentials is None:
            return self._target
        try:
            user, password = await self._credentials()
        except Exception as error:  # whatever the application's function raises
            raise ConnectFailedError(self._masked, f"no credentials: {error}") from error
        return self._target.with_user(user).with_password(password.get_secret_value())

    @property
    def _place(self) -> tuple[str, int]:
        return self._target.host or "", self._target.port or _PORTS[self._target.scheme]

    async def _tls_failure(self, link: NetworkLink, error: BaseException) -> str | None:
        """What went wrong with TLS; None when something else did."""
        if isinstance(error, ssl.SSLError):
            return await explained(error, *self._place)
        reader = link.streams.reader
        during = reader is None and type(error) in _CUT_SHORT
        after = reader is not None and not reader.has_heard and isinstance(error, ConnectionError)
        if self._ssl_context and (during or after):
            # TLS 1.3: the server looks at our certificate after its own part of the handshake, and
            # its alert may be lost to the reset that follows.
            return (
                "cut off at the TLS handshake: most likely the broker asks for a client "
                "certificate (tls.certfile), or does not accept our certificate"
            )
        return None

    def _refusal(self, link: NetworkLink, error: BaseException) -> TransportError:
        """Why there is no link: the broker's own words where it said any."""
        if link.refusal is not None:
            code, text = link.refusal
            kind = AuthenticationRefusedError if code in _LOGIN_REFUSED else ConnectFailedError
            return kind(self._masked, f"{code} {text}")
        mapped = translate(self._masked, error)
        if isinstance(mapped, ConnectionLostError):
            reason = unreachable(error) or mapped.reason
            frame_max = self._limits.frame_max
            if frame_max is not None and frame_max < LEAST_FRAME_MAX and link.streams.has_heard:
                # RabbitMQ says why in its log alone.
                reason += (
                    f"; frame_max is {frame_max}, and RabbitMQ takes none below {LEAST_FRAME_MAX} "
                    "from 4.1 on"
                )
            return ConnectFailedError(self._masked, reason)
        return mapped


def masked(url: str, vhost: str) -> str:
    """`url` with the vhost as its path and without password or query: fit to print."""
    address = URL(url)
    host = address.host or ""
    user = f"{quote(address.user, safe='')}@" if address.user else ""
    if address.password is not None:
        user = f"{quote(address.user or '', safe='')}:***@"
    port = f":{address.port}" if address.port else ""
    return f"{address.scheme}://{user}{host}{port}/{quote(vhost, safe='')}"


def _properties(name: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker is told of us: capabilities of the protocol as aiormq has them."""
    capabilities = more.get("capabilities", {})
    known = {"connection_name": name, "product": "broker_client", **more}
    known["capabilities"] = {**_CAPABILITIES, **capabilities}
    try:
        pamqp.encode.field_table(known)
    except (TypeError, ValueError) as error:
        raise UnsupportedError("a client property of that type", str(error)) from None
    return known


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


class NetworkLink:
    """`transport.base.Link` on a RabbitMQ."""

    def __init__(
        self, url: str, operation_timeout: float, heartbeat: float, limits: Limits
    ) -> None:
        self.on_close: Callable[[TransportError], None] | None = None
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.url = url
        self.operation_timeout = operation_timeout
        self.frame_max = 0
        self.size_limit = NO_SIZE_LIMIT
        self.tasks = TaskGroup(f"link {url}")
        self.streams = Streams(self, limits)
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
        self._underlay = underlay = transport.connection
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

    async def open_channel(self, *, confirm: bool = False) -> NetworkChannel:
        underlay, reader = self._underlay, self.streams.reader
        if not self._open or underlay is None or reader is None:
            raise self._gone()
        deadline = asyncio.timeout(self.operation_timeout)
        try:
            async with deadline:
                raw = await underlay.channel(
                    self._free_number(underlay),
                    publisher_confirms=confirm,
                    on_return_raises=False,
                )
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
            raise self._gone() from None
        except TimeoutError as error:
            raise ChannelClosedError(
                0, f"the broker opened no channel within {self.operation_timeout:g} s"
            ) from error
        except FOREIGN_ERRORS as error:
            raise (self._lost or translate(self.url, error)) from error
        except Exception as error:
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
        return channel

    def _free_number(self, underlay: aiormq.abc.AbstractConnection) -> int:
        """The lowest free one. aiormq counts on above the highest, whatever was agreed on.

        RabbitMQ ends the whole connection for a channel above its channel_max.
        """
        taken = underlay.channels
        for number in range(1, self._channel_max + 1):
            if number not in taken:
                return number
        raise ChannelClosedError(0, f"all {self._channel_max} channels of the connection are open")

    # ------------------------------------------------------------------ for the channels

    def write(self, data: bytes) -> None:
        """Put `data`, whole frames, behind what was written before."""
        if data and self._open and self.streams.writer is not None:
            self.streams.writer.write(data)

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
            self._end(ConnectionLostError(self.url, f"nothing heard for {silent:.0f} s"))
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
        self._end_channels("the link was closed")
        self._open = False
        try:
            if self._underlay is not None:
                async with asyncio.timeout(_CLOSE_TIMEOUT if was_open else 0.5):
                    await self._underlay.close(aiormq.exceptions.ConnectionClosed(0, "closed"))
        except asyncio.CancelledError:
            if cancelled_from_outside():
                raise
        except (TimeoutError, *FOREIGN_ERRORS) as error:
            log.debug("%r: close: %r", self, error)
        except Exception as error:
            if not is_bare(error):
                raise
        finally:
            self.streams.abort()
            await self.tasks.cancel()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    def abort(self) -> None:
        self._ending = True
        self._open = False
        self._end_channels("the link was aborted")
        self.streams.abort()

    def _end_channels(self, reason: str, code: int = 0) -> None:
        """End them all; acks that wait for the end of this turn are written first."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for channel in list(self._channels.values()):
            channel.flush()
            channel.fail(ChannelClosedError(0, reason, connection_code=code))
            self.forget(channel)
