"""The simulations as their command and their tests see them, and how a failure is shrunk."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation import embedded, world
from tests.simulation.node_run import STEPS, NodePlan
from tests.simulation.node_world import BrokenPromiseError as BrokenNodePromiseError
from tests.simulation.plan import DISK_FAULTS, Plan
from tests.simulation.promises import BrokenPromiseError

Trace = Callable[[str], None]
_SHORT = 30  # steps


class Run(Protocol):
    """What one seed does."""

    @property
    def steps(self) -> Sequence[object]: ...

    def only(self, numbers: Collection[int]) -> Run:
        """The same with fewer steps."""
        ...

    def run(self, trace: Trace | None = None) -> Any:
        """Do it. Raises what `reason_of` catches."""
        ...

    def program(self) -> str:
        """Python that does the same."""
        ...


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and the world in which it happens."""

    plan: Plan
    run_plan: Callable[[Plan, Trace | None], object]

    @property
    def steps(self) -> Sequence[object]:
        return self.plan.steps

    def only(self, numbers: Collection[int]) -> PlannedRun:
        return PlannedRun(self.plan.only(numbers), self.run_plan)

    def run(self, trace: Trace | None = None) -> None:
        self.run_plan(self.plan, trace)

    def program(self) -> str:
        return self.plan.program(self.run_plan.__module__)


@dataclass(frozen=True)
class Level:
    """A kind of simulation."""

    name: str
    draw: Callable[[int], Run]
    """What a seed does."""


@dataclass(frozen=True)
class Failure:
    """A seed, with as few of its steps as still break a promise."""

    level: str
    seed: int
    steps: tuple[int, ...]
    reason: str
    program: str

    def __str__(self) -> str:
        steps = ",".join(map(str, self.steps)) or "none"
        return (
            f"seed {self.seed}: {self.reason}\n"
            f"again: python -m tests.simulation --level {self.level} "
            f"--seed {self.seed} --steps {steps}\n"
            f"the same as a program, for when the seed means something else:\n\n{self.program}"
        )


LEVELS = {
    "full": Level("full", lambda seed: PlannedRun(Plan.drawn(seed), world.run)),
    "embedded": Level(
        "embedded",
        lambda seed: PlannedRun(Plan.drawn(seed, DISK_FAULTS, disk=True), embedded.run),
    ),
    "node": Level("node", lambda seed: NodePlan.drawn(seed, STEPS)),
    "node-short": Level("node-short", lambda seed: NodePlan.drawn(seed, _SHORT)),
}


def reason_of(run: Run) -> str | None:
    """What is wrong with that run; None when nothing is."""
    try:
        run.run()
    except (Exception, BrokenPromiseError, BrokenNodePromiseError) as error:  # noqa: BLE001 - told
        return f"{type(error).__name__}: {error}"
    return None


def failure_of(level: Level, seed: int) -> Failure | None:
    """Run `seed`; a failure is shrunk. None when every promise is kept."""
    run = level.draw(seed)
    reason = reason_of(run)
    if reason is None:
        return None
    steps = tuple(range(len(run.steps)))
    steps = shrunk(steps, lambda kept: reason_of(run.only(kept)) is not None)
    small = run.only(steps)
    return Failure(level.name, seed, steps, reason_of(small) or reason, small.program())


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
