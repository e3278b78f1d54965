"""All faults together, on a RabbitMQ or our own server: links are cut, stalled and refused, alarms
raised, the server killed, while handlers fail in every way. Nothing confirmed may be
lost, and what is published through one publication keeps its order.

Once faults stop, each publication is confirmed and each queue handled again within `RESUMES_WITHIN`
seconds. Each lost connection costs repeats of no more than what it had open: deliveries that were
not settled, of which there are `PREFETCH` at most, and publishes that were not confirmed.

    python -m tests.faults.chaos --seconds 300 [--seed 7] [--broker served]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

from broker_client import AckOrNack, Broker, Message, Nack, Republish
from broker_client.errors import PublishError
from tests.support.eventually import eventually
from tests.support.managed import FaultyServer, ManagedServer
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

Handler = Callable[[Message, Any, AckOrNack], Awaitable[None]]

_RATES = {"retried": 150, "forwarded": 80, "ordered": 60}  # publishes a second
_LEAST = 3  # faults at least, also on a slow machine
_KILL_EVERY = 25.0  # seconds, where the server may be killed
_PATIENCE = 180.0  # seconds after the last fault within which everything must end
_TELL_EVERY = 10.0  # seconds
_QUICK = {"min": "20ms", "max": "200ms"}
_RETRY = 0.2  # seconds: the longest of them
_HEARTBEAT = 5.0  # seconds
_CONNECT = 5.0  # seconds a connect may take
_PREFETCHES = {"retried": 50, "forwarded": 100, "ordered": 1, "buried": 100}

PREFETCH = sum(_PREFETCHES.values())
"""Deliveries that may be unsettled at a time, of all subscriptions."""
RESUMES_WITHIN = 2 * _HEARTBEAT + 2 * (_RETRY + _CONNECT)
"""Seconds from the last fault: a dead link is noticed after two heartbeats that are missing (AMQP
0-9-1 §4.2.7), then there is a wait and a connect; twice, for the first one may have begun before
the fault ended."""


def a_config(url: str, vhost: str) -> dict[str, Any]:
    """Three publications, each to a queue of its name; one is the target of a forward."""
    letters = {"options": {"dead_letter_exchange": "dead"}}
    recovery = [
        {"strategy": "republish", "defer": "50ms", "attempts": 2},
        {"strategy": "forward", "publication": "forwarded", "attempts": 1},
        {"strategy": "nack"},
    ]
    options: dict[str, dict[str, Any]] = {
        "retried": {"recovery": recovery},
        "forwarded": {"concurrency": 50, "requeue_defer": _QUICK},
        "ordered": {},
        "buried": {},
    }
    connection = {
        "url": url,
        "vhost": vhost,
        "heartbeat": f"{_HEARTBEAT:g}s",
        "connect_timeout": f"{_CONNECT:g}s",
        "retry": _QUICK,
    }
    return {
        "vhosts": {
            "/": {
                "connection": connection,
                "exchanges": ["work", "dead"],
                "queues": {**dict.fromkeys(_RATES, letters), "buried": None},
                "bindings": [*(f"work[{name}] -> {name}" for name in _RATES), "dead[#] -> buried"],
                "publications": {
                    name: {"exchange": "work", "routing_key": name, "timeout": "10m"}
                    for name in _RATES
                },
                "subscriptions": {
                    name: {"queue": name, "prefetch": _PREFETCHES[name], "retry": _QUICK, **more}
                    for name, more in options.items()
                },
            }
        }
    }


@dataclass
class Report:
    """The result of a run."""

    published: int = 0
    confirmed: set[str] = field(default_factory=set)
    failed: dict[str, PublishError] = field(default_factory=dict)
    handled: dict[str, Counter[str]] = field(default_factory=dict)
    """Queue to message ids, and how often each was acked there."""
    order: list[int] = field(default_factory=list)
    """Numbers of the ordered messages, in order of delivery."""
    faults: Counter[str] = field(default_factory=Counter)
    losses: int = 0
    """Connections that were lost."""
    resent: int = 0
    """Publishes that were sent again, after such a loss."""
    resumed: dict[str, float] = field(default_factory=dict)
    """Seconds from the last fault to the first confirm of each publication published after it, and
    to the first ack in each queue."""

    @property
    def repeats(self) -> int:
        """Acks beyond one of each message: every message ends in one queue."""
        handled = list(self.handled.values())
        return sum(each.total() for each in handled) - len(set[str]().union(*handled))

    @property
    def most_repeats(self) -> int:
        """That the losses of connections explain."""
        return self.losses * PREFETCH + self.resent

    @property
    def slowest(self) -> float:
        """Seconds until all went on after the last fault."""
        return max(self.resumed.values(), default=0.0)

    @property
    def broken(self) -> list[str]:
        """What was promised and not kept."""
        found = [
            (f"{len(self.failed)} publishes failed", self.failed),
            (f"{len(self.lost)} messages are lost", self.lost),
            (f"{len(self.out_of_order)} pairs are out of order", self.out_of_order),
            (
                f"{self.repeats} repeats, {self.most_repeats} at most are due to faults",
                self.repeats > self.most_repeats,
            ),
            (
                f"{self.slowest:.1f} s without progress, {RESUMES_WITHIN:g} s are allowed",
                self.slowest > RESUMES_WITHIN,
            ),
        ]
        return [what for what, is_broken in found if is_broken]

    @property
    def lost(self) -> list[str]:
        """Confirmed messages that were never acked."""
        found = set[str]().union(*self.handled.values())
        return sorted(self.confirmed - found)

    @property
    def out_of_order(self) -> list[tuple[int, int]]:
        """Pairs of neighbouring ordered messages whose first deliveries were reversed."""
        firsts = list(dict.fromkeys(self.order))
        return [(sooner, later) for sooner, later in pairwise(firsts) if sooner > later]

    def __str__(self) -> str:
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.published} published, {len(self.confirmed)} confirmed, "
            f"{len(self.failed)} failed, {len(self.lost)} lost, "
            f"{len(self.out_of_order)} out of order, {self.repeats} repeats (of {self.losses} lost "
            f"connections {self.most_repeats} at most), all went on after {self.slowest:.1f} s (of "
            f"{RESUMES_WITHIN:g}); {faults}"
        )


class Traffic:
    """Publishers and handlers, and their records."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        self.report = Report()
        self._broker = broker
        self._chance = chance
        self._under_way = 0
        self._stopping = False
        self._calm_from: float | None = None
        """Loop time of the last fault."""
        for event in ("disconnect", "consumers_disconnected"):
            broker.on(event, self._count_loss)

    def _count_loss(self, vhost: str, url: str) -> None:
        self.report.losses += 1

    async def subscribe(self) -> None:
        handlers: dict[str, Handler] = {
            "retried": self._fail_often,
            "forwarded": self._fail_seldom,
            "ordered": self._keep_order,
            "buried": self._succeed,
        }
        for name, handler in handlers.items():
            subscription = await self._broker.subscribe(name, handler)
            for event in ("error", "ack_lost", "recovery_failed", "cancelled", "already_settled"):
                subscription.on(event, lambda *args: None)

    async def publish(self, name: str) -> None:
        """Publish through `name` until told to stop."""
        while not self._stopping:
            number = self.report.published
            self.report.published += 1
            message_id = f"{name}-{number}"
            publication = await self._broker.publish(name, number, message_id=message_id)
            self._under_way += 1
            is_calm = self._calm_from is not None
            publication.when_ended(partial(self._end, name, message_id, is_calm))
            await asyncio.sleep(self._chance.random() * 2 / _RATES[name])

    async def resume(self) -> None:
        """Faults are over: wait until each publication and each queue has gone on."""
        self._calm_from = asyncio.get_running_loop().time()
        expected = {f"publish {name}" for name in _RATES} | {f"handle {name}" for name in _RATES}
        resumed = self.report.resumed
        with suppress(AssertionError):
            await eventually(lambda: expected <= resumed.keys(), timeout=_PATIENCE)
        for name in expected - resumed.keys():
            self._went_on(name)

    def _went_on(self, name: str) -> None:
        if self._calm_from is not None:
            now = asyncio.get_running_loop().time()
            self.report.resumed.setdefault(name, now - self._calm_from)

    def stop(self) -> None:
        self._stopping = True

    async def settle_down(self) -> None:
        """Wait until every publish has ended and every confirmed message was acked."""
        await eventually(lambda: not self._under_way, timeout=_PATIENCE)
        with suppress(AssertionError):  # the report tells
            await eventually(lambda: not self.report.lost, timeout=_PATIENCE)
        self.report.resent = self._broker.stats().vhosts["/"].publish_queue.resent

    def _end(self, name: str, message_id: str, is_calm: bool, error: PublishError | None) -> None:
        self._under_way -= 1
        if error is None:
            self.report.confirmed.add(message_id)
            if is_calm:
                self._went_on(f"publish {name}")
        else:
            self.report.failed[message_id] = error

    async def _fail_often(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        draw = self._chance.random()
        if draw < 0.2:
            raise ValueError("no")
        if draw < 0.3:
            await ack_or_nack("later", Nack(requeue=True, defer=0.02))
        elif draw < 0.4:
            await ack_or_nack("never", Republish(immediate_nack=True))
        else:
            if draw < 0.5:
                await asyncio.sleep(self._chance.random() / 5)
            await self._succeed(message, content, ack_or_nack)

    async def _fail_seldom(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await asyncio.sleep(0.001)
        if self._chance.random() < 0.03:
            raise RuntimeError("no")
        await self._succeed(message, content, ack_or_nack)

    async def _keep_order(self, message: Message, content: int, ack_or_nack: AckOrNack) -> None:
        self.report.order.append(content)
        await self._succeed(message, content, ack_or_nack)

    async def _succeed(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        self.report.handled.setdefault(message.queue, Counter())[str(message.message_id)] += 1
        self._went_on(f"handle {message.queue}")


class Faults:
    """Causes a fault from time to time. Args:
    kills: the server is not shared, so it may be killed.
    """

    def __init__(
        self, server: FaultyServer, proxy: Proxy, chance: random.Random, *, kills: bool
    ) -> None:
        self._server, self._proxy, self._chance, self._kills = server, proxy, chance, kills
        self.done: Counter[str] = Counter()
        self.on_fault: Callable[[], None] = lambda: None
        self._kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "cut": self._cut,
            "fin": self._fin,
            "stall": self._stall,
            "refuse": self._refuse,
            "close": lambda: asyncio.to_thread(server.close_connections),
            "alarm": self._alarm,
        }

    async def run(self, seconds: float) -> None:
        """Cause faults for `seconds`, and at least a few."""
        end = time.monotonic() + seconds
        kill_at = time.monotonic() + _KILL_EVERY if self._kills else float("inf")
        while time.monotonic() < end or self.done.total() < _LEAST:
            await asyncio.sleep(self._chance.uniform(0.5, 3.0))
            if time.monotonic() < kill_at:
                kind = self._chance.choice(list(self._kinds))
                self.done[kind] += 1
                await self._kinds[kind]()
            else:
                await self._end_server()
                kill_at = time.monotonic() + _KILL_EVERY
            self.on_fault()

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _fin(self) -> None:
        self._proxy.fin()

    async def _stall(self) -> None:
        self._proxy.stall()
        await asyncio.sleep(self._chance.uniform(0.2, 3.0))
        self._proxy.resume()

    async def _refuse(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        self._proxy.accept()

    async def _alarm(self) -> None:
        await asyncio.to_thread(self._server.block)
        try:
            await asyncio.sleep(self._chance.uniform(0.2, 1.0))
        finally:
            await asyncio.to_thread(self._server.unblock)

    async def _end_server(self) -> None:
        how = self._chance.choice(["kill", "stop"])
        self.done[how] += 1
        await asyncio.to_thread(self._server.sync)
        await asyncio.to_thread(getattr(self._server, how))
        await asyncio.to_thread(self._server.start)


async def run(
    server: FaultyServer,
    vhost: str,
    seconds: float,
    chance: random.Random,
    *,
    kills: bool,
    tell: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run traffic and faults for `seconds`, then wait until everything has ended.

    Args:
        server: the target of the faults.
        vhost: an empty one.
        seconds: of faults.
        chance: source of randomness.
        kills: the server is not shared, and is also killed or stopped.
        tell: called with the result so far after each fault.
    """
    async with Proxy("127.0.0.1", server.port) as proxy:
        url = f"amqp://guest:guest@127.0.0.1:{proxy.port}"
        async with Broker.create(a_config(url, vhost)) as broker:
            broker.on("error", lambda error, vhost: None)
            traffic = Traffic(broker, random.Random(chance.random()))
            await traffic.subscribe()
            publishers = [asyncio.create_task(traffic.publish(name)) for name in _RATES]
            faults = Faults(server, proxy, random.Random(chance.random()), kills=kills)
            faults.on_fault = lambda: tell(traffic.report)
            traffic.report.faults = faults.done
            try:
                await faults.run(seconds)
                await traffic.resume()
            finally:
                traffic.stop()
                await asyncio.gather(*publishers)
            await traffic.settle_down()
            return traffic.report


def _server(broker: str, folder: str) -> FaultyServer:
    return ManagedServer(Path(folder) / "broker.db") if broker == "served" else RabbitMQ()


def main() -> int:
    """The command; status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--broker", choices=["rabbitmq", "served"], default="rabbitmq")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    console = Console(highlight=False)
    console.print(f"seed {options.seed}, {options.seconds:g} s")
    logging.disable(logging.WARNING)  # each lost link would be logged
    began = told = time.monotonic()

    def tell(report: Report) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_EVERY:
            told = time.monotonic()
            confirmed, faults = len(report.confirmed), report.faults.total()
            console.print(f"{told - began:5.0f} s: {confirmed:,} confirmed, {faults} faults")

    with tempfile.TemporaryDirectory() as folder, _server(options.broker, folder) as server:
        vhost, chance = server.make_vhost(), random.Random(options.seed)
        report = asyncio.run(run(server, vhost, options.seconds, chance, kills=True, tell=tell))
    console.print(str(report), soft_wrap=True)
    for each in report.broken:
        console.print(f"BROKEN: {each}")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
