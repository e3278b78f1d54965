"""A private cluster of RabbitMQ nodes; what passes between them passes through proxies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from tests.support.own_server import OwnServer
from tests.support.partitions import Partitions
from tests.support.rabbitmq import RabbitMQ, RabbitMQError
from tests.support.rabbitmq_installed import Installed

_START_TIMEOUT = 180.0


class Cluster(OwnServer):
    """So many nodes of one version, each on ports of its own.

    Args:
        program: which RabbitMQ; 4.0 or newer.
        size: how many nodes.
    """

    def __init__(self, program: Installed, size: int = 3) -> None:
        cookie = uuid4().hex
        self.network = Partitions(size)
        self.nodes = [
            RabbitMQ(program, cookie=cookie, epmd_port=port) for port in self.network.ports
        ]

    def start(self) -> None:
        """Start every node, and let the others join the first."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(timeout=_START_TIMEOUT), self.nodes))
        for node in self.nodes[1:]:
            node.ctl("stop_app")
            node.ctl("join_cluster", self.nodes[0].node_name)
            node.ctl("start_app")

    def close(self) -> None:
        """End every node and remove its data."""
        for node in reversed(self.nodes):
            node.close()
        self.network.close()

    def isolate(self, node: RabbitMQ) -> None:
        """Let nothing pass between `node` and the others until `join`; clients reach it."""
        self.network.isolate(self.nodes.index(node))

    def join(self, node: RabbitMQ) -> None:
        self.network.join(self.nodes.index(node))

    def make_vhost(self) -> str:
        return self.nodes[0].make_vhost()

    def urls(self) -> list[str]:
        """The addresses of all nodes."""
        return [f"amqp://guest:guest@127.0.0.1:{node.port}" for node in self.nodes]

    def members_online(self, vhost: str, queue: str) -> int:
        """The number of online members of a quorum queue, as reported by a running node."""
        for node in self.nodes:
            try:
                found = node.queue(vhost, queue)
            except (OSError, RabbitMQError):
                continue  # this one is down
            if found is not None:
                return len(found.get("online", ()))
        return 0
