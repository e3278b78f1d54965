"""How the applications of one run are configured, drawn from its seed: no promise depends on it."""

from __future__ import annotations

from dataclasses import dataclass, field
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

    @classmethod
    def drawn(cls, chance: Random) -> Variant:
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
