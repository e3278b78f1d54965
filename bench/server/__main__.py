"""Compares ``broker-client serve`` with RabbitMQ: the same clients, in turns, in one run.

    python -m bench.server                                # everything; half an hour on two cores
    python -m bench.server --messages 20000 --rounds 1    # a quick look
    python -m bench.server --only raw latency

Each broker is a process of its own, and so is each client. ``raw`` is a bare socket whose frames
are prepared in advance: persistent messages of 256 bytes through one durable queue, each confirmed
after the commit that keeps it, each delivery acked by itself. Where uvloop is installed (extra
``speed``), the server is measured with and without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from pamqp import commands
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.contestants import BASE, Contestant, contestants
from bench.server.brokers import ROOT, RunningBroker, ours, rabbitmq
from bench.server.raw import QUEUE, RawClient

notes = Console(stderr=True, highlight=False)
_TIMEOUT = 600.0  # seconds for one client
_CROWD = 100  # connections that publish, and as many that consume
_QUEUED = 100_000  # messages of 1 KiB whose memory is measured
_IDLE = 2_000  # connections
_LATENCY_SECONDS = 10
_CLIENTS = {"aio_pika": BASE, "broker": "ours: Broker"}

Figures = dict[str, float]


def _raw(what: str, broker: RunningBroker, count: int, *more: str) -> dict[str, float]:
    """Run the raw client in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.server.raw", what, broker.url, str(count), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{broker.name}: {what} failed\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _clear(broker: RunningBroker) -> None:
    client = RawClient(broker.url)
    client.call(commands.Queue.Purge(queue=QUEUE), "Queue.PurgeOk")
    client.close()


def raw(broker: RunningBroker, messages: int) -> Figures:
    """Rates of publishing with confirms and of consuming with acks, and processor time per
    million."""
    figures: Figures = {}
    for what, name in (("publish", "publish + confirm"), ("consume", "deliver + ack")):
        before = broker.cpu_seconds()
        seconds = _raw(what, broker, messages)["seconds"]
        figures[f"{name}, a second"] = messages / seconds
        million = (broker.cpu_seconds() - before) / messages * 1e6
        figures[f"{name}, CPU seconds a million"] = million
    return figures


def crowd(broker: RunningBroker, messages: int) -> Figures:
    """Many connections publish, as many consume."""
    seconds = _raw("crowd", broker, _CROWD, "--messages", str(messages))["seconds"]
    return {f"{_CROWD} publish, {_CROWD} consume, a second": messages / seconds}


def clients(broker: RunningBroker, messages: int) -> Figures:
    """Through aio-pika, and through our own client."""
    figures: Figures = {}
    for contestant in _chosen_clients():
        run = contestant.run(broker.url, messages // 5)
        figures[f"{contestant.name}: publish, a second"] = run.publish
        figures[f"{contestant.name}: consume, a second"] = run.consume
    return figures


def _chosen_clients() -> list[Contestant]:
    return [each for each in contestants() if each.name in _CLIENTS.values()]


def latency(broker: RunningBroker, _messages: int) -> Figures:
    """From publish to delivery at 1,000 a second."""
    found = _raw("latency", broker, _LATENCY_SECONDS)
    return {f"publish to delivery, {name}, ms": found[name] * 1e3 for name in ("p50", "p99")}


def memory(broker: RunningBroker, _messages: int) -> Figures:
    """Memory with messages queued: in addition to the empty broker, and in total."""
    before = broker.memory_bytes()
    _raw("publish", broker, _QUEUED, "--size", "1024")
    time.sleep(2)  # RabbitMQ releases memory after a while
    after = broker.memory_bytes()
    _clear(broker)
    return {
        f"memory, {_QUEUED:,} of 1 KiB queued, MiB": after / 2**20,
        "of these for the messages, MiB": (after - before) / 2**20,
    }


def idle(broker: RunningBroker, _messages: int) -> Figures:
    """Memory of a connection that only sends heartbeats."""
    before = broker.memory_bytes()
    holder = subprocess.Popen(
        [sys.executable, "-m", "bench.server.raw", "idle", broker.url, str(_IDLE)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    if not holder.stdout.readline():
        raise RuntimeError(f"{broker.name}: no {_IDLE} connections")
    time.sleep(2)
    used = broker.memory_bytes() - before
    holder.communicate("", timeout=_TIMEOUT)
    return {f"an idle connection of {_IDLE:,}, KiB": used / _IDLE / 1024}


MEASURES: dict[str, Callable[[RunningBroker, int], Figures]] = {
    "idle": idle,
    "memory": memory,
    "raw": raw,
    "crowd": crowd,
    "clients": clients,
    "latency": latency,
}
ONCE = ("idle", "memory")
"""These need a fresh broker, since a broker keeps memory that it has used."""


def measure(
    brokers: Sequence[RunningBroker], names: Sequence[str], messages: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Quantity, broker, and the figures of all rounds."""
    results: dict[str, dict[str, list[float]]] = {}
    for number in range(1, rounds + 1):
        for name in names:
            if number > 1 and name in ONCE:
                continue
            for broker in brokers:
                try:
                    figures = MEASURES[name](broker, messages)
                except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                    notes.print(f"{broker.name}: {name}: {error}", style="red", markup=False)
                    continue
                for quantity, figure in figures.items():
                    results.setdefault(quantity, {}).setdefault(broker.name, []).append(figure)
                    notes.print(
                        f"round {number}: {broker.name}: {quantity}: {figure:,.1f}",
                        markup=False,
                        soft_wrap=True,
                    )
    return results


def table(results: dict[str, dict[str, list[float]]], names: Sequence[str], title: str) -> Table:
    """A table for people: medians, and ratios to the first broker."""
    made = Table(title=title, box=SIMPLE_HEAD, title_style="bold")
    made.add_column("quantity")
    for name in names:
        made.add_column(name, justify="right")
    for quantity, of_brokers in results.items():
        base = median(of_brokers[names[0]]) if names[0] in of_brokers else None
        cells = []
        for name in names:
            if name not in of_brokers:
                cells.append("-")
                continue
            figure = median(of_brokers[name])
            ratio = f" ({figure / base:.2f}x)" if base and name != names[0] else ""
            cells.append(f"{figure:,.1f}{ratio}")
        made.add_row(quantity, *cells)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="in each run")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), default=list(MEASURES))
    file = ROOT / "build" / "bench-server.json"
    parser.add_argument("--json", type=Path, default=file, metavar="FILE")
    options = parser.parse_args()
    facts: dict[str, Any] = machine.facts()
    loops = [False, True] if importlib.util.find_spec("uvloop") else [False]
    with ExitStack() as stack:
        brokers = [stack.enter_context(rabbitmq())]
        for uvloop in loops:
            brokers += [
                stack.enter_context(ours(keeps=keeps, uvloop=uvloop)) for keeps in (True, False)
            ]
        results = measure(brokers, options.only, options.messages, options.rounds)
    names = [broker.name for broker in brokers]
    title = f"{options.messages:,} messages, {facts['cores']} cores, {datetime.now(UTC):%Y-%m-%d}"
    Console(highlight=False).print(table(results, names, title))
    document = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": facts,
        "messages": options.messages,
        "results": results,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=2) + "\n")
    notes.print(f"written to {options.json}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
