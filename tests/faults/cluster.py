"""A cluster of three whose nodes are restarted, killed, stopped and cut off from the others, one
after the other, under load, with quorum queues and a stream. Nothing confirmed may be lost; how
long nothing was confirmed is measured.

    python -m tests.faults.cluster --seconds 300 [--seed 7]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console

from broker_client import Broker
from broker_client.errors import ChannelClosedError
from tests.faults.app import App, a_config, drained
from tests.support.eventually import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.rabbitmq_cluster import Cluster
from tests.support.rabbitmq_installed import chosen

KINDS = ("restart", "kill", "pause", "partition")
"""Stop in order, SIGKILL, SIGSTOP for longer than two heartbeats, and for as long nothing passes
between the node and the others, while clients reach it."""

PAUSE = 12.0
"""Seconds that the last two take."""
_QUEUES = ("work", "record")
_STREAM = "history"
_BATCH, _EVERY = 5, 0.02  # messages, seconds
_PRECONDITION_FAILED = 406
_PATIENCE = 120.0  # seconds within which everything must end


def quorum_config(urls: Sequence[str], vhost: str) -> dict[str, Any]:
    """The application's configuration, with quorum queues and the addresses of all nodes."""
    config = a_config(urls[0], vhost, timeout="10m")
    made = config["vhosts"][vhost]
    connection = made.pop("connection")
    made["connections"] = [{**connection, "url": url} for url in urls]
    for queue in made["queues"].values():
        queue.setdefault("options", {})["arguments"] = {"x-queue-type": "quorum"}
    made["queues"][_STREAM] = {"options": {"arguments": {"x-queue-type": "stream"}}}
    made["bindings"].append(f"orders[order.#] -> {_STREAM}")
    return config


@dataclass
class Report:
    """The result of a run."""

    published: int = 0
    connects: int = 0
    """Links of the publishers, one after the other."""
    lost: list[str] = field(default_factory=list)
    unhandled: list[str] = field(default_factory=list)
    lost_of_stream: list[str] = field(default_factory=list)
    in_order: bool = True
    """Each publication is in its order in the quorum queue that nobody reads, repeats apart."""
    outages: dict[str, list[float]] = field(default_factory=dict)
    """Kind of fault to the longest time without a confirm, in seconds, of each."""

    @property
    def is_good(self) -> bool:
        return self.in_order and not (self.lost or self.lost_of_stream or self.unhandled)

    def __str__(self) -> str:
        outages = "; ".join(
            f"{kind}: {', '.join(f'{each:.1f} s' for each in times)}"
            for kind, times in self.outages.items()
        )
        return (
            f"{self.published} published and confirmed, {len(self.lost)} lost, "
            f"{len(self.lost_of_stream)} lost of the stream, "
            f"{'in order' if self.in_order else 'OUT OF ORDER'}, "
            f"{len(self.unhandled)} never handled, {self.connects} connects; "
            f"longest time without a confirm: {outages}"
        )


