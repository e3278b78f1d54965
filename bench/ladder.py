"""What one publish with its outcome costs on the built-in broker, layer by layer.

    python -m bench.ladder
    python -m bench.ladder --rounds 200

Microseconds of processor a message, the quickest fifth of many interleaved rounds. Each step of the
first table does what the one before it does, and one layer more; the first is a program of its own:
the least that keeps the promises of a publish. The second table has the parts of what a file adds:
records, rows and SQLite each measured alone, the rest by what is missing to the whole (the thread,
its start, its answers, and both waiting for the interpreter's lock). The collector of garbage is
off in both; the third table has what it takes where many publications are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any

from bench.cpu import BODY, IN_MEMORY, config
from broker_client import Broker
from broker_client.core.effects import Effect
from broker_client.core.engine import Engine
from broker_client.core.records import RECORDS
from broker_client.core.settings import EngineSettings
from broker_client.message import PERSISTENT, Outgoing, Properties
from broker_client.publication import Publication
from broker_client.publishing.message_ids import new_message_id
from broker_client.store.batch import Batch, QueueIds
from broker_client.store.sqlite import StoreFile

COUNT = 2_000  # messages a round
AT_ONCE = 200  # in one command of a channel, as a sender does it
WHOLE = "awaiting the Publication"
HELD = 20_000  # publications at once, for what the collector takes

Step = Callable[[], Awaitable[None]]


class Least:
    """A publish of the least program; awaiting it gives its id and its seconds."""

    __slots__ = ("deadline", "ended_at", "message", "started", "waiter")

    def __init__(self, message: tuple[Any, ...], started: float) -> None:
        self.message, self.started, self.deadline = message, started, started + 30.0
        self.ended_at: float | None = None
        self.waiter: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, tuple[str, float]]:
        if self.ended_at is None:
            self.waiter = asyncio.get_running_loop().create_future()
            yield from self.waiter
        assert self.ended_at is not None
        return self.message[3], self.ended_at - self.started


class LeastBroker:
    """A queue of one process: ids, deadlines, order, a ledger, a batch a turn. Nothing else: no
    configuration, routing, limits, listeners, returns, refusals, lost links, consumers."""

    def __init__(self) -> None:
        self._waiting: list[Least] = []
        self._deadlines: deque[Least] = deque()
        self._ledger: dict[int, Least] = {}
        self.queue: deque[list[Any]] = deque()

    async def publish(self, routing_key: str, body: bytes, **options: Any) -> Least:
        loop = asyncio.get_running_loop()
        message = ("", routing_key, body, new_message_id(), PERSISTENT)
        published = Least(message, loop.time())
        if not self._waiting:
            loop.call_soon(self._send)
        self._waiting.append(published)
        self._deadlines.append(published)
        return published

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._ledger.update(enumerate(waiting))
        self.queue.extend([[each.message, False, 0] for each in waiting])
        now = asyncio.get_running_loop().time()
        for published in [self._ledger.pop(seq) for seq in range(len(waiting))]:
            published.ended_at = now
            if published.waiter is not None:
                published.waiter.set_result(None)
        while self._deadlines and self._deadlines[0].ended_at is not None:
            self._deadlines.popleft()


def batches(messages: list[Outgoing]) -> Iterator[list[Outgoing]]:
    return (messages[at : at + AT_ONCE] for at in range(0, len(messages), AT_ONCE))


class EngineAlone:
    """An engine with the queue of the messages."""

    def __init__(self, *, keeps: bool) -> None:
        self._engine = Engine(EngineSettings(keep_records=keeps))
        self._channel = self._engine.open_channel(self._engine.open_connection("/"), confirm=True)
        self._engine.topology.declare_queue(self._channel, "bench", 0.0)
        self.clear()

    def publish(self, batch: list[Outgoing]) -> list[Effect]:
        """What a batch brings about."""
        self._engine.publishing.publish_each(self._channel, batch, 1.0)
        return self._engine.take_effects()

    def clear(self) -> None:
        """Empty the queue."""
        self._engine.topology.purge_queue(self._channel, "bench")
        self._engine.take_effects()


async def steps_on(
    broker: Broker, engine: EngineAlone, messages: list[Outgoing]
) -> Mapping[str, Step]:
    """The steps of the first table."""
    least = LeastBroker()
    template = broker._publisher._template("bench")  # noqa: SLF001 - its parts are what is measured
    link = broker._vhosts["/"].connection.link  # noqa: SLF001
    assert link is not None
    channel = await link.open_channel(confirm=True)
    confirmed = asyncio.Event()
    channel.on_confirm = lambda first, last, acked: confirmed.set()

    async def least_program() -> None:
        least.queue.clear()
        for each in [await least.publish("bench", BODY) for _ in range(COUNT)]:
            await each

    async def in_engine() -> None:
        for batch in batches(messages):
            engine.publish(batch)

    async def on_channel() -> None:
        for batch in batches(messages):
            confirmed.clear()
            await channel.publish(batch)
        await confirmed.wait()

    async def queued(made: Iterator[Outgoing]) -> None:
        now = asyncio.get_running_loop().time
        publications = [Publication(template.origin, each, now(), 120.0) for each in made]
        for publication in publications:
            template.queue.put_now(publication, True)
        await publications[-1]

    async def in_queue() -> None:
        await queued(iter(messages))

    async def from_template() -> None:
        await queued(template.outgoing(*template.encode(BODY), None, {}) for _ in range(COUNT))

    async def called() -> None:
        publications = [await broker.publish("bench", BODY) for _ in range(COUNT)]
        await publications[-1]

    async def awaited() -> None:
        for publication in [await broker.publish("bench", BODY) for _ in range(COUNT)]:
            await publication

    return {
        "least program": least_program,
        "engine: route, entry, confirm": in_engine,
        "channel and node: batches, effects": on_channel,
        "publish queue: Publication, deadline, ledger": in_queue,
        "template: encode, id, properties": from_template,
        "Broker.publish: coroutine, checks": called,
        WHOLE: awaited,
    }


class FileParts:
    """What a file adds to the engine, each part alone, in this thread."""

    def __init__(self, folder: str, messages: list[Outgoing]) -> None:
        self._messages, self._engine = messages, EngineAlone(keeps=True)
        self._ids = QueueIds()
        self._ids.add("/", "bench")
        self._file = StoreFile(f"{folder}/alone")
        self._file.open()

    def round(self) -> dict[str, float]:
        """Seconds of processor in each part, for all messages."""
        taken = dict.fromkeys(("records", "rows", "sqlite"), 0.0)
        now = time.process_time
        self._engine.clear()
        for messages in batches(self._messages):
            begun = now()
            records: list[Any] = [
                each for each in self._engine.publish(messages) if type(each) in RECORDS
            ]
            recorded = now()
            batch = Batch(self._ids)
            batch.add(records)
            batch.seal()
            sealed = now()
            self._file.apply(batch)
            taken["records"] += recorded - begun
            taken["rows"] += sealed - recorded
            taken["sqlite"] += now() - sealed
        return taken

    def close(self) -> None:
        self._file.close()


async def measure(rounds: int, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds a message of the steps in memory, and of the parts of a file."""
    messages = [
        Outgoing("", "bench", BODY, Properties(delivery_mode=PERSISTENT, message_id=f"{n:032x}"))
        for n in range(COUNT)
    ]
    seconds: dict[str, list[float]] = {}
    parts = FileParts(folder, messages)
    in_memory, on_file = config("memory", ""), config("file", folder)
    async with Broker.create(in_memory) as broker, Broker.create(on_file) as filed:
        engine = EngineAlone(keeps=False)
        steps = await steps_on(broker, engine, messages)
        whole = (await steps_on(filed, engine, messages))[WHOLE]
        for _ in range(rounds):
            for name, step in {**steps, "file": whole}.items():
                engine.clear()
                gc.collect()
                gc.disable()
                begun = time.process_time()
                await step()
                seconds.setdefault(name, []).append(time.process_time() - begun)
                gc.enable()
                for each in (broker, filed):
                    each.nodes.node().purge("bench")
            for name, taken in parts.round().items():
                seconds.setdefault(name, []).append(taken)
    parts.close()
    figures = {name: sorted(of)[len(of) // 5] / COUNT * 1e6 for name, of in seconds.items()}
    return {name: figures.pop(name) for name in steps}, figures


async def collected(rounds: int) -> dict[str, float]:
    """Microseconds a message while all publications are kept, by what the collector looks at."""
    seconds: dict[str, list[float]] = {}
    async with Broker.create(config("memory", "")) as broker:
        for _ in range(rounds):
            for name in ("everything", "what came after gc.freeze()", "nothing"):
                gc.collect()
                if name == "nothing":
                    gc.disable()
                elif name != "everything":
                    gc.freeze()
                begun = time.process_time()
                kept = [await broker.publish("bench", BODY) for _ in range(HELD)]
                for publication in kept:
                    await publication
                seconds.setdefault(name, []).append(time.process_time() - begun)
                del kept, publication
                gc.unfreeze()
                gc.enable()
                broker.nodes.node().purge("bench")
    return {name: sorted(of)[len(of) // 2] / HELD * 1e6 for name, of in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=100, metavar="N")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        memory, file = asyncio.run(measure(options.rounds, folder))
    print(f"{'in memory, publish with its outcome':<48}{'µs':>6}{'more':>7}")
    before = 0.0
    for name, figure in memory.items():
        is_first = name in list(memory)[:2]  # the least program is no part of the others
        print(f"{name:<48}{figure:>6.2f}" + ("" if is_first else f"{figure - before:>7.2f}"))
        before = figure
    engine, whole = list(memory.values())[1], memory[WHOLE]
    parts = {
        "records of the core": file["records"] - engine,
        "rows: properties, checksums": file["rows"],
        "SQLite: binding, two inserts, log": file["sqlite"],
    }
    parts["thread, its lock and answers, smaller batches"] = (
        file["file"] - whole - sum(parts.values())
    )
    print(f"\n{'a file adds':<48}{file['file'] - whole:>6.2f}")
    for name, figure in parts.items():
        print(f"{name:<48}{figure:>6.2f}")
    print(f"\na file at {whole / file['file']:.2f} of the speed of memory")
    print(f"\n{f'{HELD:,} kept; the garbage collector looks at':<48}{'µs':>6}{'a second':>10}")
    for name, figure in asyncio.run(collected(max(3, options.rounds // 5))).items():
        print(f"{name:<48}{figure:>6.2f}{1e6 / figure:>10,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
