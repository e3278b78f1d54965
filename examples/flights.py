"""A month of flights out of New York, through the broker and back.

Every flight of January 2013 is published as ``flight.<origin>.<dest>``. One subscription handles
departures, and raises for a flight that never departed: the recovery chain of `config/demo.yaml`
tries such a flight twice more, 200 ms apart, and then dead-letters it. A second subscription on
the same exchange counts late flights, and a third takes the dead letters.

    python examples/flights.py                                          # the built-in broker
    python examples/flights.py --url embedded:///tmp/flights.db         # the same, with a file
    python examples/flights.py --url amqp://guest:guest@127.0.0.1:5672/   # RabbitMQ

The last line of the output is JSON. The status is 1 when a count is not what it must be.

All counting is by message id. After a reconnect a broker may deliver a message again, and a
message that came twice is still one flight.

On RabbitMQ the queues `departures`, `late-departures` and `cemetery` of the URL's vhost are
emptied first, and are empty again at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker_client import AckOrNack, Broker, BrokerClientError, Message, load_config
from broker_client.message import Returned

HERE = Path(__file__).parent
DATA = HERE / "data" / "flights-2013-01.csv.gz"
CONFIG = HERE.parent / "config" / "demo.yaml"

NUMBERS = ("flight", "dep_time", "sched_dep_time", "dep_delay", "arr_delay", "air_time", "distance")
LATE_MINUTES = 60
RETRIES = 2  # the `attempts` of config/demo.yaml
WINDOW = 1000  # flights under way at a time, from publish to the first call of the handler
PATIENCE = 30.0  # seconds without any progress before the demo gives up

Flight = dict[str, Any]

# Counted in the file by other means; see data/README.md.
KNOWN_FLIGHTS = {"EWR": 9893, "JFK": 9161, "LGA": 7950}
KNOWN_LATE = 1821
KNOWN_NOT_DEPARTED = 521


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """The flights of the file, at most `limit`, with numbers as numbers and gaps as None."""
    with gzip.open(DATA, "rt", encoding="utf-8", newline="") as lines:
        for row in islice(csv.DictReader(lines), limit):
            flight: Flight = {
                key: None if value in ("", "NA") else value for key, value in row.items()
            }
            for key in NUMBERS:
                if flight[key] is not None:
                    flight[key] = int(flight[key])
            yield flight


def id_of(flight: Flight) -> str:
    """The same for the same flight in every run: UA1545-EWR-2013-01-01T10:00:00Z."""
    return f"{flight['carrier']}{flight['flight']}-{flight['origin']}-{flight['time_hour']}"


def is_late(flight: Flight) -> bool:
    return flight["dep_delay"] is not None and flight["dep_delay"] > LATE_MINUTES


# --------------------------------------------------------------------------- counting


@dataclass(repr=False)
class Tally:
    """What has happened so far, by message id."""

    broker: str
    """Its address, without a password."""
    flights: dict[str, Flight]
    """All that are to be published."""
    published: dict[str, float] = field(default_factory=dict)
    """With the time of each, in seconds."""
    confirmed: set[str] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    handled: set[str] = field(default_factory=set)
    retried: set[tuple[str, int]] = field(default_factory=set)
    """(id, number of the retry)"""
    dead: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    """Seen by the subscription `late`."""
    late: set[str] = field(default_factory=set)
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds from publish to the first call of the handler."""
    errors: int = 0
    """Raised by the handler of departures."""
    late_acks: int = 0
    """Acks of deliveries that had gone back with their channel."""
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WINDOW))
    started: float = field(default_factory=time.perf_counter)
    confirmed_at: float = 0.0
    ended: float = 0.0

    @property
    def steps(self) -> int:
        """Grows with everything that happens."""
        parts = (self.published, self.confirmed, self.handled, self.retried, self.dead)
        return sum(map(len, parts)) + len(self.checked) + len(self.returned) + len(self.failed)

    @property
    def is_complete(self) -> bool:
        total = len(self.flights)
        settled = len(self.confirmed) + len(self.returned) + len(self.failed)
        arrived = len(self.confirmed)
        return (
            len(self.published) == total
            and settled == total
            and len(self.handled) + len(self.dead) >= arrived
            and len(self.checked) >= arrived
        )

    def lost(self) -> list[str]:
        return [key for key in self.published if key not in self.handled and key not in self.dead]

    def result(self) -> dict[str, float]:
        """The last line of the output."""
        return {
            "published": len(self.published),
            "confirmed": len(self.confirmed),
            "returned": len(self.returned),
            "handled": len(self.handled),
            "retried": len(self.retried),
            "dead_lettered": len(self.dead),
            "lost": len(self.lost()),
            "seconds": round(self.ended - self.started, 2),
        }

    def problems(self) -> list[str]:
        """The inconsistencies found, as sentences."""
        flights = self.flights.values()
        no_show = sum(flight["dep_time"] is None for flight in flights)
        total = len(flights)
        wanted = [
            ("flights were published", len(self.published), total),
            ("flights were confirmed", len(self.confirmed), total),
            ("flights were returned", len(self.returned), 0),
            ("flights were handled", len(self.handled), total - no_show),
            ("retries were made", len(self.retried), RETRIES * no_show),
            ("flights were dead-lettered", len(self.dead), no_show),
            ("flights were lost", len(self.lost()), 0),
            ("late flights were counted", len(self.late), sum(map(is_late, flights))),
        ]
        return [f"{got} {what}, not {want}." for what, got, want in wanted if got != want] + [
            f"{key} was not published: {why}" for key, why in islice(self.failed.items(), 3)
        ]

    def known_problems(self) -> list[str]:
        """What differs from the counts of the whole file."""
        airports = Counter(self.flights[key]["origin"] for key in self.handled | self.dead)
        wanted = [
            *((f"flights left {name}", airports[name], n) for name, n in KNOWN_FLIGHTS.items()),
            ("flights were late", len(self.late), KNOWN_LATE),
            ("flights never departed", len(self.dead), KNOWN_NOT_DEPARTED),
        ]
        return [
            f"{got} {what}, and the file has {want}." for what, got, want in wanted if got != want
        ]

    def missing(self) -> str:
        """What has not arrived yet, as a sentence."""
        total = len(self.flights)
        unconfirmed = len(
            self.published.keys() - self.confirmed - self.returned - self.failed.keys()
        )
        some = self.lost()[:5]
        return (
            f"Nothing happened for {PATIENCE:g} s. Missing: {total - len(self.published)} not "
            f"published, {unconfirmed} without a confirm, {len(self.lost())} not handled"
            + (f" (such as {', '.join(some)})" if some else "")
            + f", {total - len(self.checked)} not seen by `late`."
        )


