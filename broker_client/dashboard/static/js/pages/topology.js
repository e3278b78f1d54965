/** Exchanges, queues and bindings as a drawing; every node leads to its page. */

import { get } from "../api.js";
import { attempt, field } from "../dialogs.js";
import { h, svg } from "../dom.js";
import { compact, count, counted } from "../format.js";
import { laidOut, NODE } from "../graph.js";
import { link, route, setQuery } from "../route.js";
import { vhostField, vhostOf } from "../vhosts.js";

/** More nodes than this no drawing makes clear: then the reader chooses. */
const MOST = 150;

export function topologyPage({ state, redraw }) {
  const own = { vhost: null, graph: null };

  async function load() {
    const vhost = chosen();
    own.vhost = vhost;
    const graph = await attempt(() => get(`ui/topology?${new URLSearchParams({ vhost })}`, { automatic: true }));
    if (graph === undefined || vhost !== own.vhost) return;
    own.graph = graph;
    redraw();
  }

  const chosen = () => vhostOf() ?? state.vhosts[0] ?? "/";
  load();
  return {
    title: "Topology",
    sampled: load,
    view() {
      if (own.vhost !== chosen()) {
        own.graph = null;
        load();
      }
      return [
        h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Topology")),
        h(
          "section",
          { class: "card", "aria-label": "Drawing" },
          h("div", { class: "bar" }, findField(), vhostField(state, { all: false })),
          own.graph === null ? h("p", { class: "quiet" }, "Loading …") : drawn(own.graph, chosen()),
        ),
      ];
    },
  };
}

function findOf() {
  return route().query.get("find") ?? "";
}

function findField() {
  return field("Show only what is near", h("input", { type: "search", id: "field-find", value: findOf(), autocomplete: "off", spellcheck: "false", oninput: (event) => setQuery({ find: event.target.value }) }));
}

function drawn(graph, vhost) {
  const { nodes, edges } = near(graph, findOf());
  if (nodes.length === 0) return h("div", { class: "empty" }, findOf() === "" ? "Nothing is declared here but the standard exchanges." : "No exchange or queue is named like that.");
  const kept = nodes.slice(0, MOST);
  const ids = new Set(kept.map((node) => node.id));
  const lines = edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to));
  const { places, width, height } = laidOut(kept, lines);
  return [
    kept.length < nodes.length && h("p", { class: "quiet" }, `${count(kept.length)} of ${count(nodes.length)} are drawn: name what you look for.`),
    key(),
    h(
      "div",
      { class: "drawing scroll", role: "region", "aria-label": "Drawing of the topology", tabindex: "0" },
      svg(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${counted(kept.length, "exchange or queue", "exchanges and queues")}, ${counted(lines.length, "binding")}` },
        svg("defs", null, arrow("arrow", "arrow-head"), arrow("arrow-dead", "arrow-head dead")),
        lines.map((edge) => line(edge, places)),
        kept.map((node) => box(node, places.get(node.id), vhost)),
      ),
    ),
  ];
}

/* What matches, and its neighbours; standard exchanges only where something is bound to them. */
function near({ nodes, edges }, find) {
  const used = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const shown = nodes.filter((node) => node.kind !== "consumer" && (node.kind === "queue" || used.has(node.id) || !isStandard(node.name)));
  const lines = edges.filter((edge) => edge.kind !== "consumer");
  if (find === "") return { nodes: shown, edges: lines };
  const found = new Set(shown.filter((node) => node.name.toLowerCase().includes(find.toLowerCase())).map((node) => node.id));
  const around = new Set(found);
  for (const { from, to } of lines) {
    if (found.has(from)) around.add(to);
    if (found.has(to)) around.add(from);
  }
  return { nodes: shown.filter((node) => around.has(node.id)), edges: lines };
}

function isStandard(name) {
  return name === "" || name.startsWith("amq.");
}

function key() {
  return h(
    "p",
    { class: "quiet" },
    h("span", { class: "tag accent" }, "exchange"),
    " → ",
    h("span", { class: "tag" }, "queue"),
    "; a dashed line shows where dead letters go; ",
    h("span", { class: "tag warn" }, "unrouted"),
    " is an exchange that leads to no queue.",
  );
}

function arrow(id, kind) {
  return svg("marker", { id, viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", class: kind }));
}

function line({ from, to, kind, key: text }, places) {
  const [a, b] = [places.get(from), places.get(to)];
  const forward = b.x > a.x;
  const start = { x: a.x + NODE.width, y: a.y + NODE.height / 2 };
  const end = { x: forward ? b.x : b.x + NODE.width, y: b.y + NODE.height / 2 };
  const bend = forward ? (end.x - start.x) / 2 : 60;
  const path = forward
    ? `M${start.x} ${start.y}C${start.x + bend} ${start.y} ${end.x - bend} ${end.y} ${end.x} ${end.y}`
    : `M${start.x} ${start.y}C${start.x + bend} ${start.y} ${end.x + bend} ${end.y} ${end.x} ${end.y}`;
  const dead = kind === "dead_letter";
  const middle = { x: (start.x + end.x) / 2 + (forward ? 0 : bend * 0.75), y: (start.y + end.y) / 2 - 4 };
  const words = kind === "alternate" ? "alternate" : short(text ?? "", 20);
  return [
    svg("path", { class: dead ? "edge dead" : "edge", d: path, "marker-end": dead ? "url(#arrow-dead)" : "url(#arrow)" }),
    words !== "" && svg("text", { class: "edge-label", x: middle.x, y: middle.y, "text-anchor": "middle" }, words),
  ];
}

function box(node, { x, y }, vhost) {
  const isQueue = node.kind === "queue";
  const href = isQueue ? link("queue", vhost, node.name) : link("exchange", vhost, node.name || "amq.default");
  const below = isQueue ? counted(node.ready ?? 0, "message").replace(/^[\d,]+/, compact(node.ready ?? 0)) : node.type;
  const tone = node.unrouted ? "warn" : isQueue ? "" : "exchange";
  return svg(
    "a",
    { href, class: `node ${tone}` },
    svg("rect", { x, y, width: NODE.width, height: NODE.height, rx: isQueue ? 4 : 20 }, svg("title", null, node.name)),
    svg("text", { x: x + NODE.width / 2, y: y + 19, "text-anchor": "middle" }, short(node.name || "(default)", 26)),
    svg("text", { class: "sub", x: x + NODE.width / 2, y: y + 34, "text-anchor": "middle" }, node.unrouted ? `${below}, unrouted` : below),
  );
}

function short(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}
