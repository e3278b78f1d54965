"""A node on ports of its own, with the management API and the dashboard, in this event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from broker_client.config.listen import parse_listen_address
from broker_client.config.server import ServerConfig
from broker_client.dashboard.api import ManagementApi
from broker_client.dashboard.application import beside_api, make_application
from broker_client.dashboard.dashboard import Dashboard
from broker_client.node.making import make_node
from broker_client.node.node import Node
from broker_client.server.http.application import as_monitoring
from broker_client.server.http.application import make_application as make_api
from broker_client.server.http.listener import HttpListener
from broker_client.server.http.management import Management
from broker_client.server.server import Server


@dataclass(frozen=True)
class ServedNode:
    """What runs, and where it listens on 127.0.0.1."""

    node: Node
    dashboard: Dashboard
    amqp_port: int
    url: str
    """Of the management API."""


@contextlib.asynccontextmanager
async def served_node(base_path: str = "", file: Path | None = None) -> AsyncIterator[ServedNode]:
    """Serve a node in memory, or with `file`, until the block ends; the user guest has the vhost
    `/`."""
    node = Node() if file is None else make_node(str(file), durable=True)
    await node.recover()
    node.administration.add_vhost("/")
    node.access.add_default_user()
    server = Server(node, [parse_listen_address("amqp://127.0.0.1:0")], ServerConfig())
    await server.start()
    management = Management(node, server, [])
    api = make_api(management)
    dashboard = Dashboard(
        ManagementApi.in_process(api),
        ManagementApi.in_process(as_monitoring(api, management)),
        connect=server.connect_within,
        base_path=base_path,
    )
    pages = beside_api(make_application(dashboard), api)
    listener = HttpListener(management, "127.0.0.1", 0, pages)
    await listener.start()
    dashboard.start()
    try:
        yield ServedNode(node, dashboard, server.addresses[0].port, listener.url)
    finally:
        await dashboard.stop()
        await listener.stop()
        await server.stop()
        await node.close()
