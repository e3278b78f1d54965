"""A ratio of two figures, and its output."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two figures of one run, and what their ratio should be at least (or at most)."""

    name: str
    value: float
    target: float
    at_most: bool = False
    figures: dict[str, float] = field(default_factory=dict)
    """Figures by name with unit, such as ``on /s``."""

    @property
    def is_met(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target


def in_turns(
    works: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warm_up: int = 1,
    before: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each of `works`, round by round, the first rounds left out.

    In each round all of them run, so that a busy machine and a JVM that is still getting faster
    are the same for all. `before` each of them something else may be done, which is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(warm_up + rounds):
        names = list(works)
        for name in names if number % 2 else reversed(names):
            before()
            started = time.perf_counter()
            works[name]()
            if number >= warm_up:
                taken[name].append(time.perf_counter() - started)
    return taken


def middle(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of two figures each of one round."""
    return median(a / b for a, b in zip(above, below, strict=True))


def table(ratios: Sequence[Ratio]) -> Table:
    """For people."""
    made = Table(title="Spark and the event log", box=SIMPLE_HEAD, title_style="bold")
    for column, justify in (
        ("ratio", "left"),
        ("measured", "right"),
        ("target", "right"),
        ("", "left"),
        ("figures", "left"),
    ):
        made.add_column(column, justify=justify)  # type: ignore[arg-type] # a literal of the two
    for each in ratios:
        made.add_row(
            each.name,
            f"{each.value:.2f}",
            f"{'<=' if each.at_most else '>='} {each.target:g}",
            "[green]met[/green]" if each.is_met else "[red]missed[/red]",
            ", ".join(
                f"{name} {value:,.3g}" if value < 100 else f"{name} {value:,.0f}"
                for name, value in each.figures.items()
            ),
        )
    return made


def as_json(ratios: Sequence[Ratio]) -> list[dict[str, Any]]:
    """For machines."""
    return [
        {
            "name": each.name,
            "value": round(each.value, 3),
            "target": each.target,
            "at_most": each.at_most,
            "met": each.is_met,
            "figures": {name: round(value, 3) for name, value in each.figures.items()},
        }
        for each in ratios
    ]
