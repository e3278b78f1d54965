"""Results: written as Parquet, and printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Tables = dict[str, "DataFrame"]
"""Results by name."""

_SHOWN = 40
_WIDE = 9  # columns; a short table that has more is printed with its rows as columns
_SHORT = 4


def write(tables: Iterable[tuple[str, Callable[[Tables], DataFrame]]], out: Path) -> Tables:
    """Write each table to a folder of `out`; returns what was written, to be read at no cost."""
    written: Tables = {}
    for name, make in tables:
        table, there = make(written), str(out / name)
        table.coalesce(1).write.mode("overwrite").parquet(there)
        written[name] = table.sparkSession.read.schema(table.schema).parquet(there)
    return written


def show(console: Console, title: str, frame: DataFrame) -> None:
    """Print the first rows of `frame` as a table."""
    rows = [row.asDict() for row in frame.limit(_SHOWN + 1).collect()]
    if not rows:
        console.print(f"[bold]{title}[/bold]: nothing\n")
        return
    if len(rows) <= _SHORT and len(rows[0]) > _WIDE:
        console.print(_turned(title, rows))
    else:
        console.print(_upright(title, rows))
    if len(rows) > _SHOWN:
        console.print(f"... and more: the first {_SHOWN} are shown", style="dim")
    console.print()


def show_counts(console: Console, title: str, counts: Mapping[str, Any]) -> None:
    """Print one row of counts downwards."""
    table = _table(title, header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in counts.items():
        table.add_row(name.replace("_", " "), _shown(name, value))
    console.print(table)
    console.print()


def _upright(title: str, rows: list[dict[str, Any]]) -> Table:
    table = _table(title)
    for name in rows[0]:
        numeric = all(isinstance(row[name], int | float | None) for row in rows)
        table.add_column(
            name.replace("_", " "), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows[:_SHOWN]:
        table.add_row(*[_shown(name, value) for name, value in row.items()])
    return table


def _turned(title: str, rows: list[dict[str, Any]]) -> Table:
    names = list(rows[0])
    table = _table(title)
    table.add_column(names[0])
    for row in rows:
        table.add_column(_shown(names[0], row[names[0]]), justify="right")
    for name in names[1:]:
        table.add_row(name.replace("_", " "), *[_shown(name, row[name]) for row in rows])
    return table


def _table(title: str, *, header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=ROUNDED,
        border_style="dim",
        header_style="bold cyan",
        show_header=header,
    )


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.1%}" if name.endswith("_rate") else f"{value:,.2f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)
