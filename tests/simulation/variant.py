"""How the applications of one run are configured, drawn from its seed: no promise depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

Options = dict[str, Any]

_PLAIN = 0.3
"""Share of the runs with nothing but what is usual."""


@dataclass(frozen=True)
class Variant:
    """One of the ways."""

    prefetch: int = 10
    arguments: Options = field(default_factory=dict)
    """Of the queue whose order does not matter."""
    topic: bool = False
    """Messages go through a topic exchange."""
    publish_queue: Options = field(default_factory=dict)
    channels: Options = field(default_factory=dict)
    """The pools of channels."""
    subscription: Options = field(default_factory=dict)
    """Of the subscription whose order does not matter."""
    overrides: tuple[Options, ...] = ({},)
    """Of its publishes, in turns."""
    shovel: bool = False
    """Messages come to the queue whose order does not matter by a shovel."""
    many: bool = False
    """They are published by `publish_many`."""
    batch: bool = False
    """Dead letters are handled in batches."""
    replay: bool = False
    """Dead letters are put back, and none is handled."""
    deduplicate: str = ""
    """The store of handled ids, of the queue whose order does not matter."""
    counter: str = ""
    """Where redeliveries are counted."""
    outbox: bool = False
    """Publishes are in a file of the application's before they are sent."""

    @property
    def hops(self) -> int:
        """How often a message is passed on between its publish and its handler."""
        return 1 + self.shovel + self.replay + self.outbox

    @classmethod
    def drawn(cls, chance: Random, *, disk: bool = False) -> Variant:
        """
        Args:
            chance: draws.
            disk: the application has one.
        """
        plain = cls._without_features(chance)
        is_quorum = plain.arguments.get("x-queue-type") == "quorum"
        return replace(
            plain,
            shovel=chance.random() < 0.25,
            many=chance.random() < 0.3,
            batch=chance.random() < 0.4,
            replay=chance.random() < 0.2,
            deduplicate=chance.choice(["", "memory", "sqlite" if disk else ""]),
            # A quorum queue counts them itself, and has a limit of its own.
            counter=("" if is_quorum else chance.choice(["", "memory", "sqlite" if disk else ""])),
            outbox=disk and chance.random() < 0.4,
        )

    @classmethod
    def _without_features(cls, chance: Random) -> Variant:
        prefetch = chance.choice([1, 3, 10])
        if chance.random() < _PLAIN:
            return cls(prefetch)
        several: list[tuple[Options, ...]] = [
            ({},),
            ({"delay": 0.7}, {}),
            ({"priority": 1}, {"priority": 4}),
        ]
        overrides = chance.choice(several)
        kinds: list[Options] = [{}, {"x-max-priority": 5}, {"x-queue-type": "quorum"}]
        arguments = chance.choice(kinds)
        return cls(
            prefetch,
            arguments,
            topic=chance.random() < 0.5,
            publish_queue=chance.choice(
                [{}, {"max_in_flight": 1}, {"max_in_flight": 3, "batch": 2}, {"max_queued": 2}]
            ),
            channels=chance.choice([{}, {"max": 1}, {"min": 2, "autostart": True}]),
            subscription={
                **chance.choice([{}, {"concurrency": 2}, {"rate": "20/s"}]),
                **chance.choice([{}, {"breaker": {"ratio": 0.3, "min": 3, "pause": "1s"}}]),
            },
            overrides=overrides,
        )
