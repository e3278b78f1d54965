"""Measures how long an application cannot publish or consume after its broker was killed.

    python -m bench.failover [--nodes 3] [--kills 8] [--every 10]

Starts private RabbitMQ servers, connects one Broker to all their addresses, publishes steadily and
consumes. Every so often the server in use is killed (SIGKILL) and started again. Prints, for each
kill, the seconds until the first confirm and until the first handled message after it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.machine import facts
from broker_client import AckOrNack, Broker, Message
from tests.support.rabbitmq import RabbitMQ

RATE = 50  # publishes a second


def a_config(servers: list[RabbitMQ]) -> dict[str, Any]:
    return {
        "vhosts": {
            "/": {
                "connections": [server.url() for server in servers],
                "queues": ["failover"],
                "publications": {"p": {"queue": "failover"}},
                "subscriptions": {"s": {"queue": "failover"}},
            }
        }
    }


class Probe:
    """Publishes steadily, consumes, and records the times of confirms and handled messages."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.confirmed: asyncio.Queue[float] = asyncio.Queue()
        self.handled: asyncio.Queue[float] = asyncio.Queue()
        self.count = 0
        self.failed = 0
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        await self._broker.subscribe("s", self._handle)
        while True:
            task = asyncio.create_task(self._publish())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(1 / RATE)

    async def _publish(self) -> None:
        try:
            await (await self._broker.publish("p", b"x"))
        except Exception:  # noqa: BLE001 - counted; a bench goes on
            self.failed += 1
        else:
            self.count += 1
            self.confirmed.put_nowait(time.perf_counter())

    async def _handle(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        self.handled.put_nowait(time.perf_counter())
        await ack_or_nack()

    async def ended(self) -> None:
        await asyncio.gather(*self._under_way)


async def _first_after(times: asyncio.Queue[float], since: float) -> float:
    """Seconds from `since` to the first of `times` after it."""
    while (found := await times.get()) <= since:
        pass
    return found - since


async def outages(servers: list[RabbitMQ], kills: int, every: float) -> list[tuple[float, float]]:
    """Kill the server in use `kills` times, `every` seconds apart.

    Returns, for each, the seconds without a confirm and without a handled message.
    """
    found: list[tuple[float, float]] = []
    async with Broker.create(a_config(servers)) as broker:
        broker.on("error", lambda error, vhost: None)
        probe = Probe(broker)
        running = asyncio.create_task(probe.run())
        for _ in range(kills):
            await asyncio.sleep(every)
            address = broker.stats().vhosts["/"].url
            used = next(each for each in servers if f":{each.port}/" in address)
            await asyncio.to_thread(used.kill)
            killed = time.perf_counter()
            found.append(
                (
                    await _first_after(probe.confirmed, killed),
                    await _first_after(probe.handled, killed),
                )
            )
            await asyncio.to_thread(used.start)
        running.cancel()
        await asyncio.wait([running])
        await probe.ended()
        print(f"{probe.count} publishes confirmed, {probe.failed} failed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=3, help="servers to start")
    parser.add_argument("--kills", type=int, default=8, help="how often the one in use is killed")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between kills")
    options = parser.parse_args()
    servers = [RabbitMQ() for _ in range(options.nodes)]
    try:
        for server in servers:
            server.start()
        found = asyncio.run(outages(servers, options.kills, options.every))
    finally:
        for server in servers:
            server.close()
    table = Table("kill", "seconds to the first confirm", "to the first handled message")
    for number, (confirm, handled) in enumerate(found, 1):
        table.add_row(str(number), f"{confirm:.2f}", f"{handled:.2f}")
    for name, choose in (("median", statistics.median), ("longest", max)):
        table.add_row(name, *(f"{choose(column):.2f}" for column in zip(*found, strict=True)))
    console = Console()
    console.print(table)
    console.print(facts())


if __name__ == "__main__":
    main()
