"""A node that works until it is killed, and logs each command and its confirm.

    python -m tests.faults.crash_child PATH LOG LIFE        works until it dies
    python -m tests.faults.crash_child PATH LOG drain       prints what is left, as JSON

The log survives ``kill -9``, since the kernel has what was written. Its lines:

    p ID          publish begun                c ID          publish confirmed
    s QUEUE ID    ack begun                    S QUEUE ID    that ack is safe
    n QUEUE ID    reject begun                 N QUEUE ID    that reject is safe
    r QUEUE ID    redelivered                  d QUEUE       declared, and bound by its name

Transient messages are not logged: none may be left after a kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from functools import partial

from broker_client.core.settings import EngineSettings
from broker_client.message import PERSISTENT, TRANSIENT, Delivery, Outgoing, Properties
from broker_client.transport.base import ConsumerCallbacks
from broker_client.transport.embedded.channel import EmbeddedChannel
from broker_client.transport.embedded.nodes import EmbeddedNodes

QUEUES = ("left", "right")
DEAD = "dead"
_TO_DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
_WINDOW = 400  # publishes without a confirm
_MEMORY = 64 * 1024  # so small that most messages are on disk only


class Worker:
    """Publishes, consumes, and logs both."""

    def __init__(self, channel: EmbeddedChannel, log: int, life: str) -> None:
        self._channel, self._log, self._life = channel, log, life
        self._random = random.Random(f"{life} {os.getpid()}")
        self._ids: dict[int, str] = {}
        """Of persistent messages without a confirm, by their number."""
        self._published = self._confirmed = 0
        self._room = asyncio.Event()
        channel.on_confirm = self._on_confirm

    def note(self, *lines: str) -> None:
        os.write(self._log, "".join(f"{line}\n" for line in lines).encode())

    def _on_confirm(self, first: int, last: int, acked: bool) -> None:
        assert acked, "nothing here refuses a publish"
        known = (seq for seq in range(first, last + 1) if seq in self._ids)
        self.note(*(f"c {self._ids.pop(seq)}" for seq in known))
        self._confirmed = last
        self._room.set()

    async def publish(self) -> None:
        while True:
            batch, begun = [], []
            for _ in range(self._random.randrange(1, 60)):
                self._published += 1
                name = f"{self._life}-{self._published}"
                mode = TRANSIENT if self._random.random() < 0.2 else PERSISTENT
                if mode == PERSISTENT:
                    self._ids[self._published] = name
                    begun.append(f"p {name}")
                body = name.encode().ljust(self._random.choice([40, 256, 2000]))
                batch.append(Outgoing("amq.fanout", "", body, Properties(delivery_mode=mode)))
            self.note(*begun)
            await self._channel.publish(batch)
            await asyncio.sleep(0)
            if self._random.random() < 0.03:
                await self._declare(f"declared-{self._life}-{self._published}")
            while self._published - self._confirmed > _WINDOW:
                self._room.clear()
                await self._room.wait()

    async def _declare(self, queue: str) -> None:
        await self._channel.declare_queue(queue)
        await self._channel.bind_queue(queue, "amq.direct", queue)
        self.note(f"d {queue}")

    def on_delivery(self, queue: str, delivery: Delivery) -> None:
        name = delivery.body.decode().strip()
        if delivery.redelivered:
            self.note(f"r {queue} {name}")
        chance = self._random.random()
        tag = delivery.delivery_tag
        if chance < 0.6:
            self.note(f"s {queue} {name}")
            self._channel.ack(tag)
            self._once_safe(f"S {queue} {name}")
        elif chance < 0.7 and queue == "left":
            self.note(f"n {queue} {name}")
            self._channel.nack(tag, requeue=False)
            self._once_safe(f"N {queue} {name}")
        elif chance < 0.8:
            self._channel.nack(tag, requeue=True)
        elif chance < 0.9:
            self._channel.requeue_later(tag, 0.01)
        # else it stays in flight

    def _once_safe(self, line: str) -> None:
        self._channel._node.call_after_effects(lambda: self.note(line))


async def work(path: str, log: int, life: str) -> None:
    nodes = EmbeddedNodes(settings=settings())
    link = await nodes.connector(f"embedded://{path}", "/").connect(timeout=30)
    channel = await link.open_channel(confirm=True)
    for queue in QUEUES:
        await channel.declare_queue(queue, arguments=_TO_DEAD if queue == "left" else None)
        await channel.bind_queue(queue, "amq.fanout", "")
    await channel.declare_queue(DEAD)
    worker = Worker(channel, log, life)
    await channel.qos(200)
    for queue in (*QUEUES, DEAD):
        deliver = partial(worker.on_delivery, queue)
        callbacks = ConsumerCallbacks(deliver, lambda tag: None, lambda tag: None)
        await channel.consume(queue, callbacks)
    await worker.publish()


async def drain(path: str) -> dict[str, dict[str, list[str]] | list[str]]:
    nodes = EmbeddedNodes(settings=settings())
    link = await nodes.connector(f"embedded://{path}", "/").connect(timeout=30)
    channel = await link.open_channel()
    left: dict[str, list[str]] = {}
    for queue in (*QUEUES, DEAD):
        await channel.declare_queue(queue, arguments=_TO_DEAD if queue == "left" else None)
        left[queue] = found = []
        node = channel._node
        node.run_deferred(queue)
        while (delivery := await channel.get(queue)) is not None:
            found.append(delivery.body.decode().strip())
    vhost = channel._node.engine.state.vhosts["/"]
    declared = [name for name in vhost.queues if vhost.route("amq.direct", (name,), {})]
    await link.close()
    await nodes.close()
    return {"left": left, "declared": declared}


def settings() -> EngineSettings:
    return EngineSettings(memory_limit=_MEMORY)


def main() -> None:
    path, log_path, life = sys.argv[1:]
    if life == "drain":
        print(json.dumps(asyncio.run(drain(path))))  # noqa: T201
        return
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    asyncio.run(work(path, log, life))


if __name__ == "__main__":
    main()
