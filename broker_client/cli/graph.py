"""``broker-client graph``: exchanges, queues and bindings as a drawing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_client.cli.node_file import failed, write_output
from broker_client.cli.options import AsJson
from broker_client.cli.paths import file_path
from broker_client.cli.png import png_of
from broker_client.cli.steering import Management, steering_of
from broker_client.cli.svg import Box, Edge, svg_of
from broker_client.cli.where import ConfigFile, Url, VhostName, load_vhost
from broker_client.dashboard.rows import dead_letter_exchange, dead_letter_key
from broker_client.dashboard.topology import Topology, drawing_of
from broker_client.errors import UnsupportedError, UsageError
from broker_client.planning.declared import declared_inventory
from broker_client.planning.inventory import Inventory

_ENDINGS = {".mmd": "mermaid", ".svg": "svg", ".png": "png", ".json": "json"}
_HARMLESS = " -_./:*(),"

Drawing = Mapping[str, list[dict[str, Any]]]


def graph(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="Configuration to draw. Default: the broker.",
            show_default=False,
            parser=file_path,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="mermaid, svg or png. Default: by the extension of --output, else mermaid."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: standard output."),
    ] = None,
    url: Url = None,
    config: ConfigFile = None,
    vhost: VhostName = None,
    management: Management = None,
    as_json: AsJson = False,
) -> None:
    """Draw the exchanges, queues and bindings of a configuration, or of a broker."""
    draw = _MAKERS[_format(format, output, as_json=as_json)]
    if draw is _png and output is None and sys.stdout.isatty():
        raise typer.BadParameter("a PNG is no text for a terminal; give --output")
    if file is not None:
        name, inventory = _configured(file, vhost)
    else:
        steering = steering_of(url, config, vhost, management)
        name = steering.vhost or "/"
        inventory = steering.inventory(name)
        if not inventory.has_vhost:
            raise failed(f"there is no vhost {name!r}")
    try:
        drawn = draw(_drawing(inventory), f"vhost {name}")
    except (UnsupportedError, UsageError) as error:
        raise failed(str(error)) from None
    write_output(output, drawn)


def _format(format: str | None, output: Path | None, *, as_json: bool) -> str:
    if as_json:
        return "json"
    ending = output.suffix.lower() if output is not None else ""
    found = format or _ENDINGS.get(ending, "" if ending else "mermaid")
    if found not in _MAKERS:
        raise typer.BadParameter("mermaid, svg or png", param_hint="--format")
    return found


def _configured(file: Path, vhost: str | None) -> tuple[str, Inventory]:
    config, name = load_vhost(file, vhost)
    return name, declared_inventory(config.vhosts[name])


def _drawing(inventory: Inventory) -> Drawing:
    """Nodes and edges, as the dashboard draws them."""
    described: dict[str, list[dict[str, Any]]] = {"exchange": [], "queue": []}
    for (kind, name), found in sorted(inventory.entities.items()):
        settings = dict(found.settings or {})
        item: dict[str, Any] = {"name": name, "arguments": settings}
        if kind == "exchange":
            item["type"] = settings.get("type", "direct")
        else:
            item["type"] = settings.get("x-queue-type", "classic")
            item["messages_ready"] = found.messages
        described[kind].append(item)
    bindings = [
        {
            "source": each.source,
            "destination_type": each.destination_kind,
            "destination": each.destination,
            "routing_key": each.key,
            "arguments": json.loads(each.arguments),
        }
        for each in sorted(inventory.bindings)
    ]
    queues = described["queue"]
    topology = Topology(described["exchange"], bindings, [each["name"] for each in queues])
    dead = {
        each["name"]: (to, dead_letter_key(each))
        for each in queues
        if (to := dead_letter_exchange(each)) is not None
    }
    return drawing_of(topology, queues, dead)


# --------------------------------------------------------------------------- formats


def _json(drawing: Drawing, title: str) -> str:
    return json.dumps({"title": title, **drawing}) + "\n"


def _svg(drawing: Drawing, title: str) -> str:
    nodes = [
        Box(
            each["id"],
            each["name"] or "(default)",
            _below(each),
            each["kind"],
            bool(each.get("unrouted") or each.get("missing")),
        )
        for each in drawing["nodes"]
    ]
    edges = [
        Edge(source, to, text, kind == "dead_letter")
        for (source, to, kind), text in _joined(drawing).items()
    ]
    return svg_of(nodes, edges, title)


def _png(drawing: Drawing, title: str) -> bytes:
    return png_of(_svg(drawing, title))


def _mermaid(drawing: Drawing, title: str) -> str:
    """As Mermaid's flowchart has it; names are quoted and escaped by its entity codes."""
    number = {each["id"]: f"n{i}" for i, each in enumerate(drawing["nodes"])}
    lines = [f"%% {_escaped(title)}", "flowchart LR"]
    for each in drawing["nodes"]:
        text = f'"{_escaped(each["name"] or "(default)")}<br/>{_escaped(_below(each))}"'
        shape = f"([{text}])" if each["kind"] == "exchange" else f"[{text}]"
        lines.append(f"    {number[each['id']]}{shape}")
    for (source, to, kind), text in _joined(drawing).items():
        arrow = "-.->" if kind == "dead_letter" else "-->"
        label = f'|"{_escaped(text)}"|' if text else ""
        lines.append(f"    {number[source]} {arrow}{label} {number[to]}")
    return "\n".join(lines) + "\n"


_MAKERS: dict[str, Callable[[Drawing, str], str | bytes]] = {
    "mermaid": _mermaid,
    "svg": _svg,
    "png": _png,
    "json": _json,
}


def _below(node: Mapping[str, Any]) -> str:
    """What stands below its name."""
    if node.get("missing"):
        return "is not there"
    kind = str(node["type"])
    if node["kind"] == "exchange":
        return f"{kind}, unrouted" if node.get("unrouted") else kind
    ready = node.get("ready")
    return f"{kind}, {ready:,} messages" if ready is not None else kind


def _joined(drawing: Drawing) -> dict[tuple[str, str, str], str]:
    """One edge for all of a kind between two nodes, with their keys."""
    keys: dict[tuple[str, str, str], list[str]] = {}
    for each in drawing["edges"]:
        text = "alternate" if each["kind"] == "alternate" else each.get("key") or ""
        found = keys.setdefault((each["from"], each["to"], each["kind"]), [])
        if text:
            found.append(text)
    return {ends: ", ".join(texts) for ends, texts in keys.items()}


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or c in _HARMLESS else f"#{ord(c)};" for c in text)
