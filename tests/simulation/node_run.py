"""One run of a node alone, on a disk that is a model: quick, so there can be many.

Every command of the core, in any order, with deaths between any two effects. What clients, sockets
and SQLite add is in `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Any

from tests.simulation.node_world import DEAD, FANOUT, QUEUES, SINGLE, World

STEPS = 120


class NodeRun:
    """One schedule."""

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        self.seed = seed
        chance = Random(seed)
        self.world = World(memory_limit=chance.choice([0, 5, 1 << 20]))
        # Each run has a character of its own, so that rare things also come together.
        weights = {name: chance.choice([0, 1, 1, 2, 4]) for name in _STEPS}
        weights["publish"] += 2
        weights["turn"] += 2
        weights["end_commit"] += 1
        names = chance.choices(list(weights), list(weights.values()), k=steps)
        self.plan = [(name, _STEPS[name](chance, self.world)) for name in names]

    def run(
        self, kept: Collection[int] | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        """Do what is planned; then all that is left must be as promised.

        Args:
            kept: the numbers of the steps to do; None for all.
            trace: gets each step.

        Raises:
            BrokenPromiseError: the node did other than it had said.
        """
        world = self.world
        for number, (name, planned) in enumerate(self.plan):
            if kept is not None and number not in kept:
                continue
            action = planned
            if world.node.failure is not None and name not in _AFTER_FAILURE:
                name, action = "crash", world.crash
            if trace is not None:
                trace(f"{number:4} life {world.lives} {_shown(name, action)}")
            world.guarded(action)
            world.check()
            world.check_memory()
        world.guarded(world.crash)
        world.settle_down()
        world.check()


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
