"""State of the management API: the node, and the connections of the server."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import broker_client.core.snapshots  # noqa: F401 - else a request waits for it
from broker_client.config.server import ServerConfig
from broker_client.core.global_parameters import CLUSTER_NAME
from broker_client.core.queue import ChannelState
from broker_client.node.definitions.exporting import permission_object, plain
from broker_client.node.node import Node
from broker_client.runtime.version import package_version
from broker_client.server.admission import Admission
from broker_client.server.connection_info import ConnectionInfo
from broker_client.server.http.callers import MONITORING, Caller
from broker_client.server.http.descriptions import (
    channel_details,
    topic_permission_object,
)
from broker_client.server.http.rates import Rates


class ClientConnections(Protocol):
    """The server's connections; implemented by `Server`, and by an API without a server."""

    def connections(self) -> Sequence[ConnectionInfo]: ...

    def close_connection(self, name: str, reason: str) -> bool: ...


class NoConnections:
    """Where nothing listens for clients."""

    def connections(self) -> Sequence[ConnectionInfo]:
        """None."""
        return ()

    def close_connection(self, name: str, reason: str) -> bool:
        """There is none of any name."""
        return False


class Management:
    """Answers for one node; the operations ask it."""

    def __init__(
        self,
        node: Node,
        clients: ClientConnections | None = None,
        addresses: Sequence[tuple[str, str, int]] = (),
        data: str | None = None,
        config: ServerConfig | None = None,
    ) -> None:
        """
        Args:
            node: the node.
            clients: the server's connections.
            addresses: protocol, host and port of what the server listens on.
            data: path of the node's file, if it has one.
            config: how many logins may fail.
        """
        self.node = node
        self.name: str = f"broker_client@{socket.gethostname()}"
        """Of the node, as the API calls it."""
        self.rates: Rates = Rates(node)
        self.addresses: list[tuple[str, str, int]] = list(addresses)
        self.admission: Admission = Admission(config or ServerConfig())
        self._clients = clients or NoConnections()
        self._data = data
        self._began = time.monotonic()

    def __repr__(self) -> str:
        return f"<Management of {self.node!r}>"

    # ---------------------------------------------------------------- the node

    @property
    def cluster_name(self) -> str:
        """What the broker was named, by default as its node."""
        named = self.node.administration.global_parameters().get(CLUSTER_NAME)
        return named if isinstance(named, str) else self.name

    def versions(self) -> dict[str, str]:
        """Who we are, and the RabbitMQ whose API this is."""
        rabbitmq = ".".join(map(str, (*self.node.view.settings.compatibility, 0)))
        return {
            "product_name": "broker_client",
            "product_version": package_version(),
            "rabbitmq_version": rabbitmq,
            "management_version": rabbitmq,
        }

    def listeners(self) -> list[dict[str, Any]]:
        """What is listened on."""
        return [
            {"node": self.name, "protocol": protocol, "ip_address": host, "port": port}
            for protocol, host, port in self.addresses
        ]

    def node_object(self) -> dict[str, Any]:
        """The node, as the API has nodes."""
        settings = self.node.view.settings
        alarms = self.node.alarms
        folder = os.path.dirname(os.path.realpath(self._data)) if self._data else "/"
        return {
            "name": self.name,
            "type": "disc" if self.node.keeps else "ram",
            "running": self.node.accepts,
            "os_pid": str(os.getpid()),
            "uptime": int((time.monotonic() - self._began) * 1000),
            "mem_used": resident_bytes(),
            "mem_limit": settings.memory_high_watermark,
            "mem_alarm": "memory" in alarms,
            "disk_free": shutil.disk_usage(folder).free,
            "disk_free_alarm": "disk" in alarms,
            "fd_used": open_files(),
            "sockets_used": len(self._clients.connections()),
            "run_queue": 0,
            "processors": os.cpu_count() or 1,
            "partitions": [],
            "being_drained": False,
            "db_dir": self._data or "",
        }

    # ---------------------------------------------------------------- connections

    def connections(self, caller: Caller) -> list[dict[str, Any]]:
        """The connections that the caller may see, oldest first."""
        sees_all = caller.has(MONITORING)
        return [
            each
            for each in self.connections_by_id().values()
            if sees_all or each["user"] == caller.name
        ]

    def connections_by_id(self) -> dict[int, dict[str, Any]]:
        """All connections, by how the node calls them."""
        infos = sorted(self._clients.connections(), key=lambda info: info.opened_at)
        return {info.connection: self._connection(info) for info in infos}

    def _connection(self, info: ConnectionInfo) -> dict[str, Any]:
        host, port = _host_and_port(info.peer)
        own_host, own_port = _host_and_port(info.name.partition(" -> ")[2])
        return {
            "name": info.name,
            "user_provided_name": info.connection_name,
            "node": self.name,
            "user": info.user,
            "vhost": info.vhost,
            "state": "blocked" if info.is_blocked else "running",
            "type": "network",
            "protocol": "AMQP 0-9-1",
            "ssl": info.is_tls,
            "peer_host": host,
            "peer_port": port,
            "host": own_host,
            "port": own_port,
            "channels": info.channels,
            "connected_at": int(info.opened_at * 1000),
            "client_properties": plain(info.client_properties),
        }

    def details_of(
        self, channel: ChannelState, known: Mapping[int, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The description of a channel, without its consumers.

        Args:
            channel: the channel.
            known: from `connections_by_id`.
        """
        return channel_details(channel, known.get(channel.connection, {}), self.name)

    def close_connection(self, name: str, reason: str) -> bool:
        """Close the connection of that name (320)."""
        return self._clients.close_connection(name, reason)

    def close_connections_of(self, user: str, reason: str) -> None:
        """Close the connections of a user (320)."""
        for info in self._clients.connections():
            if info.user == user:
                self._clients.close_connection(info.name, reason)

    # ---------------------------------------------------------------- users

    def permissions(self) -> list[Mapping[str, Any]]:
        return [permission_object(each) for each in self.node.access.users.permissions()]

    def topic_permissions(self) -> list[Mapping[str, Any]]:
        return [
            topic_permission_object(each) for each in self.node.access.users.topic_permissions()
        ]


def resident_bytes() -> int:
    """Memory of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def open_files() -> int:
    """File descriptors of this process; 0 where the system does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else (address, 0)