class NeverDepartedError(Exception):
    """The flight has no time of departure."""


# --------------------------------------------------------------------------- the broker's part


async def publish_all(broker: Broker, tally: Tally) -> None:
    """Publish every flight; events tell the outcome of each."""

    def confirmed(message_id: str) -> None:
        tally.confirmed.add(message_id)
        tally.confirmed_at = time.perf_counter()

    def returned(message: Returned) -> None:
        tally.returned.add(message.properties.message_id or "")
        tally.room.release()

    def failed(error: Exception, message_id: str) -> None:
        tally.failed[message_id] = str(error)
        tally.room.release()

    for key, flight in tally.flights.items():
        await tally.room.acquire()
        publication = await broker.publish(
            "departed",
            flight,
            routing_key=f"flight.{flight['origin']}.{flight['dest']}",
            message_id=key,
        )
        tally.published[key] = time.perf_counter()
        publication.on("success", confirmed).on("return", returned).on("error", failed)


async def subscribe_all(broker: Broker, tally: Tally) -> None:
    """Count what arrives."""

    async def depart(message: Message, flight: Flight, ack_or_nack: AckOrNack) -> None:
        key = id_of(flight)
        if message.republished:
            tally.retried.add((key, message.republished))
        elif key not in tally.waits:
            tally.waits[key] = time.perf_counter() - tally.published[key]
            tally.room.release()
        if flight["dep_time"] is None:
            raise NeverDepartedError(key)  # the recovery chain of the configuration decides
        tally.handled.add(key)
        await ack_or_nack()

    async def check(message: Message, flight: Flight, ack_or_nack: AckOrNack) -> None:
        tally.checked.add(id_of(flight))
        if is_late(flight):
            tally.late.add(id_of(flight))
        await ack_or_nack()

    async def bury(message: Message, flight: Flight, ack_or_nack: AckOrNack) -> None:
        tally.dead.add(id_of(flight))
        await ack_or_nack()

    def count_error(error: Exception) -> None:
        tally.errors += 1

    def count_lost(message: Message, error: Exception) -> None:
        tally.late_acks += 1  # the link went down in between: the message comes again

    for name, handler in (("departures", depart), ("late", check), ("cemetery", bury)):
        subscription = await broker.subscribe(name, handler)
        subscription.on("error", count_error).on("ack_lost", count_lost)


async def run(url: str, limit: int | None, progress: Bars | Lines) -> tuple[Tally, list[str]]:
    """Run the demo; returns the counts, and the problems as sentences."""
    flights = {id_of(flight): flight for flight in read_flights(limit)}
    async with Broker.create(load_config(CONFIG, environ={"URL": url})) as broker:
        broker.on("error", lambda error, vhost: progress.say(f"{vhost}: {error}"))
        left = await broker.purge()
        if left:
            progress.say(f"emptied the queues: {left} messages were left in them")
        tally = Tally(broker.connections()[0][1], flights)
        await subscribe_all(broker, tally)
        publishing = asyncio.create_task(publish_all(broker, tally))
        try:
            stuck = await watch(tally, publishing, progress)
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
        tally.ended = time.perf_counter()
        await broker.unsubscribe_all()
        await broker.purge()  # repeated deliveries of a reconnect may still arrive
    if stuck:
        return tally, [tally.missing(), *tally.problems()]
    return tally, tally.problems() + (tally.known_problems() if limit is None else [])


