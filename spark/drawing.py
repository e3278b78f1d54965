"""Style and output of the pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_client.spark.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2", "#ca8a04", "#475569")
INK, FAINT = "#1f2937", "#e5e7eb"
EVENT_COLOURS = {
    "published": "#94a3b8",
    "confirmed": "#475569",
    "enqueued": "#0891b2",
    "delivered": "#2563eb",
    "acked": "#059669",
    "nacked": "#ea580c",
    "requeued": "#ca8a04",
    "timed_out": "#db2777",
    "dead_lettered": "#b91c1c",
    "expired": "#9333ea",
    "dropped": "#7f1d1d",
    "replayed": "#65a30d",
    "returned": "#be185d",
    "publish_failed": "#111827",
}


def save(figure: Figure, path: Path) -> None:
    """Write a picture, and free its memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".html":
        figure.savefig(path, dpi=140)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg")
    svg = text.getvalue()
    page = (
        "<!doctype html><meta charset=utf-8><title>broker_client</title>"
        "<style>body{margin:2rem auto;max-width:1200px;font-family:sans-serif}"
        "svg{width:100%;height:auto}</style>"
    )
    path.write_text(page + svg[svg.index("<svg") :], encoding="utf-8")


def new_figure(title: str, width: float, height: float) -> Figure:
    """An empty picture in our style.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib") from None
    matplotlib.rcParams.update(
        {
            "font.size": 10,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": "#9ca3af",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": FAINT,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "svg.fonttype": "none",
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=INK)
    return figure


def bars(
    axes: Axes, title: str, names: Sequence[str], values: Sequence[float], colours: Sequence[str]
) -> None:
    """Named bars with their values, from the top down."""
    axes.set_title(title)
    if not values:
        axes.text(0.0, 0.5, "none", transform=axes.transAxes, color="#6b7280")
        axes.set_axis_off()
        return
    places = range(len(values))
    drawn = axes.barh(places, values, color=colours, height=0.65)
    axes.set_yticks(places, names)
    axes.bar_label(drawn, [f"{value:,}" for value in values], padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0, right=None if any(values) else 1)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)


def shortened(text: str, most: int) -> str:
    """`text`, at most `most` characters of it."""
    return text if len(text) <= most else text[: most - 3] + "..."


def nothing(figure: Figure, why: str = "the log has nothing to show here") -> Figure:
    """A picture that says that there is no data."""
    figure.text(0.5, 0.5, why, ha="center", color="#6b7280")
    return figure


def plain_numbers(axis: Any) -> None:
    """No powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def short_dates(axes: Axes) -> None:
    """As few digits as distinguish the times."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
