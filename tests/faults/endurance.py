"""A steady load for a long time, with everything that an application does from time to time: checks
that nothing grows. Prints memory, tasks, threads and descriptors as it goes, and their slopes.

    python -m tests.faults.endurance --seconds 1500 [--broker embedded|rabbitmq] [--rate 150]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import sys
import tempfile
import threading
import time
import tracemalloc
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

import psutil
from rich.console import Console

from broker_client import AckOrNack, Broker, Message, Nack
from broker_client.errors import BrokerClientError, MessageReturnedError, PublishError
from tests.support.eventually import eventually
from tests.support.own_server import free_port
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

WARM_UP = 0.25
"""Part of the time, at its beginning, that the slopes leave out."""

MOST = 12
"""Number of object types with the largest growth that are printed."""

_EVERY = 2.0  # seconds between two samples, and between two rounds
_TELL_EVERY = 60.0  # seconds
_PATIENCE = 60.0  # seconds within which everything must end
_FAILED_CONNECTS = 10  # a round
_QUICK = {"min": "20ms", "max": "200ms"}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of the process."""

    memory_mib: float
    """Resident."""
    objects: float
    """That the garbage collector knows."""
    tasks: float
    threads: float
    descriptors: float
    file_mib: float
    """The broker's file and its log, where it has one."""

    @classmethod
    def take(cls, folder: Path) -> Sample:
        process = psutil.Process()
        return cls(
            process.memory_info().rss / 2**20,
            len(gc.get_objects()),
            len(asyncio.all_tasks()),
            threading.active_count(),
            process.num_fds(),
            sum(each.stat().st_size for each in folder.iterdir()) / 2**20,
        )


def types_of_objects() -> Counter[str]:
    """How many objects of each type the collector knows."""
    return Counter(
        f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects()
    )


ALLOWED = Sample(memory_mib=8.0, objects=20_000, tasks=10, threads=2, descriptors=6, file_mib=16.0)
"""Allowed growth of each from the warm-up to the end, by its slope."""


class History:
    """Samples and when they were taken."""

    def __init__(self) -> None:
        self.times = array("d")
        # Arrays: objects that are kept here would be counted among those that the program keeps.
        self._columns = {field.name: array("d") for field in fields(Sample)}

    def add(self, at: float, sample: Sample) -> None:
        self.times.append(at)
        for name, column in self._columns.items():
            column.append(getattr(sample, name))

    def slopes(self) -> dict[str, float]:
        """What is added to each in an hour: least squares, without the warm-up."""
        first = next(index for index, at in enumerate(self.times) if at >= WARM_UP * self.times[-1])
        times = self.times[first:]
        return {
            name: 3600.0 * linear_regression(times, column[first:]).slope
            for name, column in self._columns.items()
        }

    def grew(self) -> list[str]:
        """Names of what grew by more than is allowed."""
        watched = (1.0 - WARM_UP) * self.times[-1]
        return [
            name
            for name, slope in self.slopes().items()
            if slope * watched / 3600.0 > getattr(ALLOWED, name)
        ]


def a_config(url: str) -> dict[str, Any]:
    """A queue whose handler fails now and then, its dead letters, and a service that answers."""
    recovery = [{"strategy": "republish", "defer": "50ms", "attempts": 2}, {"strategy": "nack"}]
    publications: dict[str, dict[str, Any]] = {
        "work": {"exchange": "events", "routing_key": "work"},
        "nowhere": {"exchange": "events", "routing_key": "nowhere"},
        "bulk": {"exchange": "events", "routing_key": "bulk"},
        "question": {"queue": "service"},
    }
    subscriptions: dict[str, dict[str, Any]] = {
        "work": {"queue": "work", "prefetch": 50, "recovery": recovery},
        "dead": {"queue": "dead", "prefetch": 50},
        "bulk": {"queue": "bulk", "prefetch": 100},
        "service": {"queue": "service"},
    }
    return {
        "vhosts": {
            "/": {
                "connection": {"url": url, "heartbeat": "5s", "retry": _QUICK},
                "exchanges": ["events", "letters"],
                "queues": {
                    "work": {"options": {"dead_letter_exchange": "letters"}},
                    "dead": None,
                    "bulk": None,
                    "service": None,
                },
                "bindings": ["events[work] -> work", "events[bulk] -> bulk", "letters[#] -> dead"],
                "publications": publications,
                "subscriptions": {
                    name: {"retry": _QUICK, **more} for name, more in subscriptions.items()
                },
            }
        }
    }


