"""Pictures of the results: PNG, SVG, or a page of HTML with the picture inside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.drawing import (
    COLOURS,
    EVENT_COLOURS,
    INK,
    bars,
    new_figure,
    nothing,
    plain_numbers,
    save,
    short_dates,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

Rows = list[dict[str, Any]]
_MOST_QUEUES = 4  # rows of panels; the queues with most messages


def draw(job: str, tables: Mapping[str, DataFrame], path: Path) -> None:
    """Draw the tables of a job.

    Args:
        path: its ending says how: ``.png``, ``.svg`` or ``.html``.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    rows = {name: [row.asDict() for row in table.collect()] for name, table in tables.items()}
    save(picture(job, rows), path)


def picture(job: str, rows: dict[str, Rows]) -> Figure:
    """The picture of a job's tables, their rows given by name."""
    return _PICTURES[job](rows)


def _latency(rows: dict[str, Rows]) -> Figure:
    table = rows["latency"]
    phases = [
        each for each in ("wait", "handle", "total") if any(r["phase"] == each for r in table)
    ]
    queues = _busiest(table, "n")
    figure = new_figure(
        "Latency: median, 95 % and 99 %",
        4.2 * max(len(phases), 1) + 1,
        2.6 * max(len(queues), 1) + 0.8,
    )
    if not table:
        return nothing(figure)
    panels = figure.subplots(len(queues), len(phases), squeeze=False, sharey="row", sharex=True)
    for row, queue in enumerate(queues):
        for column, phase in enumerate(phases):
            axes = panels[row][column]
            found = [r for r in table if r["queue"] == queue and r["phase"] == phase]
            draw_latency(axes, found)
            axes.set_title(f"{queue}: {_PHASES[phase]}")
            if not column:
                axes.set_ylabel("milliseconds")
    if panels[0][0].get_legend_handles_labels()[0]:
        panels[0][0].legend(loc="best", ncols=2, fontsize=8)
    return figure


_PHASES = {"wait": "waiting", "handle": "being handled", "total": "publish to ack"}


def draw_latency(axes: Axes, rows: Rows) -> None:
    """Percentiles over time; where there is one window only, as bars."""
    lines = (
        ("p50_ms", "50 %", COLOURS[0]),
        ("p95_ms", "95 %", COLOURS[1]),
        ("p99_ms", "99 %", COLOURS[4]),
        ("max_ms", "max", "#9ca3af"),
    )
    rows = sorted(rows, key=lambda row: row["window"])
    if len(rows) == 1:
        values = [rows[0][key] for key, _, _ in lines]
        drawn = axes.barh(
            [label for _, label, _ in lines], values, color=[c for _, _, c in lines], height=0.6
        )
        axes.bar_label(drawn, [f"{value:,.3g} ms" for value in values], padding=4, fontsize=9)
        axes.margins(x=0.25)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        return
    times = [row["window"] for row in rows]
    for key, label, colour in lines:
        style: dict[str, Any] = {"linestyle": ":"} if key == "max_ms" else {"linewidth": 1.8}
        axes.plot(times, [row[key] for row in rows], color=colour, label=label, **style)
    axes.fill_between(
        times, [r["p50_ms"] for r in rows], [r["p95_ms"] for r in rows], color=COLOURS[0], alpha=0.1
    )
    axes.set_yscale("log")
    plain_numbers(axes.yaxis)
    short_dates(axes)


