"""What shall happen in one run, drawn from its seed: each step can be left out on its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.simulation.application import WORK
from tests.simulation.promises import ORDERED
from tests.simulation.variant import Variant

CLIENTS = ("a", "b")
_LENGTH = 15.0  # seconds in which it happens


@dataclass(frozen=True, slots=True)
class Step:
    """One of them."""

    at: float
    """Seconds from the start."""
    name: str
    arguments: tuple[Any, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it goes on."""
        lasts = self.name in ("silence", "slow", "slow_disk")
        return float(self.arguments[-1]) if lasts else 0.0

    def __str__(self) -> str:
        return f"{self.at:6.2f} s {self.name}({', '.join(map(repr, self.arguments))})"


FAULTS = {
    "cut": 3,
    "storm": 1,
    "silence": 2,
    "slow": 1,
    "kill_server": 2,
    "cut_power": 2,
    "die_in_commit": 3,
    "fail_disk": 1,
    "slow_disk": 1,
    "stop_server": 1,
    "kill_client": 1,
}
"""How often each is drawn."""
DISK_FAULTS = ("kill_server", "cut_power", "die_in_commit", "fail_disk", "slow_disk", "stop_server")
"""Those of the process that holds the broker."""
NETWORK_FAULTS = ("cut", "storm", "silence", "slow", "kill_client")
"""Those that need nothing of the broker's own."""


@dataclass(frozen=True)
class Plan:
    """The steps of one seed, in order of their time."""

    seed: int
    steps: tuple[Step, ...]
    variant: Variant
    """How the applications are configured."""

    @classmethod
    def drawn(
        cls, seed: int, faults: Collection[str] = tuple(FAULTS), *, disk: bool = False
    ) -> Plan:
        """The plan of a seed.

        Args:
            seed: what else.
            faults: those that there are.
            disk: the applications have one.
        """
        chance = Random(seed)
        steps = [_publish(chance) for _ in range(chance.randrange(3, 10))]
        names = [name for name in FAULTS if name in faults]
        # Each run has a character of its own, so that rare things also come together.
        weights = [FAULTS[name] * chance.choice([0, 1, 1, 3]) for name in names]
        if any(weights):
            drawn = chance.choices(names, weights, k=chance.randrange(8))
            steps += [
                Step(chance.uniform(0.0, _LENGTH), name, _ARGUMENTS[name](chance)) for name in drawn
            ]
        steps.sort(key=lambda step: step.at)
        variant = Variant.drawn(Random(f"variant {seed}"), disk=disk)
        return cls(seed, tuple(steps), variant)

    def only(self, numbers: Collection[int]) -> Plan:
        """The same with fewer steps."""
        return replace(self, steps=tuple(self.steps[number] for number in sorted(numbers)))

    @property
    def end(self) -> float:
        """Seconds from the start until the last fault is over, if not earlier."""
        return max((step.at + step.seconds for step in self.steps), default=0.0)

    def program(self, runner: str) -> str:
        """Python that does the same, whatever becomes of the generator.

        Args:
            runner: module of the function `run` that takes a plan.
        """
        steps = "".join(f"    {step!r},\n" for step in self.steps)
        return (
            "from tests.simulation.plan import Plan, Step\n"
            "from tests.simulation.variant import Variant\n"
            f"from {runner} import run\n\n"
            f"variant = {self.variant!r}\n"
            f"steps = (\n{steps})\n"
            f"run(Plan({self.seed}, steps, variant))  # the seed also draws who runs when\n"
        )


def _publish(chance: Random) -> Step:
    arguments = chance.choice(CLIENTS), chance.choice([WORK, ORDERED]), chance.randrange(1, 12)
    return Step(chance.uniform(0.0, _LENGTH), "publish", arguments)


def _client(chance: Random) -> tuple[Any, ...]:
    return (chance.choice(CLIENTS),)


_ARGUMENTS: dict[str, Any] = {
    "cut": _client,
    "kill_client": _client,
    "storm": lambda c: (c.choice(CLIENTS), c.choice([3, 6, 9, 15])),
    "silence": lambda c: (
        c.choice(CLIENTS),
        c.choice(["to", "from", "both"]),
        c.choice([0.5, 3.0, 12.0, 25.0]),
    ),
    "slow": lambda c: (c.choice([0.01, 0.2]), c.choice([1.0, 5.0])),
    "kill_server": lambda c: (),
    "cut_power": lambda c: (),
    "die_in_commit": lambda c: (c.randrange(1, 40),),
    "fail_disk": lambda c: (c.choice(["write", "sync", "full"]), c.randrange(1, 20)),
    "slow_disk": lambda c: (c.choice([0.05, 0.5]), c.choice([1.0, 5.0])),
    "stop_server": lambda c: (),
}