class Application:
    """Publishes and handles at a steady rate, with a special action each round."""

    def __init__(self, broker: Broker, url: str, rate: float, proxy: Proxy | None) -> None:
        self.published = self.handled = self.rounds = 0
        self.unhandled: set[str] = set()
        """Message ids that were published, did not fail, and are not handled yet."""
        self._broker, self._url, self._rate, self._proxy = broker, url, rate, proxy
        self._deliveries = itertools.count(1)
        self._kinds: list[Callable[[], Awaitable[object]]] = [
            self._ask,
            self._publish_many,
            self._publish_what_returns,
            self._lose_channels,
            self._abort,
            self._subscribe_anew,
            self._pause,
            self._open_another_broker,
            self._fail_to_connect,
            self._bounce if proxy is None else self._cut,
        ]

    async def start(self) -> None:
        await self._broker.subscribe("work", self._handle)
        await self._broker.subscribe("dead", self._settle)
        await self._broker.subscribe("bulk", lambda message, content, ack_or_nack: ack_or_nack())

        @self._broker.handle("service")
        async def answer(number: int) -> int:
            return number

        for subscription in self._broker.subscriptions:
            self._be_quiet(subscription)

    async def publish(self) -> None:
        """Publish until cancelled."""
        while True:
            self.published += 1
            message_id = str(self.published)
            self.unhandled.add(message_id)
            publication = await self._broker.publish(
                "work", {"number": self.published}, message_id=message_id
            )
            publication.when_ended(partial(self._ended, message_id))
            await asyncio.sleep(1.0 / self._rate)

    async def round(self) -> None:
        """Do one of the special actions."""
        kind = self._kinds[self.rounds % len(self._kinds)]
        self.rounds += 1
        await kind()

    def _ended(self, message_id: str, error: PublishError | None) -> None:
        if error is not None:
            self.unhandled.discard(message_id)

    @staticmethod
    def _be_quiet(subscription: Any) -> None:
        for event in ("error", "ack_lost", "cancelled", "recovery_failed"):
            subscription.on(event, lambda *args: None)

    async def _handle(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        number = next(self._deliveries)
        if number % 20 == 0:
            raise ValueError("no")
        if number % 33 == 0:
            await ack_or_nack("later", Nack(requeue=True, defer=0.02))
        elif number % 50 == 0:
            await ack_or_nack("never", Nack())
        else:
            await self._settle(message, content, ack_or_nack)

    async def _settle(self, message: Message, content: Any, ack_or_nack: AckOrNack) -> None:
        await ack_or_nack()
        self.handled += 1
        self.unhandled.discard(message.message_id or "")

    # ------------------------------------------------------------------ now and then

    async def _ask(self) -> None:
        for number in range(20):
            assert (await self._broker.request("question", number, timeout=20.0)).content == number

    async def _publish_many(self) -> None:
        report = await self._broker.publish_many("bulk", range(500))
        assert report.succeeded == report.published

    async def _publish_what_returns(self) -> None:
        for _ in range(20):
            with suppress(MessageReturnedError):
                await (await self._broker.publish("nowhere", 1))

    async def _lose_channels(self) -> None:
        """The broker closes channels; their connection stays."""
        link = await self._broker.connect()
        for _ in range(10):
            with suppress(BrokerClientError):
                await (await link.open_channel()).check_queue("no.such.queue")
        await link.close()

    async def _abort(self) -> None:
        for _ in range(20):
            publication = await self._broker.publish("bulk", 1)
            publication.abort()
            with suppress(PublishError):
                await publication

    async def _subscribe_anew(self) -> None:
        subscription = next(each for each in self._broker.subscriptions if each.name == "dead")
        await subscription.cancel()
        self._be_quiet(await self._broker.subscribe("dead", self._settle))

    async def _pause(self) -> None:
        subscription = next(each for each in self._broker.subscriptions if each.name == "work")
        await subscription.pause()
        await asyncio.sleep(0.2)
        await subscription.resume()

    async def _open_another_broker(self) -> None:
        for _ in range(3):
            async with Broker.create(a_config(self._url)) as another:
                await (await another.publish("bulk", 1))

    async def _fail_to_connect(self) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{free_port()}"
        for _ in range(_FAILED_CONNECTS):
            with suppress(BrokerClientError):
                await Broker.create(a_config(url))

    async def _cut(self) -> None:
        assert self._proxy is not None
        self._proxy.cut()

    async def _bounce(self) -> None:
        await self._broker.bounce()


@asynccontextmanager
async def _place(server: RabbitMQ | None, folder: Path) -> AsyncIterator[tuple[str, Proxy | None]]:
    """The address to use, and a proxy that can cut the connection to it."""
    if server is None:
        yield f"embedded://{folder}/broker.db", None
        return
    async with Proxy("127.0.0.1", server.port) as proxy:
        yield f"amqp://guest:guest@127.0.0.1:{proxy.port}", proxy


async def run(
    server: RabbitMQ | None,
    seconds: float,
    rate: float,
    tell: Callable[[float, Sample, Application], None] = lambda at, sample, application: None,
) -> tuple[History, Application]:
    """Run the load for `seconds`; returns its samples.

    Args:
        server: a RabbitMQ; a file of the built-in broker when None.
        seconds: how long.
        rate: publishes a second, apart from the rounds.
        tell: called with each sample.

    Raises:
        AssertionError: a message that was confirmed was not handled.
    """
    history = History()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            _place(server, folder) as (address, proxy),
            Broker.create(a_config(address)) as broker,
        ):
            broker.on("error", lambda error, vhost: None)
            application = Application(broker, address, rate, proxy)
            await application.start()
            publishing = asyncio.create_task(application.publish())
            began = time.monotonic()
            try:
                while (at := time.monotonic() - began) < seconds or len(history.times) < 8:
                    await application.round()
                    await asyncio.sleep(_EVERY)
                    gc.collect()
                    sample = Sample.take(folder)
                    history.add(at, sample)
                    tell(at, sample, application)
            finally:
                publishing.cancel()
                await asyncio.wait([publishing])
            await eventually(
                lambda: not application.unhandled,
                timeout=_PATIENCE,
                message="everything confirmed is handled",
            )
    return history, application


