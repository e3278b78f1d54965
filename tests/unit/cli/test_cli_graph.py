"""``broker-client graph`` of a configuration, and the layout of its image."""

from __future__ import annotations

import json
import random
import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from broker_client.cli.main import app
from broker_client.cli.png import png_of
from broker_client.cli.svg import Box, laid_out, svg_of

CONFIG = """
vhosts:
  /:
    exchanges:
      - {name: orders, type: topic, options: {alternate_exchange: lost}}
      - {name: lost, type: fanout}
      - {name: nowhere, type: direct}
      - {name: dead, type: direct}
    queues:
      fulfil: {options: {dead_letter_exchange: dead}}
      cemetery: {}
      retry: {options: {dead_letter_exchange: "", dead_letter_routing_key: fulfil}}
      lost-ones: {}
    bindings:
      - "orders[order.#, rush.*] -> fulfil"
      - "dead -> cemetery"
      - "lost -> lost-ones"
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.yaml"
    path.write_text(CONFIG)
    return path


def graph(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["graph", *map(str, arguments)])


def test_mermaid_has_every_node_and_every_way(file: Path) -> None:
    result = graph(file)
    assert result.exit_code == 0
    title, head, *lines = (line.strip() for line in result.stdout.splitlines())
    assert (title, head) == ("%% vhost /", "flowchart LR")
    names = dict(re.findall(r"(n\d+)\(?\[+\(?\"([\w ()-]+)<br/>", "\n".join(lines)))
    assert sorted(names.values()) == [
        "cemetery",
        "dead",
        "fulfil",
        "lost",
        "lost-ones",
        "nowhere",
        "orders",
        "retry",
    ]
    ways = {
        (names[match[1]], match[2], match[3] or "", names[match[4]])
        for line in lines
        if (match := re.fullmatch(r'(n\d+) (-\.?->)(?:\|"(.*)"\|)? (n\d+)', line))
    }
    assert ways == {
        ("orders", "-->", "order.#35;, rush.*", "fulfil"),
        ("orders", "-->", "alternate", "lost"),
        ("dead", "-->", "#35;", "cemetery"),
        ("lost", "-->", "#35;", "lost-ones"),
        ("fulfil", "-.->", "", "dead"),
        ("retry", "-.->", "fulfil", "fulfil"),
    }
    [nowhere] = [line for line in lines if "nowhere" in line]
    assert "unrouted" in nowhere


def test_svg_is_well_formed_and_has_the_same(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "topology.svg"
    assert graph(file, "-o", target).exit_code == 0
    image = ElementTree.parse(target).getroot()
    assert len(image.findall(f".//{SVG}rect")) == 8
    arrows = [each for each in image.iter(f"{SVG}path") if each.get("marker-end")]
    assert len(arrows) == 6
    assert sum(each.get("class") == "dead" for each in arrows) == 2


def test_png_has_twice_the_size_of_the_svg_and_what_is_written_in_it(
    file: Path, tmp_path: Path
) -> None:
    assert graph(file, "-o", tmp_path / "topology.svg").exit_code == 0
    assert graph(file, "-o", tmp_path / "topology.png").exit_code == 0
    image = ElementTree.parse(tmp_path / "topology.svg").getroot()
    png = (tmp_path / "topology.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n")
    size = [int(image.attrib[each]) * 2 for each in ("width", "height")]
    assert list(struct.unpack_from(">II", png, 16)) == size
    without_text = (
        (tmp_path / "topology.svg").read_text().replace("<text", "<g").replace("</text>", "</g>")
    )
    assert png != png_of(without_text), "no font was found"


def test_large_png_is_drawn_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_client.cli.png._PIXELS", 40_000)
    nodes = [Box(str(number), "queue", "", "queue") for number in range(100)]
    width, height = struct.unpack_from(">II", png_of(svg_of(nodes, [], "all")), 16)
    assert 30_000 < width * height <= 42_000


def test_png_without_its_package_or_a_font_tells_what_to_install(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_client.cli.png._FAMILIES", ("No such font",))
    without_font = graph(file, "-o", tmp_path / "topology.png")
    assert (without_font.exit_code, "fonts-dejavu-core" in without_font.stderr) == (1, True)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    without = graph(file, "-o", tmp_path / "topology.png")
    assert (without.exit_code, "[png]" in without.stderr) == (1, True)
    assert not (tmp_path / "topology.png").exists()


def test_names_that_look_like_markup_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    name = '"]<script>&end'
    path.write_text(json.dumps({"vhosts": {"/": {"queues": [name]}}}))
    mermaid = graph(path).stdout
    assert "<script>" not in mermaid
    assert '"#34;#93;#60;script#62;#38;end<br/>' in mermaid
    image = ElementTree.fromstring(graph(path, "--format", "svg").stdout)
    assert next(each.text for each in image.iter(f"{SVG}text")) == name


def test_json_has_nodes_and_edges(file: Path) -> None:
    found = json.loads(graph(file, "--json").stdout)
    assert {len(found["nodes"]), len(found["edges"])} == {8, 7}
    assert found["title"] == "vhost /"


def test_what_cannot_be_drawn_is_reported(file: Path, tmp_path: Path) -> None:
    gif = graph(file, "-o", tmp_path / "topology.gif")
    assert (gif.exit_code, "mermaid, svg or png" in gif.stderr) == (2, True)
    assert graph(file, "--vhost", "nope").exit_code == 1
    missing = graph(file, "-o", tmp_path / "no" / "topology.svg")
    assert (missing.exit_code, "No such file" in missing.stderr) == (1, True)
    file.write_text("vhosts: {/: {queus: []}}")
    assert graph(file).exit_code == 1


@pytest.mark.parametrize("seed", range(20))
def test_no_two_nodes_are_laid_out_in_one_place_and_most_edges_go_to_the_right(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [f"n{i}" for i in range(chance.randint(1, 30))]
    edges = [(chance.choice(nodes), chance.choice(nodes)) for _ in range(40)]
    places = laid_out(nodes, edges)
    assert places.keys() == set(nodes)
    assert len(set(places.values())) == len(nodes)
    tree = [(nodes[i // 2], nodes[i]) for i in range(1, len(nodes))]
    in_order = laid_out(nodes, tree)
    assert all(in_order[source][0] < in_order[to][0] for source, to in tree)
