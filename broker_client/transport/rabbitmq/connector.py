"""Opens connections to a RabbitMQ: TCP, TLS, handshake and login."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aio_pika
import aio_pika.abc
import pamqp.encode
from yarl import URL

from broker_client.amqp.tables import encode_table
from broker_client.config.access import Credentials, TlsConfig
from broker_client.errors import (
    AuthenticationRefusedError,
    ConnectFailedError,
    ConnectionLostError,
    InvalidMessageError,
    MalformedFrameError,
    TransportError,
    UnsupportedError,
)
from broker_client.runtime.tracebacks import without_frames
from broker_client.transport.limits import SizeLimit
from broker_client.transport.rabbitmq.errors import (
    FOREIGN_ERRORS,
    Cancellation,
    cut_short,
    translate,
    unreachable,
)
from broker_client.transport.rabbitmq.link import NetworkLink
from broker_client.transport.rabbitmq.rewritten_frames import Limits
from broker_client.transport.rabbitmq.tls import explained, tls_context
from broker_client.transport.versions import LEAST_FRAME_MAX

log: logging.Logger = logging.getLogger("broker_client.transport")

_LOGIN_REFUSED = (403, 530)  # RabbitMQ: bad login; vhost unknown or not allowed
_CUT_SHORT = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ConnectionError)
_PORTS = {"amqp": 5672, "amqps": 5671}
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
        client_properties: further client properties to send to the broker.
        channel_max: most channels of a connection; None takes what the broker proposes.
        frame_max: largest frame in bytes; None takes what the broker proposes.
        max_message_size: largest body in bytes, 0 for no limit; None takes the default of the
            broker's kind and version.
        operation_timeout: seconds the broker has to answer a declaration, bind or the like.
        ssl_context: for ``amqps``; None makes one from the system's certificates.
        credentials: called at each connect for user and password, in place of those of `url`.
        local: makes a Unix domain socket that is connected; the host and port of `url` are only
            for show then.
        refresh_interval: seconds between calls of `credentials` while a link is open; None calls
            it at each connect only.

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
        refresh_interval: float | None = None,
        local: Callable[[], socket.socket] | None = None,
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
        self._local = local
        self._credentials = credentials
        self._refresh_interval = refresh_interval
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
        cancellation = Cancellation()
        deadline = asyncio.timeout(timeout)
        try:
            async with deadline:
                try:
                    if self._local is not None:
                        await link.streams.open_local(self._local())
                    else:
                        await link.streams.open(*self._place, self._ssl_context)
                    login = await self._login()
                    connection = _Connection(
                        self._target_for(login),
                        client_properties=self._properties,
                        transport_factory=link.streams,
                    )
                    await connection.connect()
                except (ssl.SSLError, *FOREIGN_ERRORS) as error:
                    reason = await self._tls_failure(link, link.socket_error or error)
                    if reason is None:
                        raise
                    raise ConnectFailedError(self._masked, reason) from without_frames(error)
                link.established(connection, self._size_limit)
                if login is not None and self._credentials and self._refresh_interval:
                    link.refresh_secret(self._credentials, self._refresh_interval, login)
                return link
        except ConnectFailedError:
            raise
        except asyncio.CancelledError:
            cancellation.reraise()
            raise ConnectFailedError(self._masked, "closed during the handshake") from None
        except TimeoutError as error:
            reason = str(error)
            if deadline.expired():
                reason = f"no answer within {timeout:g} s"
                if link.streams.reader is not None and not link.streams.has_heard:
                    reason += "; something accepts connections there: is this its port for AMQP?"
            raise ConnectFailedError(self._masked, reason) from without_frames(error)
        except FOREIGN_ERRORS as error:
            cancellation.reraise()
            raise self._refusal(link, error) from without_frames(error)
        except MalformedFrameError as error:
            raise ConnectFailedError(self._masked, str(error)) from without_frames(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # aiormq takes for granted what a broker says of itself, such as its capabilities.
            reason = f"the broker's part of the handshake is incomplete: {error!r}"
            raise ConnectFailedError(self._masked, reason) from without_frames(error)
        finally:
            if not link.is_open:
                link.abort()

    async def _login(self) -> Credentials | None:
        """User and password as they are now; None when they are in the address."""
        if self._credentials is None:
            return None
        try:
            return await self._credentials()
        except Exception as error:  # noqa: BLE001 - whatever the application's function raises
            reason = f"no credentials: {error}"
            raise ConnectFailedError(self._masked, reason) from without_frames(error)

    def _target_for(self, login: Credentials | None) -> URL:
        if login is None:
            return self._target
        return self._target.with_user(login.user).with_password(login.password.get_secret_value())

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
        if self._ssl_context is None and after:
            return "closed without an answer: if this port expects TLS, write amqps://"
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
            if link.streams.has_heard:
                reason = cut_short(error) or reason
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
    if ":" in host:  # IPv6
        host = f"[{host}]"
    user = f"{quote(address.user, safe='')}@" if address.user else ""
    if address.password is not None:
        user = f"{quote(address.user or '', safe='')}:***@"
    port = f":{address.port}" if address.port else ""
    return f"{address.scheme}://{user}{host}{port}/{quote(vhost, safe='')}"


def _properties(name: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Client capabilities sent to the broker, as aiormq has them."""
    capabilities = more.get("capabilities", {})
    known = {"connection_name": name, "product": "broker_client", **more}
    known["capabilities"] = {**_CAPABILITIES, **capabilities}
    try:
        encode_table(known, "client_properties")
        pamqp.encode.field_table(known)  # encodes fewer types
    except (InvalidMessageError, TypeError, ValueError) as error:
        reason = str(error)
        if isinstance(error, InvalidMessageError):
            reason = f"{error.what} {error.reason}"
        raise UnsupportedError("a client property of that type", reason) from None
    return known
