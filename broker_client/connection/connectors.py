"""Connectors of a vhost's brokers, made from its configuration.

All that connects to a broker is made here, so that TLS context and limits are the same: the links
of a `Broker`, calls of the management API, and the links of Spark's workers.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker_client.config import ConnectionConfig, VhostConfig
from broker_client.errors import ConnectFailedError, TransportError
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Connector, Link
from broker_client.transport.rabbitmq.tls import tls_context

if TYPE_CHECKING:
    from broker_client.connection.management import VhostManagement
    from broker_client.transport.rabbitmq.connector import NetworkConnector

Embedded = Callable[[str, str], Connector]
"""Makes a connector to the built-in broker of an address, in a vhost."""


@slotted
class Connectors:
    """The connectors of one vhost, one for each of its connections, in their order."""

    main: Sequence[Connector]
    """For publishing, declaring, and for consuming if there is no separate connection."""
    consuming: Sequence[Connector] = ()
    """For the consumers' connection, if that is separate; else empty."""
    networks: Sequence[Network] = ()
    """The addresses that are not of the built-in broker."""

    async def delete_vhost(self) -> None:
        """Delete the vhost over the management API of the first address that answers.

        Raises:
            TransportError: none answered.
        """
        failure: TransportError | None = None
        for network in self.networks:
            try:
                await (await network.management()).delete()
                return
            except TransportError as error:
                failure = error
        if failure is not None:
            raise failure


def connectors_of(vhost: VhostConfig, embedded: Embedded) -> Connectors:
    """The connectors of `vhost`. Nothing is opened yet.

    The built-in broker has nothing to block within one link, so a vhost that is only there has
    one for everything.

    Raises:
        ConfigError: a TLS file cannot be used.
        UnsupportedError: a vhost or a client property cannot be sent.
    """
    separate = vhost.separate_connections and not all(c.is_embedded for c in vhost.connections)
    main: list[Connector] = []
    consuming: list[Connector] = []
    networks: list[Network] = []
    for index, config in enumerate(vhost.connections):
        if config.is_embedded:
            url, name = config.url.get_secret_value(), config.vhost_name(vhost.name)
            main.append(embedded(url, name))
            if separate:
                consuming.append(embedded(url, name))
            continue
        place = "" if len(vhost.connections) == 1 else f"[{index}]"
        network = Network(config, vhost.name, f"vhosts.{vhost.name}.connection{place}")
        networks.append(network)
        name = config.name or "broker_client"
        connector: Connector = network.connector(name)
        if vhost.assert_ or vhost.check:
            connector = VhostConnector(connector, network, vhost)
        main.append(connector)
        if separate:
            consuming.append(network.connector(f"{name} (consuming)"))
    return Connectors(main, consuming, networks)


class Network:
    """One vhost at one address: its links and its management API, with one TLS context.

    Args:
        config: the address and its settings.
        vhost: name of the vhost in the configuration.
        path: where the settings stand in the configuration, for errors.

    Raises:
        ConfigError: a TLS file cannot be used.
    """

    def __init__(self, config: ConnectionConfig, vhost: str, path: str = "connection") -> None:
        self._config = config
        self._vhost = config.vhost_name(vhost)
        self._context: ssl.SSLContext | None = None
        if config.tls is not None:
            self._context = tls_context(config.tls, f"{path}.tls")

    def __repr__(self) -> str:
        return f"<Network {self._config.masked_url}: {self._vhost}>"

    def connector(self, name: str) -> NetworkConnector:
        """A connector whose links have the connection name `name`.

        Raises:
            UnsupportedError: a vhost or a client property cannot be sent.
        """
        config = self._config
        # aio-pika takes a quarter of a second on a slow machine: only for whom it connects.
        from broker_client.transport.rabbitmq.connector import NetworkConnector

        return NetworkConnector(
            config.url.get_secret_value(),
            vhost=self._vhost,
            heartbeat=config.heartbeat,
            name=name,
            client_properties=config.client_properties,
            channel_max=config.channel_max,
            frame_max=config.frame_max,
            max_message_size=config.max_message_size,
            operation_timeout=config.connect_timeout,
            ssl_context=self._context,
            credentials=config.current_credentials if config.has_own_credentials else None,
            refresh_interval=config.refresh_credentials,
        )

    async def management(self) -> VhostManagement:
        """The vhost over the management API, with the credentials as they are now.

        Raises:
            ConnectFailedError: there are no credentials.
        """
        from broker_client.connection.management import VhostManagement

        config, management = self._config, self._config.management
        if config.has_own_credentials:
            try:
                management = management.with_credentials(await config.current_credentials())
            except Exception as error:  # noqa: BLE001 - whatever the application's function raises
                why = f"no credentials: {error}"
                raise ConnectFailedError(config.masked_url, why) from None
        return VhostManagement(management, self._vhost, self._context)


class VhostConnector:
    """Asserts and checks the vhost over the management API before each link to it (as in rascal).

    A built-in broker makes any vhost with its first link: there is nothing to do for it.
    """

    def __init__(self, connector: Connector, network: Network, vhost: VhostConfig) -> None:
        self._connector, self._network = connector, network
        self._assert, self._check = vhost.assert_, vhost.check

    def __repr__(self) -> str:
        return f"<VhostConnector {self.url}>"

    @property
    def url(self) -> str:
        return self._connector.url

    async def connect(self, *, timeout: float) -> Link:
        """Open a link, once the vhost is there.

        Raises:
            ManagementError: it could not be made, or is missing.
            ConnectFailedError: no address answered in time.
        """
        if self._assert:
            await (await self._network.management()).create()
        if self._check:
            await (await self._network.management()).check()
        return await self._connector.connect(timeout=timeout)
