"""Figures of several rounds as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.contestants import BASE, Run


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity over the rounds: messages a second, or microseconds a message."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.rounds)

    def __str__(self) -> str:
        if len(self.rounds) == 1 or self.median < 1000:
            return f"{self.median:,.0f}"
        lowest, highest = min(self.rounds) / 1000, max(self.rounds) / 1000
        return f"{self.median:,.0f} ({lowest:.1f}-{highest:.1f}k)"


Results = dict[str, dict[str, Figure]]
"""By client and quantity."""


def results_of(runs: dict[str, Sequence[Run]]) -> Results:
    """The figures of every client that ran."""
    return {
        name: {
            "publish": Figure(tuple(run.publish for run in of_client)),
            "consume": Figure(tuple(run.consume for run in of_client)),
            "processor": Figure(tuple(run.processor for run in of_client)),
        }
        for name, of_client in runs.items()
        if of_client
    }


def table(results: Results, title: str, apart: Sequence[str]) -> Table:
    """For people. The clients in `apart` use another broker and are printed below a line."""
    made = Table(title=title, box=SIMPLE_HEAD, title_style="bold")
    made.caption = (
        f"messages a second: median (lowest-highest), and times {BASE}; "
        "µs: processor time of the client for a message"
    )
    made.add_column("client", no_wrap=True)
    for column in ("publish, confirmed", "x", "consume + ack", "x", "µs"):
        made.add_column(column, justify="right", no_wrap=True)
    names = [name for name in results if name not in apart]
    for name in names + [name for name in results if name in apart]:
        if name in apart:
            made.add_section()
        cells = []
        for quantity in ("publish", "consume"):
            figure = results[name][quantity]
            cells += [str(figure), _ratio(results, quantity, figure)]
        made.add_row(name, *cells, str(results[name]["processor"]))
    return made


def _ratio(results: Results, quantity: str, figure: Figure) -> str:
    if BASE not in results:
        return ""
    return f"{figure.median / results[BASE][quantity].median:.1f}"


def as_json(results: Results) -> dict[str, Any]:
    """For machines."""
    return {
        name: {
            quantity: {
                "median": round(figure.median),
                "rounds": [round(each) for each in figure.rounds],
            }
            for quantity, figure in of_client.items()
        }
        for name, of_client in results.items()
    }
