"""Every measurement of the documents, one after the other.

    python -m bench                              # all; most of an hour on a quiet machine
    python -m bench cpu engine starting          # these
    python -m bench --list                       # what there is
    python -m bench clients --rabbitmq 3.10 4.3  # one, with options of its own

Each is a program of its own (`python -m bench.clients --help`), and stands alone. Ratios within one
run mean more than rates: other work on the machine changes these.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import NamedTuple

from rich.console import Console


class Section(NamedTuple):
    """One measurement."""

    command: tuple[str, ...]
    """A module of this folder, and its options."""
    what: str


SECTIONS = {
    "clients": Section(("clients",), "publish and consume, beside other clients, on RabbitMQ"),
    "cpu": Section(("cpu",), "processor time and calls a message, on the built-in broker"),
    "rooms": Section(
        ("cpu", "publish", "publish-many", "consume", "--on", "memory", "--rooms"),
        "the calls, by room of the package",
    ),
    "layers": Section(("layers",), "processor time a message on RabbitMQ, layer by layer"),
    "ladder": Section(("ladder",), "what a publish costs, layer by layer, and what a file adds"),
    "engine": Section(("core.rates",), "the engine alone; a thousand and a million in flight"),
    "handling": Section(("handling",), "a handled message, and the engine, layer by layer"),
    "store": Section(("store",), "a file beside memory; starting with a million; memory"),
    "latency": Section(("latency",), "publish to handler at a steady rate, beside aio-pika"),
    "starting": Section(("starting",), "import, and from Broker.create to the first message"),
    "growth": Section(("growth",), "the cost of a message with more and more of everything"),
    "heaps": Section(("core.heaps",), "structures for deadlines"),
    "scan": Section(("core.scan",), "how late the node meets its deadlines"),
    "percentiles": Section(("core.latency",), "structures for percentiles"),
    "emitter": Section(("emitter",), "our emitter beside pyee's"),
    "server": Section(("server",), "broker-client serve beside RabbitMQ"),
    "replay": Section(("replay",), "replay of dead letters beside plain republishing"),
    "holds": Section(("broker_holds",), "how long one command blocks the broker's event loop"),
    "dashboard": Section(("dashboard_holds",), "how long a page or a request blocks it"),
    "open": Section(("dashboard_open",), "the rates with a dashboard open and without"),
    "failover": Section(("failover",), "how long a lost RabbitMQ stops an application"),
    "elections": Section(("elections",), "how long RabbitMQ takes for another leader"),
    "spark": Section(("spark",), "what Spark and the event log cost"),
}

notes = Console(stderr=True, highlight=False)


def chosen(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The sections that the command line names, and the options for the only one.

    Raises:
        SystemExit: there is no such section, or there are options for several.
    """
    names: list[str] = []
    while arguments and not arguments[0].startswith("-"):
        names.append(arguments.pop(0))
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        sys.exit(f"bench: no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if arguments and len(names) != 1:
        sys.exit(f"bench: {arguments[0]} is an option of one section: name it first")
    return names or list(SECTIONS), arguments


def main(arguments: list[str]) -> int:
    """Run the sections; returns 1 if one of them failed."""
    if arguments in (["--help"], ["-h"], ["--list"]):
        if arguments != ["--list"]:
            print(__doc__)
        for name, section in SECTIONS.items():
            print(f"{name:<12}{section.what}")
        return 0
    names, options = chosen(arguments)
    failed = []
    for number, name in enumerate(names, 1):
        section = SECTIONS[name]
        notes.print(f"[{number}/{len(names)}] {name}: {section.what}", style="bold", markup=False)
        begun = time.monotonic()
        module, *given = section.command
        command = [sys.executable, "-m", f"bench.{module}", *given, *options]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        notes.print(f"{name} took {time.monotonic() - begun:.0f} s", style="dim")
    if failed:
        notes.print(f"failed: {', '.join(failed)}", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
