"""Processor time and Python calls a message, of each step in one process.

    python -m bench.cpu                          # all steps; about a minute
    python -m bench.cpu publish consume --on memory --rounds 30
    python -m bench.cpu publish consume --on memory --rooms    # the calls, by room of the package

On a machine with other work, wall time does not show a change of a few percent. Processor time of
many short rounds does, taken by its median, and the number of calls does not depend on the machine
at all. To compare two versions, run both in turns.

Steps: `publish` (awaiting one outcome after the other), `gather` (the outcomes with
`asyncio.gather`), `publish-many`, `consume` (handler and ack), `touch`.
Places: `memory`, `file` (a folder in memory if there is one: it is the processor that counts
here), `event-log` (memory, with the log of deliveries).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import broker_client
from broker_client import AckOrNack, Broker, Message

BODY = b"x" * 256
PLACES = ("memory", "file", "event-log")
IN_MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
_PACKAGE = Path(broker_client.__file__).parent
STEPS = ("publish", "gather", "publish-many", "consume", "touch")


def config(place: str, folder: str) -> dict[str, Any]:
    """The configuration for one place: one of `PLACES`, or a URL."""
    urls = {"memory": "embedded://", "event-log": "embedded://", "file": f"embedded://{folder}/s"}
    vhost = {
        "connection": urls.get(place, place),
        "queues": ["bench"],
        "publish_queue": {"max_in_flight": 1_000},
        "publications": {"bench": {"queue": "bench", "timeout": "2m"}},
        "subscriptions": {"bench": {"queue": "bench", "prefetch": 200}},
    }
    log = {"path": folder, "buffer": 1_000_000}
    return {"vhosts": {"/": vhost}} | ({"node": {"event_log": log}} if place == "event-log" else {})


class Load:
    """One broker, and the steps that are measured on it; each leaves the queue as it was."""

    def __init__(self, broker: Broker, count: int) -> None:
        self._broker, self._count = broker, count

    async def publish(self, measured: Measure) -> None:
        """Publish `count` and await every outcome."""

        async def work() -> None:
            publish = self._broker.publish
            for publication in [await publish("bench", BODY) for _ in range(self._count)]:
                await publication

        await measured(work)
        await self._consume(_plainly, touches=False)

    async def gather(self, measured: Measure) -> None:
        """The same, with all outcomes awaited together."""

        async def work() -> None:
            publish = self._broker.publish
            await asyncio.gather(*[await publish("bench", BODY) for _ in range(self._count)])

        await measured(work)
        await self._consume(_plainly, touches=False)

    async def publish_many(self, measured: Measure) -> None:
        """The same with `publish_many`."""

        async def work() -> None:
            await self._broker.publish_many("bench", (BODY for _ in range(self._count)))

        await measured(work)
        await self._consume(_plainly, touches=False)

    async def consume(self, measured: Measure) -> None:
        """Consume `count`, each with a handler that acks."""
        await self.publish_unmeasured()
        await self._consume(measured, touches=False)

    async def touch(self, measured: Measure) -> None:
        """The same with a handler that touches three times before it acks."""
        await self.publish_unmeasured()
        await self._consume(measured, touches=True)

    async def publish_unmeasured(self) -> None:
        """Fill the queue."""
        await self._broker.publish_many("bench", [BODY] * self._count)

    async def _consume(self, measured: Measure, *, touches: bool) -> None:
        left, done = self._count, asyncio.Event()
        subscription: Any = None

        async def handle(message: Message, content: bytes, ack_or_nack: AckOrNack) -> None:
            nonlocal left
            if touches:
                message.touch()
                message.touch()
                message.touch()
            await ack_or_nack()
            left -= 1
            if not left:
                done.set()

        async def work() -> None:
            nonlocal subscription
            subscription = await self._broker.subscribe("bench", handle)
            await done.wait()

        await measured(work)
        await subscription.cancel()


Work = Callable[[], Awaitable[None]]
Measure = Callable[[Work], Awaitable[None]]


async def _plainly(work: Work) -> None:
    await work()


class Processor:
    """Measures processor time; garbage is collected before the block, not within it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __call__(self, work: Work) -> None:
        gc.collect()
        gc.disable()
        begun = time.process_time()
        try:
            await work()
        finally:
            self.seconds = time.process_time() - begun
            gc.enable()