async def watch(tally: Tally, publishing: asyncio.Task[None], progress: Bars | Lines) -> bool:
    """Show progress until all is done; True when nothing happened for too long."""
    steps, since = -1, time.perf_counter()
    while not tally.is_complete:
        if publishing.done():
            publishing.result()  # raises what it raised
        if tally.steps != steps:
            steps, since = tally.steps, time.perf_counter()
        elif time.perf_counter() - since > PATIENCE:
            return True
        progress.show(tally)
        await asyncio.sleep(0.05)
    progress.show(tally)
    return False


# --------------------------------------------------------------------------- to look at


class Bars:
    """Progress on a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:>13}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks = [self._progress.add_task(name) for name in STAGES]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._progress.console.print(text, style="yellow", markup=False)

    def show(self, tally: Tally) -> None:
        total = len(tally.flights)
        for task, done in zip(self._tasks, stages(tally), strict=True):
            self._progress.update(task, completed=done, total=total)


class Lines:
    """Progress where there is no terminal: a line every two seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, tally: Tally) -> None:
        if time.perf_counter() >= self._next or tally.is_complete:
            self._next = time.perf_counter() + 2.0
            counts = zip(STAGES, stages(tally), strict=True)
            self.say(", ".join(f"{name} {count}" for name, count in counts))


STAGES = ("published", "handled", "dead-lettered")


def stages(tally: Tally) -> tuple[int, int, int]:
    return len(tally.published), len(tally.handled), len(tally.dead)


def report(tally: Tally) -> Group:
    """The tables at the end."""
    grid = Table.grid(padding=(0, 4))
    airports, carriers = _counts(tally, "origin", "airport"), _counts(tally, "carrier", "carrier")
    grid.add_row(Group(airports, "", how_fast(tally)), carriers)
    return Group(
        "\n[bold]Flights out of New York, January 2013[/bold]",
        f"through {tally.broker}",
        f"late: departed over {LATE_MINUTES} minutes late; dead: never departed, dead-lettered\n",
        grid,
        "",
    )


def _counts(tally: Tally, column: str, title: str) -> Table:
    def count(keys: set[str]) -> Counter[str]:
        return Counter(tally.flights[key][column] for key in keys)

    columns = [count(tally.handled | tally.dead), count(tally.late), count(tally.dead)]
    table = _table(title, "flights", "late", "dead")
    for name, _ in columns[0].most_common():
        table.add_row(name, *(f"{each[name]:,}" if each[name] else "·" for each in columns))
    table.add_section()
    table.add_row("all", *(f"{each.total():,}" for each in columns), style="bold")
    return table


def how_fast(tally: Tally) -> Table:
    seconds = tally.ended - tally.started
    waits = sorted(tally.waits.values()) or [0.0]
    deliveries = len(tally.waits) + len(tally.retried) + len(tally.checked) + len(tally.dead)
    confirmed = len(tally.confirmed) / max(tally.confirmed_at - tally.started, 1e-9)
    table = _table("how fast", "")
    table.add_row("publishes confirmed", f"{confirmed:,.0f} /s")
    table.add_row("deliveries handled", f"{deliveries / seconds:,.0f} /s")
    table.add_row("to the handler, p50", f"{waits[len(waits) // 2] * 1000:,.1f} ms")
    table.add_row("to the handler, p99", f"{waits[len(waits) * 99 // 100] * 1000:,.1f} ms")
    table.add_row("handler errors", f"{tally.errors:,}")
    table.add_row("retries", f"{len(tally.retried):,}")
    if tally.late_acks:
        table.add_row("acks after a reconnect", f"{tally.late_acks:,}")
    table.add_section()
    table.add_row("all in all", f"{seconds:.1f} s", style="bold")
    return table


def _table(*columns: str) -> Table:
    first, *others = columns
    table = Table(box=ROUNDED, header_style="bold cyan", border_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A month of flights through the broker and back.")
    parser.add_argument(
        "--url", default="embedded://", help="the broker (default: the built-in one)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="publish the first N flights only")
    options = parser.parse_args()
    if options.limit is not None and options.limit < 1:
        parser.error("--limit must be at least 1")
    return options


def main() -> int:
    options = arguments()
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # the broker's events say the same
    errors = Console(stderr=True)
    progress = Bars(errors) if errors.is_terminal else Lines(errors)
    try:
        with progress:
            tally, problems = asyncio.run(run(options.url, options.limit, progress))
    except BrokerClientError as error:
        errors.print(f"flights: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    console = Console(highlight=False)
    console.print(report(tally))
    for problem in problems:
        errors.print(problem, style="red", markup=False, soft_wrap=True)
    print(json.dumps(tally.result()))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