def _throughput(rows: dict[str, Rows]) -> Figure:
    events, depth = rows["throughput"], rows["backlog"]
    figure = new_figure("Throughput and backlog", 11, 8)
    if not events:
        return nothing(figure)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 1.4])
    totals: dict[str, dict[Any, int]] = defaultdict(lambda: defaultdict(int))
    for row in events:
        totals[row["event"]][row["window"]] += row["n"]
    windows = sorted({row["window"] for row in events})
    marker = "o" if len(windows) < 30 else ""
    for event in [each for each in EVENT_COLOURS if each in totals]:
        values = [totals[event].get(each, 0) for each in windows]
        top.plot(
            windows,
            values,
            label=event.replace("_", " "),
            color=EVENT_COLOURS[event],
            linewidth=1.8,
            marker=marker,
            markersize=3,
        )
    top.set_title("events in each window")
    top.set_ylim(bottom=0)
    top.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    for colour, queue in zip(COLOURS, _busiest(depth, "entered", most=len(COLOURS)), strict=False):
        mine = [row for row in depth if row["queue"] == queue]
        times = [row["window"] for row in mine]
        middle.step(
            times,
            [row["backlog"] for row in mine],
            where="post",
            color=colour,
            label=queue,
            linewidth=1.8,
        )
        middle.fill_between(
            times, [row["backlog"] for row in mine], step="post", color=colour, alpha=0.12
        )
        ages = [row["oldest_age_s"] or 0 for row in mine]
        bottom.step(times, ages, where="post", color=colour, linewidth=1.5)
    middle.set_title("messages in the queue at the end of each window")
    middle.set_ylim(bottom=0)
    if depth:
        middle.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    bottom.set_title("age of the oldest of them, in seconds")
    bottom.set_ylim(bottom=0)
    for axes in (top, middle, bottom):
        plain_numbers(axes.yaxis)
    short_dates(bottom)
    return figure


def _reliability(rows: dict[str, Rows]) -> Figure:
    table = [row for row in rows["reliability"] if row["delivered"]]
    causes = [row for row in rows["causes"] if not _follows_a_nack(row)]
    causes = sorted(causes, key=lambda row: -row["n"])[:15]
    height = 1.6 + 0.75 * len(table) + 0.32 * max(len(causes), 2)
    figure = new_figure("Reliability", 10, max(height, 4))
    if not table and not causes:
        return nothing(figure)
    upper, lower = figure.subplots(
        2, 1, height_ratios=[max(len(table), 1) * 0.75 + 0.6, max(len(causes), 2) * 0.32 + 0.6]
    )
    rates = (
        ("redelivered_rate", "redelivered", EVENT_COLOURS["requeued"]),
        ("nacked_rate", "nacked", EVENT_COLOURS["nacked"]),
        ("timed_out_rate", "timed out", EVENT_COLOURS["timed_out"]),
        ("dead_lettered_rate", "dead-lettered", EVENT_COLOURS["dead_lettered"]),
    )
    names = [_named(row["queue"], row["subscription"]) for row in table]
    for offset, (key, label, colour) in enumerate(rates):
        places = [place + (offset - 1.5) * 0.2 for place in range(len(table))]
        values = [100 * (row[key] or 0.0) for row in table]
        drawn = upper.barh(places, values, height=0.18, color=colour, label=label)
        upper.bar_label(drawn, [f"{value:.3g} %" for value in values], padding=3, fontsize=8)
    upper.set_yticks(range(len(table)), names)
    upper.invert_yaxis()
    upper.set_title("share of deliveries, in %")
    upper.margins(x=0.12)
    upper.set_xlim(left=0)
    upper.grid(axis="y", visible=False)
    upper.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    bars(
        lower,
        "causes",
        [_cause(row) for row in causes],
        [row["n"] for row in causes],
        [EVENT_COLOURS.get(row["event"], INK) for row in causes],
    )
    return figure


def _follows_a_nack(row: dict[str, Any]) -> bool:
    """True if the same failure is already counted as `nacked`."""
    return row["event"] == "requeued" and row["reason"] in ("rejected", "handler_error")


def _cause(row: dict[str, Any]) -> str:
    why = row["error_class"] or row["reason"]
    return f"{row['queue'] or 'publishing'}: {row['event'].replace('_', ' ')}" + (
        f" ({why})" if why else ""
    )


def _poison(rows: dict[str, Rows]) -> Figure:
    groups = rows["poison_groups"][:15]
    figure = new_figure("Poison messages, by what went wrong", 10, 1.8 + 0.4 * max(len(groups), 2))
    if not groups:
        return nothing(figure, "no message was tried again and again")
    axes = figure.subplots()
    labels = [f"{row['queue']}: {row['fingerprint']}" for row in groups]
    bars(
        axes,
        "messages",
        [shortened(each, 70) for each in labels],
        [row["messages"] for row in groups],
        [COLOURS[1]] * len(groups),
    )
    return figure


