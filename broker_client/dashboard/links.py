"""Connections to the broker itself, for operations that its management API cannot do safely."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from broker_client.config.url import UrlParts, build_url, parse_url
from broker_client.dashboard.credentials import Credentials
from broker_client.dashboard.refusals import Refusal, bad_request, not_permitted
from broker_client.errors import (
    AuthenticationRefusedError,
    BrokerClientError,
    ChannelClosedError,
    UsageError,
    described,
)
from broker_client.transport.base import Link

_CONNECT_TIMEOUT = 10.0
_OPERATION_TIMEOUT = 60.0  # RabbitMQ's queues can be busy for long with what is given back
_WITHIN = UrlParts("amqp", "localhost", 5672)  # for show: it is connected already
_CONNECTOR = "broker_client.transport.rabbitmq.connector"
_ACCESS_REFUSED = 403
_NOT_FOUND = 404


class Links:
    """Opens connections by AMQP, as the user who asks."""

    def __init__(
        self, url: str | None, connect: Callable[[], Awaitable[socket.socket]] | None = None
    ) -> None:
        """
        Args:
            url: of the broker, without a login; None where it is not known.
            connect: connects to a broker in this process, which needs no URL.

        Raises:
            ValueError: it is not such a URL.
        """
        self._connect = connect
        self._parts = _WITHIN if connect is not None else None if url is None else parse_url(url)

    @property
    def are_known(self) -> bool:
        """There is an address to connect to."""
        return self._parts is not None

    @contextlib.asynccontextmanager
    async def open(self, credentials: Credentials | None, vhost: str) -> AsyncIterator[Link]:
        """A connection of its own, closed at the end.

        Raises:
            Refusal: 501 without an address, 502 where it cannot be opened.
        """
        if self._parts is None or credentials is None:
            reason = "no AMQP address of the broker is known here: start it with --amqp"
            raise Refusal(501, "no_amqp", reason)
        # It takes its time to load, and the broker may share the event loop.
        module = await asyncio.to_thread(importlib.import_module, _CONNECTOR)
        login = self._parts._replace(
            user=credentials.user, password=credentials.reveal(), vhost=None, query=""
        )
        connected: list[socket.socket] = []
        connector = module.NetworkConnector(
            build_url(login),
            vhost=vhost,
            name="dashboard",
            operation_timeout=_OPERATION_TIMEOUT,
            local=None if self._connect is None else connected.pop,
        )
        try:
            if self._connect is not None:
                connected.append(await self._connect())
            link: Link = await connector.connect(timeout=_CONNECT_TIMEOUT)
        except AuthenticationRefusedError as error:
            raise not_permitted(str(error)) from None
        except BrokerClientError as error:
            raise Refusal(502, "unreachable", described(error)) from None
        try:
            yield link
        finally:
            with contextlib.suppress(BrokerClientError):
                await link.close()


def refusal_of_error(error: BrokerClientError) -> Refusal:
    """The dashboard's form of what the broker refuses, or cannot do, over AMQP."""
    if isinstance(error, ChannelClosedError) and error.reply_code == _ACCESS_REFUSED:
        return not_permitted(error.reply_text)
    if isinstance(error, ChannelClosedError) and error.reply_code == _NOT_FOUND:
        return Refusal(404, "not_found", error.reply_text)
    if isinstance(error, UsageError):
        return bad_request(str(error))
    return Refusal(502, "failed", described(error))
