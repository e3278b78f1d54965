"""Measures how long RabbitMQ takes to elect another leader for a quorum queue.

    python -m bench.elections [--times 3]

A cluster of three nodes. The node of the queue's leader is stopped (SIGSTOP), or cut off from the
other two, while a publisher that is connected to another node goes on. Prints the longest time
without a confirm: no client can be faster, wherever it is connected.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import facts
from broker_client import Broker
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.rabbitmq_cluster import Cluster
from tests.support.rabbitmq_installed import chosen

QUEUE = "elections"
PAUSE = 15.0  # seconds that the node is stopped, or cut off
_AFTER = 10.0  # seconds of publishing once it is back
_PATIENCE = 60.0  # seconds for the nodes to see each other again


def a_config(url: str, vhost: str) -> dict[str, Any]:
    arguments = {"x-queue-type": "quorum", "x-queue-leader-locator": "client-local"}
    return {
        "vhosts": {
            vhost: {
                "connection": {"url": url, "heartbeat": "60s"},
                "queues": {QUEUE: {"options": {"arguments": arguments}}},
                "publications": {"p": {"queue": QUEUE, "timeout": "5m"}},
            }
        }
    }


async def outage(cluster: Cluster, strike: Callable[[], None], undo: Callable[[], None]) -> float:
    """The longest time between two confirms, in seconds, while the first node is struck."""
    leader = cluster.nodes[0]
    vhost = cluster.make_vhost()
    async with Broker.create(
        a_config(cluster.urls()[0], vhost)
    ):  # which leads what is declared there
        await eventually(partial(_leads, leader, vhost), timeout=_PATIENCE)
    async with Broker.create(a_config(cluster.urls()[1], vhost)) as broker:
        broker.on("error", lambda error, vhost: None)
        striking = asyncio.create_task(_struck(strike, undo))
        longest, last = 0.0, time.perf_counter()
        while not striking.done():
            await (await broker.publish("p", b"x"))
            longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
        await striking
    return longest


async def _leads(node: RabbitMQ, vhost: str) -> bool:
    """Has the queue all of its members, and its leader at `node`?"""
    found = await asyncio.to_thread(node.queue, vhost, QUEUE) or {}
    return len(found.get("online", ())) == 3 and found["leader"] == node.node_name


async def _struck(strike: Callable[[], None], undo: Callable[[], None]) -> None:
    await asyncio.sleep(1.0)  # of publishing before
    await asyncio.to_thread(strike)
    try:
        await asyncio.sleep(PAUSE)
    finally:
        await asyncio.to_thread(undo)
    await asyncio.sleep(_AFTER)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=3, help="of each")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # what does not answer would be logged
    program = chosen("4")
    if program is None:
        parser.error("needs RabbitMQ 4: run scripts/install-servers as root")
    table = Table("the leader's node is", "seconds without a confirm on another node")
    with Cluster(program) as cluster:
        node = cluster.nodes[0]
        strikes: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
            "stopped (SIGSTOP)": (node.pause, node.resume),
            "cut off": (partial(cluster.isolate, node), partial(cluster.join, node)),
        }
        for name, (strike, undo) in strikes.items():
            found = [asyncio.run(outage(cluster, strike, undo)) for _ in range(options.times)]
            table.add_row(name, ", ".join(f"{each:.1f}" for each in sorted(found)))
    console = Console()
    console.print(table)
    console.print(f"RabbitMQ {program}; {facts()}")


if __name__ == "__main__":
    main()
