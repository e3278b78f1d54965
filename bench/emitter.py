"""Measures an emitter: create one, add a listener, emit, as for every publish.

    python -m bench.emitter

Compared with pyee's emitter for asyncio, which takes async listeners as ours does.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import timeit
from collections.abc import Callable
from typing import Any, ClassVar

from broker_client.runtime.emitter import Emitter
from broker_client.runtime.tasks import TaskGroup

ROUNDS = 7


class Ours(Emitter):
    """Like `Publication`: with slots and declared events."""

    __slots__ = ()

    EVENTS: ClassVar[frozenset[str]] = frozenset({"success", "error"})


def listener(message_id: str) -> None:
    """Does nothing."""


def steps(make: Callable[[], Any]) -> dict[str, Callable[[], object]]:
    """The measurements by name."""

    def once() -> None:
        emitter = make()
        emitter.on("success", listener)
        emitter.emit("success", "id")

    standing = make()
    standing.on("success", listener)
    return {
        "make": make,
        "make, listen, emit": once,
        "emit": lambda: standing.emit("success", "id"),
    }


def microseconds(step: Callable[[], object], number: int) -> float:
    """Figures of the fastest round, since slower ones were disturbed."""
    return min(timeit.repeat(step, number=number, repeat=ROUNDS)) / number * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.emitter")
    parser.add_argument("--number", type=int, default=50_000, metavar="N", help="times a round")
    number = parser.parse_args().number
    tasks = TaskGroup("bench")
    ours = {name: microseconds(step, number) for name, step in steps(lambda: Ours(tasks)).items()}
    if importlib.util.find_spec("pyee") is None:
        print("pyee is not installed: pip install pyee")
        theirs = {}
    else:
        kind: Any = importlib.import_module("pyee.asyncio").AsyncIOEventEmitter
        theirs = {name: microseconds(step, number) for name, step in steps(kind).items()}
    print(f"{'microseconds':20}{'ours':>8}{'pyee':>8}")
    for name, mine in ours.items():
        other = f"{theirs[name]:8.2f}   {theirs[name] / mine:.1f} x" if theirs else ""
        print(f"{name:20}{mine:8.2f}{other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
