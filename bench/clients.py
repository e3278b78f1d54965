"""Publish and consume through several clients and one RabbitMQ, in turns.

    python -m bench.clients                              # three rounds of 20,000 messages
    python -m bench.clients --messages 5000 --rounds 1   # a quick look
    python -m bench.clients --rabbitmq 3.10 4.3          # on both, one after the other

Every run is a process of its own with a durable queue of its own. A client that is not installed
is left out with a line that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from bench import machine, report
from bench.contestants import Contestant, Run, RunFailedError, contestants
from bench.peers.load import BODY, PREFETCH, QUEUE, WINDOW
from broker_client import BrokerClientError
from broker_client.transport.rabbitmq.connector import NetworkConnector
from tests.support.rabbitmq import RabbitMQ
from tests.support.rabbitmq_installed import Installed, NoSuchRabbitMQError, chosen

ROOT = Path(__file__).parents[1]
EMBEDDED = "embedded://"

notes = Console(stderr=True, highlight=False)


def say(text: str, style: str | None = None) -> None:
    notes.print(text, style=style, markup=False, soft_wrap=True)


async def take_queue_away(url: str) -> int:
    """Delete the queue of a run; returns how many messages were still in it."""
    vhost = url.rsplit("/", 1)[1].replace("%2F", "/")
    link = await NetworkConnector(url, vhost=vhost).connect(timeout=10)
    channel = await link.open_channel()
    left = await channel.delete_queue(QUEUE)
    await link.close()
    return left


def one_run(contestant: Contestant, url: str, messages: int) -> Run:
    """Measure once, and see that everything was consumed and acked."""
    if not contestant.needs_broker:
        return contestant.run(EMBEDDED, messages)
    run = contestant.run(url, messages)
    left = asyncio.run(take_queue_away(url))
    if left:
        raise RunFailedError(f"{contestant.name}: {left} messages were not acked")
    return run


def all_rounds(
    present: Sequence[Contestant], url: str, messages: int, rounds: int
) -> dict[str, list[Run]]:
    """Run them in turns, so that other load on the machine affects all of them equally."""
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in present}
    for number in range(1, rounds + 1):
        for contestant in present:
            try:
                run = one_run(contestant, url, messages)
            except RunFailedError as error:
                say(str(error), "red")
                continue
            runs[contestant.name].append(run)
            say(
                f"round {number}: {contestant.name}: {run.publish:,.0f} published, "
                f"{run.consume:,.0f} consumed a second"
            )
    return runs


class Target(NamedTuple):
    """The broker to measure on."""

    url: str
    version: str


@contextmanager
def target_of(url: str | None, program: Installed | None) -> Iterator[Target]:
    """The broker at `url`; without one, a RabbitMQ of our own for as long as it takes."""
    if url:
        yield Target(url, "unknown")
        return
    say(f"starting RabbitMQ {program}")
    with RabbitMQ(program, stats_interval=60.0) as server:
        yield Target(server.url(), f"RabbitMQ {program}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=20_000, metavar="N", help="in each run")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--url", help="a running broker and its vhost; the queue is deleted")
    parser.add_argument(
        "--rabbitmq",
        nargs="+",
        default=[],
        metavar="VERSION",
        help="start these, such as 3.10 4.3, and measure on each",
    )
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="FILE")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    present = []
    for contestant in contestants():
        if contestant.missing is None:
            present.append(contestant)
        else:
            say(f"left out: {contestant.name} ({contestant.missing})", "yellow")
    if not options.url and chosen() is None:
        say("RabbitMQ is not installed: measuring the built-in broker only", "yellow")
        present = [contestant for contestant in present if not contestant.needs_broker]
        options.url = EMBEDDED
    try:
        programs = [chosen(series) for series in options.rabbitmq] or [chosen()]
    except NoSuchRabbitMQError as error:
        say(f"bench: {error}", "red")
        return 1
    several = len(programs) > 1
    done = []
    for program in programs:
        file = options.json
        if several:
            file = file.with_name(f"{file.stem}-{program}{file.suffix}")
        done.append(measure(options, present, program, file))
    return 0 if all(done) else 1


def measure(
    options: argparse.Namespace,
    present: Sequence[Contestant],
    program: Installed | None,
    file: Path,
) -> bool:
    """Measure on one broker, print the table and write the JSON; False when anything failed."""
    facts = machine.facts()
    try:
        with target_of(options.url, program) as broker:
            runs = all_rounds(present, broker.url, options.messages, options.rounds)
    except BrokerClientError as error:
        say(f"bench: {error}", "red")
        return False
    results = report.results_of(dict(runs))
    title = (
        f"{options.messages:,} persistent messages of {len(BODY)} bytes, {broker.version}, "
        f"{facts['cores']} cores, {datetime.now(UTC):%Y-%m-%d}"
    )
    embedded = [contestant.name for contestant in present if not contestant.needs_broker]
    Console(highlight=False, width=100).print(report.table(results, title, apart=embedded))
    document = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": facts,
        "load": {
            "messages": options.messages,
            "body_bytes": len(BODY),
            "unconfirmed": WINDOW,
            "prefetch": PREFETCH,
        },
        "broker": broker.version,
        "versions": {name: of[-1].versions for name, of in runs.items() if of},
        "results": report.as_json(results),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n")
    say(f"written to {file}")
    return all(len(of) == options.rounds for of in runs.values())


if __name__ == "__main__":
    sys.exit(main())
