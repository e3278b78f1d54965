"""The two simulations as their command and their tests see them, and how a failure is shrunk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from tests.simulation import world
from tests.simulation.node_run import NodeRun
from tests.simulation.node_world import BrokenPromiseError as BrokenNodePromiseError
from tests.simulation.plan import Plan
from tests.simulation.promises import BrokenPromiseError

Trace = Callable[[str], None]


@dataclass(frozen=True)
class Level:
    """A kind of simulation."""

    name: str
    count: Callable[[int], int]
    """How many steps a seed has."""
    run: Callable[[int, Collection[int] | None, Trace | None], None]
    """Runs a seed, or some of its steps; raises what `failure` catches."""


@dataclass(frozen=True)
class Failure:
    """A seed, with as few of its steps as still break a promise."""

    level: str
    seed: int
    steps: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        steps = ",".join(map(str, self.steps)) or "none"
        return (
            f"seed {self.seed}: {self.reason}\n"
            f"again: python -m tests.simulation --level {self.level} "
            f"--seed {self.seed} --steps {steps}"
        )


def _run_full(seed: int, kept: Collection[int] | None, trace: Trace | None) -> None:
    plan = Plan.drawn(seed)
    world.run(plan if kept is None else plan.only(kept), trace)


def _run_node(seed: int, kept: Collection[int] | None, trace: Trace | None) -> None:
    with _quiet():
        NodeRun(seed).run(kept, trace)


def _run_short(seed: int, kept: Collection[int] | None, trace: Trace | None) -> None:
    with _quiet():
        NodeRun(seed, _SHORT).run(kept, trace)


_SHORT = 30

LEVELS = {
    "full": Level("full", lambda seed: len(Plan.drawn(seed).steps), _run_full),
    "node": Level("node", lambda seed: len(NodeRun(seed).plan), _run_node),
    "node-short": Level("node-short", lambda seed: _SHORT, _run_short),
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A failed store is reported as it shall be, hundreds of times."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


def reason_of(level: Level, seed: int, kept: Collection[int] | None = None) -> str | None:
    """What is wrong with that run; None when nothing is."""
    try:
        level.run(seed, kept, None)
    except (Exception, BrokenPromiseError, BrokenNodePromiseError) as error:  # noqa: BLE001 - told
        return f"{type(error).__name__}: {error}"
    return None


def failure_of(level: Level, seed: int) -> Failure | None:
    """Run `seed`; a failure is shrunk. None when every promise is kept."""
    reason = reason_of(level, seed)
    if reason is None:
        return None
    steps = tuple(range(level.count(seed)))
    steps = shrunk(steps, lambda kept: reason_of(level, seed, kept) is not None)
    return Failure(level.name, seed, steps, reason_of(level, seed, steps) or reason)


def shrunk(steps: tuple[int, ...], fails: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """As few of `steps` as still fail: halves, quarters and so on are left out while they can be.

    That is the delta debugging of Zeller and Hildebrandt (2002), by complements only.
    """
    size = max(1, len(steps) // 2)
    while True:
        at, found = 0, False
        while at < len(steps):
            rest = steps[:at] + steps[at + size :]
            if fails(rest):
                steps, found = rest, True
            else:
                at += size
        if size == 1 and not found:
            return steps
        size = max(1, size // 2)
