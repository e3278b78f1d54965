"""How other processes reach the built-in brokers of a `Broker`: its ports and control sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_client.config import BrokerConfig
from broker_client.config.listen import parse_listen_address
from broker_client.config.url import parse_url
from broker_client.errors import ConfigError, Problem
from broker_client.transport.embedded.nodes import EmbeddedNodes

if TYPE_CHECKING:  # loaded where the configuration asks for them
    from broker_client.server.control import ControlSocket
    from broker_client.server.server import Server


class Endpoints:
    """Listens for the nodes of one Broker, as its configuration asks for."""

    def __init__(self, config: BrokerConfig, nodes: EmbeddedNodes) -> None:
        """
        Args:
            config: with `node.listen`, `node.control` and the settings of a server.
            nodes: those of the Broker.
        """
        self._config, self._nodes = config, nodes
        self._server: Server | None = None
        self._controls: list[ControlSocket] = []
        brokers = [each for vhost in config.vhosts.values() for each in vhost.connections]
        self._embedded = [each for each in brokers if each.is_embedded]

    def __repr__(self) -> str:
        return f"<Endpoints {', '.join(self.addresses)} controls={len(self._controls)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those of `node.listen`, with the ports that were chosen."""
        return () if self._server is None else tuple(map(str, self._server.addresses))

    async def open(self) -> None:
        """Listen on the ports, and beside the files.

        Raises:
            ConfigError: there are several built-in brokers, and none was named.
            ListenError: an address is taken.
        """
        if self._config.node.listen and self._embedded:
            await self._listen()  # a server's file may be read by the clients of that server, too
        if self._config.node.control:
            await self._open_controls()

    async def _listen(self) -> None:
        urls = {each.masked_url for each in self._embedded}
        if len(urls) > 1:
            text = f"the vhosts have several built-in brokers: {', '.join(sorted(urls))}"
            raise ConfigError([Problem("node.listen", f"{text}; at most one can listen")])
        node = self._nodes.node(urls.pop())
        node.access.add_default_user(next(iter(self._config.vhosts)))
        from broker_client.server.server import Server  # and with it all of the built-in broker

        self._server = Server(
            node,
            [parse_listen_address(address) for address in self._config.node.listen],
            self._config.server,
            data=node.name if node.keeps else None,
        )
        await self._server.start()

    async def _open_controls(self) -> None:
        """Let commands reach the built-in brokers that have a file."""
        for each in self._embedded:
            url = each.url.get_secret_value()
            path = parse_url(url).path
            if not path or not self._nodes.has(url):
                continue
            from broker_client.server.control import open_control  # where there is a file

            control = await open_control(self._nodes.node(url), path)
            if control is not None:
                self._controls.append(control)

    async def close(self) -> None:
        """Stop listening."""
        for control in self._controls:
            await control.close()
        if self._server is not None:
            await self._server.stop()
