"""What a configuration says of a vhost's brokers, made into connectors."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import NamedTuple

from broker_client.config import ConnectionConfig, VhostConfig
from broker_client.connection.management import assert_vhost, check_vhost
from broker_client.transport.base import Connector, Link
from broker_client.transport.rabbitmq.connector import NetworkConnector
from broker_client.transport.rabbitmq.tls import tls_context

Embedded = Callable[[str, str], Connector]
"""Makes a connector to the built-in broker of an address, in a vhost."""


class Connectors(NamedTuple):
    """One for each of the vhost's connections, in their order."""

    main: list[Connector]
    """For publishing, for declaring, and for consuming too when there are no others."""
    consuming: list[Connector]
    """For the connection of the consumers, when that is to be another; else empty."""


def connectors_of(vhost: VhostConfig, embedded: Embedded) -> Connectors:
    """The connectors of `vhost`. Nothing is opened yet.

    The built-in broker has nothing to block within one link, so a vhost that is only there has
    one for everything.

    Raises:
        ConfigError: a TLS file cannot be used.
        UnsupportedError: a vhost or a client property cannot be sent.
    """
    made = [_Maker(vhost, index, embedded) for index in range(len(vhost.connections))]
    separate = vhost.separate_connections and not all(c.is_embedded for c in vhost.connections)
    return Connectors(
        [maker.main() for maker in made],
        [maker.make(" (consuming)") for maker in made] if separate else [],
    )


class _Maker:
    """Makes connectors to one address, all with the same TLS context."""

    def __init__(self, vhost: VhostConfig, index: int, embedded: Embedded) -> None:
        self._vhost = vhost
        self._config = vhost.connections[index]
        self._embedded = embedded
        self._name = self._config.vhost_name(vhost.name)
        self._context: ssl.SSLContext | None = None
        if self._config.tls is not None:
            place = "" if len(vhost.connections) == 1 else f"[{index}]"
            path = f"vhosts.{vhost.name}.connection{place}.tls"
            self._context = tls_context(self._config.tls, path)

    def main(self) -> Connector:
        connector = self.make("")
        wanted = self._vhost.assert_ or self._vhost.check
        if self._config.is_embedded or not wanted:
            return connector
        return VhostConnector(connector, self._config, self._vhost, self._name, self._context)

    def make(self, role: str) -> Connector:
        config = self._config
        url = config.url.get_secret_value()
        if config.is_embedded:
            return self._embedded(url, self._name)
        return NetworkConnector(
            url,
            vhost=self._name,
            heartbeat=config.heartbeat,
            name=(config.name or "broker_client") + role,
            client_properties=config.client_properties,
            channel_max=config.channel_max,
            frame_max=config.frame_max,
            max_message_size=config.max_message_size,
            ssl_context=self._context,
        )


class VhostConnector:
    """Asserts and checks the vhost over the management API before each link to it (as in rascal).

    A built-in broker makes any vhost with its first link: there is nothing to do for it.
    """

    def __init__(
        self,
        connector: Connector,
        connection: ConnectionConfig,
        vhost: VhostConfig,
        name: str,
        context: ssl.SSLContext | None,
    ) -> None:
        self._connector, self._management = connector, connection.management
        self._assert, self._check = vhost.assert_, vhost.check
        self._name, self._context = name, context

    def __repr__(self) -> str:
        return f"<VhostConnector {self.url}>"

    @property
    def url(self) -> str:
        return self._connector.url

    async def connect(self, *, timeout: float) -> Link:
        """Open a link, once the vhost is there.

        Raises:
            ManagementError: it could not be made, or is missing.
            ConnectFailedError: nobody answered, or not in time.
        """
        if self._assert:
            await assert_vhost(self._management, self._name, self._context)
        if self._check:
            await check_vhost(self._management, self._name, self._context)
        return await self._connector.connect(timeout=timeout)
