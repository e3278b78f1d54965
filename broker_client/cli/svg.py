"""A directed graph as an SVG image: nodes in columns, so that most edges point to the right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from statistics import fmean
from xml.sax.saxutils import escape, quoteattr

from broker_client.runtime.slotted import slotted

_COLUMN, _ROW = 320, 64
_WIDTH, _HEIGHT = 200, 44
_MARGIN = 20
_BEND_BACK = 60
_SWEEPS = 4
_LETTERS = 26  # that a box has room for
_KEY_LETTERS = 16

_STYLE = """
text{font:13px system-ui,sans-serif;fill:#1b1f24}.sub,.label{font-size:11px;fill:#57606a}
rect{fill:#fff;stroke:#57606a}.exchange rect{fill:#ddf4ff;stroke:#0969da}
.warn rect{fill:#fff8c5;stroke:#9a6700}path{fill:none;stroke:#57606a}
.dead{stroke-dasharray:5 4;stroke:#cf222e}.head{fill:#57606a;stroke:none}
.label{paint-order:stroke;stroke:#fff;stroke-width:3px}svg{background:#fff}
"""


@slotted
class Box:
    """A box: rounded for an exchange."""

    id: str
    text: str
    below: str
    kind: str
    """``exchange`` or ``queue``."""
    warns: bool = False


@slotted
class Edge:
    """An arrow; dashed where dead letters go."""

    source: str
    to: str
    text: str
    dead: bool = False


Place = tuple[float, float]


def svg_of(nodes: Sequence[Box], edges: Sequence[Edge], title: str) -> str:
    """The image.

    Args:
        nodes: with different ids.
        edges: between them.
        title: text alternative.
    """
    places = laid_out([node.id for node in nodes], [(edge.source, edge.to) for edge in edges])
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label={_attribute(title)}>',
        f"<title>{_text(title)}</title><style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        *(_arrow(edge, places) for edge in edges),
        *(_box(node, places[node.id]) for node in nodes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def laid_out(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, Place]:
    """Where the upper left corner of each node is; no two overlap."""
    forward = _without_cycles(nodes, edges)
    columns = _columns(nodes, forward)
    for sweep in range(_SWEEPS):
        _untangle(columns, forward, rightwards=sweep % 2 == 0)
    most = max(map(len, columns), default=0)
    return {
        node: (
            _MARGIN + _COLUMN * x,
            _MARGIN + _ROW * (y + (most - len(column)) / 2),
        )
        for x, column in enumerate(columns)
        for y, node in enumerate(column)
    }


def _without_cycles(
    nodes: Sequence[str], edges: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The edges but those that lead back to a node on the way to them."""
    outgoing: dict[str, list[str]] = {node: [] for node in nodes}
    for source, to in edges:
        outgoing[source].append(to)
    kept: list[tuple[str, str]] = []
    done: set[str] = set()
    for start in nodes:
        if start in done:
            continue
        path = {start: iter(outgoing[start])}  # in order, the last is the end of the path
        while path:
            node, rest = next(reversed(path.items()))
            to = next(rest, "")
            if not to:
                done.add(node)
                del path[node]
            elif to not in path:
                kept.append((node, to))
                if to not in done:
                    path[to] = iter(outgoing[to])
    return kept


def _columns(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Each node one column behind the last of those that lead to it."""
    before: dict[str, set[str]] = {node: set() for node in nodes}
    for source, to in edges:
        before[to].add(source)
    depth: dict[str, int] = {}
    for node in TopologicalSorter(before).static_order():
        depth[node] = max((depth[each] + 1 for each in before[node]), default=0)
    columns: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        columns[depth[node]].append(node)
    return columns


def _untangle(
    columns: list[list[str]], edges: Sequence[tuple[str, str]], *, rightwards: bool
) -> None:
    """Each node goes to the mean height of its neighbours on one side."""
    beside: dict[str, list[str]] = defaultdict(list)
    for source, to in edges:
        moved, fixed = (to, source) if rightwards else (source, to)
        beside[moved].append(fixed)
    height = {node: y - len(column) / 2 for column in columns for y, node in enumerate(column)}
    for column in columns if rightwards else reversed(columns):
        wanted = {
            node: fmean(height[each] for each in beside[node]) if beside[node] else height[node]
            for node in column
        }
        column.sort(key=wanted.__getitem__)
        height |= {node: y - len(column) / 2 for y, node in enumerate(column)}


def _arrow(edge: Edge, places: Mapping[str, Place]) -> str:
    (from_x, from_y), (to_x, to_y) = places[edge.source], places[edge.to]
    start_x, start_y, end_y = from_x + _WIDTH, from_y + _HEIGHT / 2, to_y + _HEIGHT / 2
    if to_x > from_x:
        end_x, bend = to_x, (to_x - start_x) / 2
        curve = f"C{start_x + bend:g} {start_y:g} {end_x - bend:g} {end_y:g} {end_x:g} {end_y:g}"
        middle = (start_x + end_x) / 2
    else:
        end_x, out = to_x + _WIDTH, max(start_x, to_x + _WIDTH) + _BEND_BACK
        curve = f"C{out:g} {start_y:g} {out:g} {end_y:g} {end_x:g} {end_y:g}"
        middle = out - _BEND_BACK / 4
    dead = ' class="dead"' if edge.dead else ""
    drawn = f'<path{dead} d="M{start_x:g} {start_y:g}{curve}" marker-end="url(#arrow)"/>'
    if not edge.text:
        return drawn
    shown = _text(_short(edge.text, _KEY_LETTERS))
    return (
        f'<g>{drawn}<text class="label" x="{middle:g}" y="{(start_y + end_y) / 2 - 4:g}" '
        f'text-anchor="middle">{shown}<title>{_text(edge.text)}</title></text></g>'
    )


def _box(node: Box, place: Place) -> str:
    x, y = place
    center = x + _WIDTH / 2
    kind = f"{node.kind} warn" if node.warns else node.kind
    radius = 20 if node.kind == "exchange" else 4
    return (
        f'<g class="{kind}"><title>{_text(node.text)}</title>'
        f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="{radius}"/>'
        f'<text x="{center:g}" y="{y + 19:g}" text-anchor="middle">'
        f"{_text(_short(node.text, _LETTERS))}</text>"
        f'<text class="sub" x="{center:g}" y="{y + 34:g}" text-anchor="middle">'
        f"{_text(node.below)}</text></g>"
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(text: str) -> str:
    """`text` for XML, which has no control characters (XML 1.0 §2.2)."""
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def _attribute(text: str) -> str:
    return quoteattr("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