class Calls:
    """Counts calls of functions in this thread: those written in Python by the file they are in,
    those of C functions together."""

    def __init__(self) -> None:
        self.by_file: Counter[str] = Counter()
        self.of_c = 0

    async def __call__(self, work: Work) -> None:
        def count(frame: FrameType, event: str, argument: object) -> None:
            if event == "call":
                self.by_file[frame.f_code.co_filename] += 1
            elif event == "c_call":
                self.of_c += 1

        sys.setprofile(count)
        try:
            await work()
        finally:
            sys.setprofile(None)

    def by_room(self) -> Counter[str]:
        """The calls by room of the package, by `asyncio`, and by everything else."""
        rooms: Counter[str] = Counter({"C functions": self.of_c})
        for file, calls in self.by_file.items():
            rooms[_room(Path(file))] += calls
        return rooms


def _room(file: Path) -> str:
    if file.is_relative_to(_PACKAGE):
        parts = file.relative_to(_PACKAGE).parts
        return parts[0] if len(parts) > 1 else "broker, publication, message …"
    return "asyncio" if "asyncio" in file.parts else "others"


@asynccontextmanager
async def load_on(place: str, count: int) -> AsyncIterator[Load]:
    """A broker on `place`, warmed up."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        async with Broker.create(config(place, folder)) as broker:
            load = Load(broker, count)
            await load.consume(_plainly)
            yield load


def step_of(load: Load, name: str) -> Callable[[Measure], Awaitable[None]]:
    """The step of that name."""
    steps: Mapping[str, Callable[[Measure], Awaitable[None]]] = {
        "publish": load.publish,
        "gather": load.gather,
        "publish-many": load.publish_many,
        "consume": load.consume,
        "touch": load.touch,
    }
    return steps[name]


async def measure(
    place: str, steps: Sequence[str], count: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Microseconds of processor, and Python calls, a message of each step."""
    figures = {}
    async with load_on(place, count) as load:
        seconds: dict[str, list[float]] = {step: [] for step in steps}
        for _ in range(rounds):
            for step in steps:
                processor = Processor()
                await step_of(load, step)(processor)
                seconds[step].append(processor.seconds)
        for step in steps:
            calls = Calls()
            await step_of(load, step)(calls)
            figures[step] = (
                statistics.median(seconds[step]) / count * 1e6,
                calls.by_file.total() / count,
            )
    return figures


async def calls_by_room(place: str, step: str, count: int) -> dict[str, float]:
    """Calls a message of `step` in each room, most first."""
    calls = Calls()
    async with load_on(place, count) as load:
        await step_of(load, step)(calls)
    return {room: number / count for room, number in calls.by_room().most_common()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], default=[], help="default: all")
    parser.add_argument("--on", nargs="+", default=PLACES, metavar="PLACE", help="or an AMQP URL")
    parser.add_argument("--messages", type=int, default=2_000, metavar="N", help="a round")
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--rooms", action="store_true", help="only calls, by room")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.rooms:
        for place in options.on:
            for step in options.steps or STEPS:
                rooms = asyncio.run(calls_by_room(place, step, options.messages))
                shown = ", ".join(f"{room} {n:.1f}" for room, n in rooms.items() if n >= 0.05)
                print(f"{place}, {step}: {shown}", flush=True)
        return 0
    print(f"{'on':<12}{'step':<14}{'µs':>8}{'calls':>8}   a message")
    taken: dict[tuple[str, str], float] = {}
    for place in options.on:
        steps = options.steps or [s for s in STEPS if s != "touch" or "amqp" not in place]
        figures = asyncio.run(measure(place, steps, options.messages, options.rounds))
        for step, (microseconds, calls) in figures.items():
            taken[place, step] = microseconds
            print(f"{place[:11]:<12}{step:<14}{microseconds:>8.2f}{calls:>8.1f}", flush=True)
    print()
    for line in ratios(taken):
        print(line)
    return 0


def ratios(taken: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """What the microseconds of places and steps say about each other, as speeds."""
    for place, step in taken:
        for loop, name in (("publish", "a loop of publish"), ("gather", "one with a gather")):
            if step == "publish-many" and (place, loop) in taken:
                ratio = taken[place, loop] / taken[place, step]
                yield f"{place[:11]}: publish_many at {ratio:.2f} of the speed of {name}"
    for step in STEPS:
        if ("memory", step) in taken and ("file", step) in taken:
            ratio = taken["memory", step] / taken["file", step]
            yield f"{step}: a file at {ratio:.2f} of the speed of memory"


if __name__ == "__main__":
    sys.exit(main())
