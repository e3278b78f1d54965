"""Runs of a node alone, on a disk that is a model: quick, so there can be many.

Every command of the core, in any order, with deaths between any two effects. What clients, sockets
and SQLite add is in `world`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.simulation.node_world import DEAD, FANOUT, QUEUES, World

STEPS = 120
_FEW_STEPS, _FEW_QUEUES = 60, 2
"""A run shorter than that has only so many queues of a kind of their own: a life begins sooner."""
_OF_THEIR_KIND = [name for name in QUEUES if name not in (*FANOUT, DEAD)]


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A call of the world's: its method, and the arguments."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = (f"{name}={value!r}" for name, value in self.options.items())
        return ", ".join([repr(self.name), *map(repr, self.arguments), *options])


@dataclass(frozen=True)
class NodePlan:
    """One schedule."""

    queues: tuple[str, ...]
    memory_limit: int
    steps: tuple[NodeStep, ...]

    @classmethod
    def drawn(cls, seed: int, steps: int = STEPS) -> NodePlan:
        chance = Random(seed)
        queues = tuple(QUEUES)
        if steps < _FEW_STEPS:
            queues = (*FANOUT, *chance.sample(_OF_THEIR_KIND, _FEW_QUEUES), DEAD)
        memory_limit = chance.choice([0, 5, 1 << 20])
        # Each run has a character of its own, so that rare things also come together.
        weights = {name: chance.choice([0, 1, 1, 2, 4]) for name in _STEPS}
        weights["publish"] += 2
        weights["turn"] += 2
        weights["end_commit"] += 1
        names = chance.choices(list(weights), list(weights.values()), k=steps)
        drawn = tuple(NodeStep(name, *_STEPS[name](chance, queues)) for name in names)
        return cls(queues, memory_limit, drawn)

    def only(self, numbers: Collection[int]) -> NodePlan:
        """The same with fewer steps."""
        return replace(self, steps=tuple(self.steps[number] for number in sorted(numbers)))

    def run(self, trace: Callable[[str], None] | None = None) -> World:
        """Do what is planned; then all that is left must be as promised.

        Args:
            trace: gets each step.

        Raises:
            BrokenPromiseError: the node did other than it had said.
        """
        with _quiet():
            world = World(queues=self.queues, memory_limit=self.memory_limit)
            for number, step in enumerate(self.steps):
                if trace is not None:
                    trace(f"{number:4} life {world.lives} {step}")
                world.do(step.name, *step.arguments, **step.options)
            world.end()
        return world

    def program(self) -> str:
        """Python that does the same, whatever becomes of the generator."""
        steps = "".join(f"world.do({step})\n" for step in self.steps)
        return (
            "from tests.simulation.node_world import World\n\n"
            f"world = World(queues={self.queues!r}, memory_limit={self.memory_limit})\n"
            f"{steps}world.end()\n"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A failed store is reported as it shall be, thousands of times."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)


Drawn = tuple[tuple[Any, ...], dict[str, Any]]


def _publish(random: Random, queues: tuple[str, ...]) -> Drawn:
    at, queue = random.randrange(3), random.choice([None, *queues[:-1]])
    return (at, queue), {"persistent": random.random() < 0.9, "priority": random.randrange(4)}


def _get(random: Random, queues: tuple[str, ...]) -> Drawn:
    return (random.randrange(3), random.choice(queues)), {"no_ack": random.random() < 0.3}


def _end_commit(random: Random, queues: tuple[str, ...]) -> Drawn:
    return (), {"fail": True} if random.random() < 0.03 else {}


def _nothing(random: Random, queues: tuple[str, ...]) -> Drawn:
    return (), {}


def _given(draw: Callable[[Random, tuple[str, ...]], tuple[Any, ...]]) -> Any:
    return lambda random, queues: (draw(random, queues), {})


_STEPS: dict[str, Callable[[Random, tuple[str, ...]], Drawn]] = {
    "publish": _publish,
    "consume": _given(lambda r, queues: (r.randrange(3), r.choice(queues), r.randrange(4))),
    "cancel": _given(lambda r, _: (r.randrange(3),)),
    "get": _get,
    "ack": _given(lambda r, _: (r.randrange(20),)),
    "reject": _given(lambda r, _: (r.randrange(20),)),
    "requeue": _given(lambda r, _: (r.randrange(20), r.choice([None, None, 0.0, 3.0]))),
    "touch": _given(lambda r, _: (r.randrange(20),)),
    "close_channel": _given(lambda r, _: (r.randrange(3),)),
    "purge": _given(lambda r, _: (r.choice([*FANOUT, DEAD]),)),
    "remake": _given(lambda r, queues: (r.choice(queues[:-1]),)),
    "advance": _given(lambda r, _: (r.choice([0.0, 0.5, 2.0, 6.0]),)),
    "turn": _nothing,
    "end_commit": _end_commit,
    "note_attempts": _nothing,
    "crash": _nothing,
    "die_soon": _given(lambda r, _: (r.randrange(1, 12), r.randrange(3))),
}