def _audit(rows: dict[str, Rows]) -> Figure:
    counts = rows["audit_summary"][0]
    figure = new_figure("Audit", 10, 5)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    flow = (
        "published",
        "confirmed",
        "delivered",
        "handled",
        "dead_lettered",
        "replayed",
        "dropped",
        "returned",
        "publish_failed",
    )
    colours = [EVENT_COLOURS.get(each, EVENT_COLOURS["acked"]) for each in flow]
    names = [each.replace("_", " ") for each in flow]
    bars(left, "messages", names, [counts[each] for each in flow], colours)
    bad = (
        "lost",
        "dead_letters_waiting",
        "duplicates_unexplained",
        "duplicates_explained",
        "never_enqueued",
        "events_missing",
    )
    bars(
        right,
        "problems",
        [each.replace("_", " ") for each in bad],
        [counts[each] for each in bad],
        ["#b91c1c", "#ca8a04", "#b91c1c", "#ca8a04", "#b91c1c", "#b91c1c"],
    )
    return figure


def flights(rows: dict[str, Rows], result: Mapping[str, Any]) -> Figure:
    """Delays by hour and airport, and how the messages about them travelled."""
    figure = new_figure(
        "Flights out of New York, January 2013, through Spark and the broker", 11, 7
    )
    grid = figure.add_gridspec(2, 3, height_ratios=[1.5, 1])
    delays, worst = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2])
    routes = [row for row in rows["routes"] if row["mean_delay"] is not None]
    for colour, airport in zip(COLOURS, sorted({row["origin"] for row in routes}), strict=False):
        by_hour: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for row in routes:
            if row["origin"] == airport and row["departures"]:
                by_hour[row["hour"]].append((row["mean_delay"], row["departures"]))
        hours = [hour for hour in sorted(by_hour) if sum(n for _, n in by_hour[hour]) >= _OFTEN]
        means = [
            sum(delay * n for delay, n in by_hour[hour]) / sum(n for _, n in by_hour[hour])
            for hour in hours
        ]
        delays.plot(hours, means, color=colour, label=airport, marker="o", markersize=4)
    delays.set_title("mean delay at departure, in minutes, by hour of the day")
    delays.set_xticks(range(5, 24, 2), [f"{hour}:00" for hour in range(5, 24, 2)])
    delays.legend()
    often = [row for row in routes if row["departures"] >= _OFTEN]
    top = sorted(often, key=lambda row: -row["mean_delay"])[:10]
    bars(
        worst,
        "latest routes, in minutes",
        [f"{row['origin']} to {row['dest']}, {row['hour']}:00" for row in top],
        [round(row["mean_delay"]) for row in top],
        [COLOURS[1]] * len(top),
    )
    for column, phase in enumerate(("wait", "handle")):
        axes = figure.add_subplot(grid[1, column])
        found = [r for r in rows["latency"] if r["phase"] == phase and r["queue"] == "departures"]
        draw_latency(axes, found)
        axes.set_title(f"messages {_PHASES[phase]}, in ms")
        axes.xaxis.set_visible(False)
    flow = ("published", "confirmed", "handled", "lost", "duplicates_unexplained")
    bars(
        figure.add_subplot(grid[1, 2]),
        "adds up" if result["adds_up"] else "DOES NOT ADD UP",
        ["published", "confirmed", "handled", "lost", "duplicates"],
        [result[each] for each in flow],
        ["#94a3b8", "#475569", "#059669", "#b91c1c", "#b91c1c"],
    )
    return figure


_OFTEN = 10  # departures in the month; with fewer, the mean delay is not significant and not drawn


def _busiest(rows: Rows, column: str, *, most: int = _MOST_QUEUES) -> list[str]:
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[row["queue"]] += row[column]
    return sorted(sorted(totals, key=lambda queue: -totals[queue])[:most])


def _named(queue: str, subscription: str | None) -> str:
    return queue if subscription in (None, queue) else f"{queue} ({subscription})"


_PICTURES: dict[str, Callable[[dict[str, Rows]], Figure]] = {
    "latency": _latency,
    "throughput": _throughput,
    "reliability": _reliability,
    "poison": _poison,
    "audit": _audit,
}
