"""A Broker for one test, and a check for leaks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from broker_client.broker import Broker
from broker_client.config import BrokerConfig, ConnectionConfig
from broker_client.config.loader import Source, load_config
from broker_client.connection.substitutes import Substitutes
from broker_client.runtime.slotted import slotted
from broker_client.testing.faults import Faults
from broker_client.testing.recorder import Recorder
from broker_client.testing.virtual_time import LoopClock, VirtualTimeLoop

_GRACE = 1.0  # seconds to wait until a test's last message is settled


@slotted
class Harness:
    """State that the fixtures of one test share."""

    broker: Broker
    recorder: Recorder
    faults: Faults


@asynccontextmanager
async def harness(source: Source, url: str) -> AsyncIterator[Harness]:
    """A Broker with the configuration `source`, on the broker at `url`.

    Every connection leads to `url`. On ``embedded://`` it is the test's own. On another broker
    the declared queues are purged before, and all that is declared is deleted afterwards.

    Raises:
        AssertionError: at the end, tasks or unsettled messages are left.
    """
    faults = Faults()
    loop = asyncio.get_running_loop()
    clock = LoopClock(loop) if isinstance(loop, VirtualTimeLoop) else None
    before = asyncio.all_tasks()
    config = _on(load_config(source), url)
    async with Broker.create(config, substitutes=Substitutes(clock, faults.connector)) as broker:
        is_own = url.startswith("embedded://")
        if not is_own:
            await broker.purge()
        yield Harness(broker, Recorder(broker), faults)
        left = await _unsettled(broker)
        if not is_own:
            await broker.nuke()
    left += [
        f"task {task.get_name()!r}: {task.get_coro()!r}"
        for task in asyncio.all_tasks() - before - {asyncio.current_task()}
    ]
    assert not left, "left behind by the test:\n" + "\n".join(left)


def _on(config: BrokerConfig, url: str) -> BrokerConfig:
    def moved(name: str) -> Any:
        connection = ConnectionConfig.model_validate({"url": url}).for_vhost(name)
        return config.vhosts[name].model_copy(update={"connections": (connection,)})

    return config.model_copy(update={"vhosts": {name: moved(name) for name in config.vhosts}})


async def _unsettled(broker: Broker) -> list[str]:
    """A line for each subscription with unsettled messages."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _GRACE
    while True:
        held = [(s.name, s.stats().unsettled) for s in broker.subscriptions if s.stats().unsettled]
        if not held or loop.time() >= deadline:
            return [
                f"subscription {name!r}: {count} unsettled; each needs its `await ack_or_nack()`"
                for name, count in held
            ]
        await asyncio.sleep(0.01)
