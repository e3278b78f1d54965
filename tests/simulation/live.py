"""The plans of the simulation on a real broker, in real time: so the promises are the same truth.

Cuts and silences come from proxies between the applications and the broker. What the broker's own
machine suffers is left out.

python -m tests.simulation.live --seeds 300
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from broker_client.config.loader import load_config
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.simulation.application import DEAD, WORK, Application, a_config
from tests.simulation.plan import CLIENTS, Plan, Step
from tests.simulation.promises import ORDERED, Promises
from tests.support.eventually import eventually
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

FAULTS = ("cut", "silence")
LIVENESS = 60.0
"""Seconds, from the last fault, within which all is confirmed, handled and settled."""
_SPEED = 10.0  # seconds of a plan in one of ours
_QUIET = 1.2  # seconds: longer than any handler, and any delay before a requeue
_AT_A_TIME = 8


class LiveRun:
    """One plan on a broker."""

    def __init__(self, plan: Plan, port: int, vhost: str) -> None:
        self.plan = plan
        self.promises = Promises(hops=plan.variant.hops)
        self._port, self._vhost = port, vhost
        self._applications: dict[str, Application] = {}
        self._proxies: dict[str, Proxy] = {}

    async def run(self) -> None:
        """
        Raises:
            BrokenPromiseError: something was promised and not kept.
        """
        async with AsyncExitStack() as stack:
            for name in CLIENTS:
                self._proxies[name] = proxy = Proxy("127.0.0.1", self._port)
                await stack.enter_async_context(proxy)
                url = f"amqp://guest:guest@127.0.0.1:{proxy.port}"
                config = load_config(a_config(url, self._vhost, self.plan.variant))
                self._applications[name] = Application(
                    f"{name}1",
                    config,
                    self.promises,
                    salt=self.plan.seed,
                    variant=self.plan.variant,
                    pace=1.0 / _SPEED,
                )
            async with asyncio.TaskGroup() as group:
                for application in self._applications.values():
                    group.create_task(application.run())
                try:
                    await self._follow_plan()
                    await self._rest()
                finally:
                    for application in self._applications.values():
                        application.stop()
        left = await self._left()
        if left:
            self.promises.break_(f"left in queues: {left}")
        self.promises.check_end(sum(each.losses for each in self._applications.values()))

    async def _follow_plan(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for step in self.plan.steps:
            await asyncio.sleep(began + step.at / _SPEED - loop.time())
            self._do(step)
        await asyncio.sleep(began + self.plan.end / _SPEED - loop.time())

    def _do(self, step: Step) -> None:
        client = step.arguments[0]
        if step.name == "publish":
            _, publication, count = step.arguments
            loop = asyncio.get_running_loop()
            self._applications[client].publish(publication, count, loop)
        elif step.name == "cut":
            self._proxies[client].cut()
        else:
            self._proxies[client].stall()
            seconds = step.seconds / _SPEED
            asyncio.get_running_loop().call_later(seconds, self._proxies[client].resume)

    async def _rest(self) -> None:
        try:
            await eventually(self._is_done, LIVENESS)
            await eventually(self._is_quiet, LIVENESS)
        except AssertionError:
            unfinished = ", ".join(self.promises.unfinished()[:5])
            self.promises.break_(f"no rest {LIVENESS:g} s after the last fault: {unfinished}")

    def _is_done(self) -> bool:
        if any(each.is_publishing for each in self._applications.values()):
            return False
        return bool(self.promises.broken) or not self.promises.unfinished()

    async def _is_quiet(self) -> bool:
        """Is nothing left, and nobody busy with a repeat of something?"""
        before = self.promises.handled.total()
        await asyncio.sleep(_QUIET)
        return await self._left() == 0 and self.promises.handled.total() == before

    async def _left(self) -> int:
        """Messages in the queues that nobody has taken."""
        connector = NetworkConnector(
            f"amqp://guest:guest@127.0.0.1:{self._port}", vhost=self._vhost
        )
        link = await connector.connect(timeout=30.0)
        try:
            channel = await link.open_channel()
            states = [await channel.check_queue(name) for name in (WORK, ORDERED, DEAD)]
            return sum(state.message_count for state in states)
        finally:
            await link.close()


async def run_all(
    server: RabbitMQ, seeds: range, tell: Callable[[int], None] = lambda done: None
) -> list[str]:
    """Run the plan of each seed, some at a time; returns what was wrong."""
    wrong: list[str] = []
    free = asyncio.Semaphore(_AT_A_TIME)
    done = 0

    async def one(seed: int) -> None:
        nonlocal done
        async with free:
            vhost = await asyncio.to_thread(server.make_vhost)
            try:
                await LiveRun(Plan.drawn(seed, FAULTS), server.port, vhost).run()
            except Exception as error:  # noqa: BLE001 - told with its seed
                wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
            await asyncio.to_thread(server.delete_vhost, vhost)
            done += 1
            tell(done)

    async with asyncio.TaskGroup() as group:
        for seed in seeds:
            group.create_task(one(seed))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.live")
    parser.add_argument("--seeds", type=int, default=300, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    options = parser.parse_args()
    logging.disable()  # every loss of a link is told
    began = time.monotonic()
    with RabbitMQ() as server:
        version = ".".join(map(str, server.version))
        seeds = range(options.first, options.first + options.seeds)
        wrong = asyncio.run(run_all(server, seeds))
    for each in wrong:
        print(each)  # noqa: T201 - this is a command
    count, taken = len(seeds), time.monotonic() - began
    print(f"{count} plans on RabbitMQ {version} in {taken:.0f} s, {len(wrong)} failed")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