@contextmanager
def _server(broker: str) -> Iterator[RabbitMQ | None]:
    if broker == "embedded":
        yield None
        return
    with RabbitMQ() as server:
        yield server


def _row(*cells: object) -> str:
    return " ".join(f"{cell:>12}" for cell in cells)


def _numbers(values: Sequence[float]) -> list[str]:
    return [f"{value:,.1f}" for value in values]


def main() -> int:
    """The command; status 1 when something grew by more than is allowed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.endurance", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--broker", choices=["embedded", "rabbitmq"], default="embedded")
    parser.add_argument("--rate", type=float, default=150.0, help="publishes a second")
    parser.add_argument("--trace", action="store_true", help="print which lines' memory grew")
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{options.broker}, {options.seconds:g} s, {options.rate:g} publishes a second")
    logging.disable(logging.ERROR)  # each lost link would be logged
    names = [field.name for field in fields(Sample)]
    console.print(_row("seconds", "published", *names))
    told = -_TELL_EVERY
    snapshot: tracemalloc.Snapshot | None = None
    types: list[Counter[str]] = []
    if options.trace:
        tracemalloc.start(8)

    def tell(at: float, sample: Sample, application: Application) -> None:
        nonlocal told, snapshot
        if at - told >= _TELL_EVERY:
            told = at
            console.print(_row(f"{at:.0f}", application.published, *_numbers(astuple(sample))))
        if at < WARM_UP * options.seconds:
            return
        types[1:] = [types_of_objects()]
        if options.trace and snapshot is None:
            snapshot = tracemalloc.take_snapshot()

    with _server(options.broker) as server:
        history, application = asyncio.run(run(server, options.seconds, options.rate, tell))
    if snapshot is not None:
        for each in tracemalloc.take_snapshot().compare_to(snapshot, "lineno")[:25]:
            console.print(str(each), markup=False)
    for name, more in (types[-1] - types[0]).most_common(MOST):
        console.print(f"{more:+6} {name}", markup=False)
    console.print(_row("an hour", "", *_numbers(list(history.slopes().values()))))
    console.print(
        f"{application.published:,} published, {application.handled:,} handled, "
        f"{application.rounds} rounds; grew: {', '.join(history.grew()) or 'nothing'}"
    )
    return 1 if history.grew() else 0


if __name__ == "__main__":
    sys.exit(main())