class _Confirms:
    """The longest time between two confirms."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._longest = 0.0

    def seen(self) -> None:
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now

    def take(self) -> float:
        """The longest since the last call."""
        self.seen()
        longest, self._longest = self._longest, 0.0
        return longest


async def run(
    cluster: Cluster,
    vhost: str,
    faults: Sequence[tuple[str, RabbitMQ | None]],
    *,
    pause: float = PAUSE,
) -> Report:
    """Publish and consume during `faults`, one after the other.

    Args:
        cluster: whose nodes get the faults.
        vhost: an empty one.
        faults: each a kind and a node; None is the node that the publishers are connected to.
        pause: seconds that a stopped node is stopped, and one that is cut off is cut off.
    """
    report, confirms = Report(), _Confirms()
    async with Broker.create(quorum_config(cluster.urls(), vhost)) as broker:
        broker.on("error", lambda error, vhost: None)
        app = App(broker)
        seen = 0

        def progress() -> None:
            nonlocal seen
            if len(app.ends) > seen:
                seen = len(app.ends)
                confirms.seen()

        app.on_progress = progress
        await app.consume()
        publishing = asyncio.create_task(_publish(app))
        try:
            await eventually(lambda: len(app.ends) > 100, timeout=_PATIENCE)
            for kind, node in faults:
                await _all_members_online(cluster, vhost)
                confirms.take()
                await _strike(cluster, kind, node or _in_use(cluster, broker, vhost), pause)
                await _all_members_online(cluster, vhost)
                report.outages.setdefault(kind, []).append(confirms.take())
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
        for publication in app.publications:
            await publication
        await app.all_handled(timeout=_PATIENCE)
        app.check_ends()
        published = {each.message_id for each in app.publications}
        report.published = len(published)
        report.connects = broker.stats().vhosts[vhost].connects
        report.unhandled = sorted(published - set(app.handled))
    record = await drained(cluster.nodes[0].url(), vhost, "record")
    report.lost = sorted(published - set(record))
    try:
        app.check_record(record)
    except AssertionError:
        report.in_order = False
    history = await _history(cluster, vhost, len(published))
    report.lost_of_stream = sorted(published - set(history))
    return report


async def _history(cluster: Cluster, vhost: str, least: int) -> list[str]:
    """Read the stream at the first node, as soon as that has a running replica of it again."""
    found: list[str] = []

    async def read() -> bool:
        try:
            read = drained(cluster.nodes[0].url(), vhost, _STREAM, offset="first", least=least)
            found.extend(await read)
        except ChannelClosedError as error:
            if error.reply_code != _PRECONDITION_FAILED:
                raise
            return False
        return True

    await eventually(read, timeout=_PATIENCE, message="a replica of the stream")
    return found


def _in_use(cluster: Cluster, broker: Broker, vhost: str) -> RabbitMQ:
    url = broker.stats().vhosts[vhost].url
    return next(node for node in cluster.nodes if f":{node.port}/" in url)


async def _publish(app: App) -> None:
    while True:
        await app.publish(_BATCH)
        await asyncio.sleep(_EVERY)


async def _all_members_online(cluster: Cluster, vhost: str) -> None:
    """Wait until every queue has a majority without the node."""

    async def online() -> bool:
        counts = [
            await asyncio.to_thread(cluster.members_online, vhost, queue) for queue in _QUEUES
        ]
        return min(counts) == len(cluster.nodes)

    await eventually(online, timeout=_PATIENCE, message="every member of every queue")


async def _strike(cluster: Cluster, kind: str, node: RabbitMQ, pause: float) -> None:
    if kind in ("restart", "kill"):
        await asyncio.to_thread(node.stop if kind == "restart" else node.kill)
        await asyncio.to_thread(node.start)
        return
    strikes: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "pause": (node.pause, node.resume),
        "partition": (partial(cluster.isolate, node), partial(cluster.join, node)),
    }
    strike, undo = strikes[kind]
    await asyncio.to_thread(strike)
    try:
        await asyncio.sleep(pause)
    finally:
        await asyncio.to_thread(undo)


def main() -> int:
    """The command; status 1 when something was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.cluster", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    console = Console(highlight=False)
    program = chosen("4")
    assert program is not None
    console.print(f"RabbitMQ {program}, seed {options.seed}, {options.seconds:g} s")
    logging.disable(logging.WARNING)  # each lost link would be logged
    chance, failed = random.Random(options.seed), False
    with Cluster(program) as cluster:
        end = time.monotonic() + options.seconds
        while True:
            nodes = [*cluster.nodes, None]
            faults = [(chance.choice(KINDS), chance.choice(nodes)) for _ in range(3)]
            report = asyncio.run(run(cluster, cluster.make_vhost(), faults))
            console.print(str(report), soft_wrap=True)
            failed = failed or not report.is_good
            if time.monotonic() > end:
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
