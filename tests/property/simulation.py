"""Thousands of schedules of one node, each from a seed: which fails can be run again.

python -m tests.property.simulation --runs 5000          # seeds 0, 1, 2, ...
python -m tests.property.simulation --seed 1234 --trace  # one of them, step by step
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from tests.property.world import DEAD, FANOUT, QUEUES, SINGLE, BrokenPromiseError, World

STEPS = 120


class Simulation:
    """One schedule."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.trace = trace
        self._random = Random(seed)
        self.world = World(memory_limit=self._random.choice([0, 5, 1 << 20]))
        # Each run has a character of its own, so that rare things also come together.
        self._weights = {name: self._random.choice([0, 1, 1, 2, 4]) for name in _STEPS}
        self._weights["publish"] += 2
        self._weights["turn"] += 2
        self._weights["end_commit"] += 1

    def run(self, steps: int = STEPS) -> None:
        """Do `steps` things by chance; then all that is left must be as promised.

        Raises:
            BrokenPromiseError: the node did other than it had said.
        """
        names, weights = list(self._weights), list(self._weights.values())
        for number in range(steps):
            name = self._random.choices(names, weights)[0]
            if self.world.node.failure is not None and name not in _AFTER_FAILURE:
                name = "crash"
            action = _STEPS[name](self._random, self.world)
            if self.trace:
                print(f"{number:4} life {self.world.lives} {_shown(name, action)}")  # noqa: T201
            self.world.guarded(action)
            self.world.check()
            self.world.check_memory()
        self.world.guarded(self.world.crash)
        self.world.settle_down()
        self.world.check()


def _shown(name: str, action: Callable[[], object]) -> str:
    if isinstance(action, partial):
        given = [*map(repr, action.args), *(f"{k}={v!r}" for k, v in action.keywords.items())]
        return f"{name}({', '.join(given)})"
    return name


Step = Callable[[Random, World], Callable[[], Any]]


def _publish(random: Random, world: World) -> Callable[[], Any]:
    return partial(
        world.publish,
        random.randrange(3),
        random.choice([None, *SINGLE]),
        persistent=random.random() < 0.9,
        priority=random.randrange(4),
    )


def _die_soon(random: Random, world: World) -> Callable[[], Any]:
    def arm(points: int, commits: int) -> None:
        world.die_in, world.commits_at_death = points, commits

    return partial(arm, random.randrange(1, 12), random.randrange(3))


_STEPS: dict[str, Step] = {
    "publish": _publish,
    "consume": lambda r, w: partial(
        w.consume, r.randrange(3), r.choice(list(QUEUES)), r.randrange(4)
    ),
    "cancel": lambda r, w: partial(w.cancel, r.randrange(3)),
    "get": lambda r, w: partial(
        w.get, r.randrange(3), r.choice(list(QUEUES)), no_ack=r.random() < 0.3
    ),
    "ack": lambda r, w: partial(w.ack, r.randrange(20)),
    "reject": lambda r, w: partial(w.reject, r.randrange(20)),
    "requeue": lambda r, w: partial(w.requeue, r.randrange(20), r.choice([None, None, 0.0, 3.0])),
    "touch": lambda r, w: partial(w.touch, r.randrange(20)),
    "close_channel": lambda r, w: partial(w.close_channel, r.randrange(3)),
    "purge": lambda r, w: partial(w.purge, r.choice([*FANOUT, DEAD])),
    "remake": lambda r, w: partial(w.remake, r.choice([*FANOUT, "short"])),
    "advance": lambda r, w: partial(w.advance, r.choice([0.0, 0.5, 2.0, 6.0])),
    "turn": lambda r, w: w.turn,
    "end_commit": lambda r, w: partial(w.end_commit, fail=r.random() < 0.03),
    "note_attempts": lambda r, w: w.note_attempts,
    "crash": lambda r, w: w.crash,
    "die_soon": _die_soon,
}
_AFTER_FAILURE = {"turn", "end_commit", "crash", "die_soon"}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.simulation")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--runs", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--seconds", type=float, help="go on for so long instead of N runs")
    parser.add_argument("--trace", action="store_true", help="print every step")
    options = parser.parse_args()
    logging.disable()  # what the node logs when its store fails, as it shall
    if options.seed is not None:
        Simulation(options.seed, trace=options.trace).run()
        print(f"seed {options.seed}: all promises kept")  # noqa: T201
        return 0
    began = time.monotonic()
    runs = 0
    while (
        runs < options.runs
        if options.seconds is None
        else time.monotonic() - began < options.seconds
    ):
        seed = options.first + runs
        try:
            Simulation(seed).run()
        except (Exception, BrokenPromiseError) as error:
            print(  # noqa: T201
                f"seed {seed}: {type(error).__name__}: {error}\n"
                f"again: python -m tests.property.simulation --seed {seed} --trace"
            )
            raise
        runs += 1
    print(f"{runs} schedules of {STEPS} steps, {time.monotonic() - began:.0f} s: all kept")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
