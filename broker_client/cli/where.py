"""The broker of a command: an address, the file of a built-in broker, or from a configuration."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from broker_client.cli.node_file import failed
from broker_client.cli.paths import file_path
from broker_client.config import BrokerConfig, ConnectionConfig, RetryConfig, VhostConfig
from broker_client.config.loader import load_config
from broker_client.config.node import NodeConfig
from broker_client.config.url import parse_url
from broker_client.connection.addresses import Addresses
from broker_client.errors import ConfigError
from broker_client.runtime.slotted import slotted
from broker_client.transport.base import Connector, Link

URL_VARIABLE = "BROKER_CLIENT_URL"
_CONNECT_TIMEOUT = 10.0
_OPERATION_TIMEOUT = 60.0  # RabbitMQ's queues can be busy for long with what is given back
_LONG = 86_400.0  # seconds: no message time-out within a command

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help="The broker: amqp://user:password@host:port/vhost, or the PATH of a broker's file.",
        show_envvar=True,
        show_default=False,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The broker of this configuration, instead of --url.",
        show_default=False,
        parser=file_path,
    ),
]
VhostName = Annotated[
    str | None,
    typer.Option("--vhost", metavar="NAME", help="Vhost, if there are several."),
]


@slotted
class Place:
    """One vhost of one broker."""

    shown: str
    """Without a password."""
    vhost: str
    path: str = ""
    """Of the broker's file; "" for a broker at an address."""
    url: str = ""
    """The address, with its password."""
    connections: tuple[ConnectionConfig, ...] = ()
    """Of a configuration, with all their settings, in the order in which they are tried."""
    config: BrokerConfig | None = None
    """Where a configuration was named."""
    declared: VhostConfig | None = None
    """The vhost in it."""

    @property
    def user(self) -> str:
        """The user that logs in; ``guest`` if the address names none."""
        if self.connections:
            return self.connections[0].user or "guest"
        return parse_url(self.url).user or "guest"

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """A connection to it, which is closed in order.

        Raises:
            TransportError: there is none.
            StoreError: the file cannot be used.
        """
        if self.path:
            async with _file_link(self.path, self.vhost) as link:
                yield link
            return
        addresses = Addresses(
            self._connectors(), retry=RetryConfig(), connect_timeout=_CONNECT_TIMEOUT
        )
        link = await addresses.connect(once=True)
        try:
            yield link
        finally:
            await link.close()

    def _connectors(self) -> list[Connector]:
        # Here, since other commands need no AMQP client, which takes its time to load.
        from broker_client.transport.rabbitmq.connector import NetworkConnector

        if not self.connections:
            return [
                NetworkConnector(
                    self.url,
                    vhost=self.vhost,
                    name="broker-client",
                    operation_timeout=_OPERATION_TIMEOUT,
                )
            ]
        from broker_client.connection.connectors import Network

        place = f"vhosts.{self.vhost}.connection"
        return [
            Network(each, self.vhost, place).connector("broker-client") for each in self.connections
        ]


def place_of(url: str | None, config: Path | None = None, vhost: str | None = None) -> Place:
    """What the options name; a configuration goes before an address from the environment.

    Raises:
        typer.Exit: with status 1, once it was said what is wrong.
        typer.BadParameter: nothing was named.
    """
    if config is not None:
        return _configured(config, vhost)
    if not url:
        raise typer.BadParameter("give the broker with --url or --config")
    if "://" not in url:
        return _in_file(url, vhost or "/")
    try:
        parts = parse_url(url)
    except ValueError as error:
        raise failed(f"--url: {error}") from None
    if parts.scheme == "embedded":
        if not parts.path:
            raise failed(
                "--url: embedded:// keeps its messages in the memory of its program, which "
                "commands cannot reach"
            )
        return _in_file(parts.path, vhost or "/")
    if parts.query:
        raise failed("--url: a query is not allowed")
    name = vhost or parts.vhost or "/"
    return Place(f"{parts.hostname}:{parts.port}", name, url=url)


def _configured(file: Path, vhost: str | None) -> Place:
    config, name = load_vhost(file, vhost)
    connections = tuple(config.vhosts[name].connections)
    first = connections[0]
    if not first.is_embedded:
        network = tuple(each for each in connections if not each.is_embedded)
        place = Place(first.masked_url, first.vhost_name(name), connections=network)
        return replace(place, config=config, declared=config.vhosts[name])
    path = parse_url(first.url.get_secret_value()).path
    if not path:
        raise failed(
            f"{file}: {first.masked_url} keeps its messages in the memory of its program, which "
            "commands cannot reach"
        )
    place = _in_file(path, first.vhost_name(name))
    return replace(place, config=config, declared=config.vhosts[name])


def _in_file(path: str, vhost: str) -> Place:
    if not os.path.exists(path):
        raise failed(f"{path}: there is no such file")
    return Place(path, vhost, path=path)


def load_vhost(file: Path, vhost: str | None) -> tuple[BrokerConfig, str]:
    """The configuration in `file`, and the name of its vhost: `vhost`, or else the only one.

    Raises:
        typer.Exit: with status 1, once it was said what is wrong, or which vhosts there are.
    """
    try:
        config = load_config(file)
    except ConfigError as error:
        raise failed(str(error)) from None
    names = sorted(config.vhosts)
    if vhost is None and len(names) == 1:
        return config, names[0]
    if vhost in config.vhosts:
        return config, vhost
    listed = ", ".join(names) or "none"
    if vhost is None:
        raise failed(f"{file}: name one of its vhosts with --vhost: {listed}")
    raise failed(f"{file}: has no vhost {vhost!r}; it has {listed}")


def local_connector(path: str, vhost: str) -> Connector | None:
    """To the process that has the file at `path` open, for one link; None where none has."""
    from broker_client.server.control import connected_socket

    local = connected_socket(path)
    if local is None:
        return None
    from broker_client.transport.rabbitmq.connector import NetworkConnector

    return NetworkConnector(
        "amqp://localhost",
        vhost=vhost,
        name="broker-client",
        operation_timeout=_OPERATION_TIMEOUT,
        local=lambda: local,
    )


@asynccontextmanager
async def _file_link(path: str, vhost: str) -> AsyncIterator[Link]:
    """A link to the process that has the file open or, where none has, to a node of our own."""
    connector = local_connector(path, vhost)
    if connector is not None:
        link: Link = await connector.connect(timeout=_CONNECT_TIMEOUT)
        try:
            yield link
        finally:
            await link.close()
        return
    from broker_client.node.making import engine_settings, make_node
    from broker_client.transport.embedded.link import EmbeddedLink

    config = NodeConfig(message_timeout=_LONG, max_message_timeout=_LONG)
    node = make_node(path, durable=True, settings=engine_settings(config))
    await node.recover()
    try:
        if not node.administration.has_vhost(vhost):
            raise failed(f"{path}: there is no vhost {vhost!r}")
        link = EmbeddedLink(path, node, vhost, lambda: None)
        yield link
        await link.close()
    finally:
        await node.close()
