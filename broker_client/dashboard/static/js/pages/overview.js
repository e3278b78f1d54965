/** What needs attention first; then totals, rates and backlog. */

import { get } from "../api.js";
import { timeChart } from "../charts.js";
import { h, unseen } from "../dom.js";
import { bytes, compact, count, duration, moment, rate } from "../format.js";
import { link, route, setQuery } from "../route.js";

const RANGES = { fine: "30 minutes", coarse: "24 hours" };

export function overviewPage({ state, redraw }) {
  let history = null;
  let loaded = "";

  async function load() {
    const range = rangeOf();
    try {
      const found = fromFirst(await get(`ui/history?range=${range}`, { automatic: true }));
      if (range !== rangeOf()) return;
      history = found;
      loaded = range;
    } catch {
      return; // said by the bar above
    }
    redraw();
  }

  load();
  return {
    title: "Overview",
    sampled: load,
    view() {
      if (loaded !== "" && loaded !== rangeOf()) {
        loaded = "";
        load();
      }
      return [head(state), attention(state), tiles(state), charts(history), node(state)];
    },
  };
}

function rangeOf() {
  return route().query.get("range") === "coarse" ? "coarse" : "fine";
}

function head(state) {
  const { overview } = state;
  return h(
    "div",
    { class: "page-head" },
    h("h1", { tabindex: "-1" }, "Overview"),
    overview && h("span", { class: "quiet number" }, `as of ${moment(overview.time)}`),
  );
}

/* ---------------------------------------------------------------- attention */

const LEVELS = { alarm: ["bad", "Alarm"], warning: ["warn", "Look"], notice: ["", "Note"] };

function attention({ overview }) {
  if (overview === null) return h("section", { class: "card" }, h("p", { class: "quiet" }, "Waiting for the first figures …"));
  const items = overview.attention ?? [];
  return h(
    "section",
    { class: "card", "aria-labelledby": "attention" },
    h("h2", { id: "attention" }, "Needs attention"),
    items.length === 0
      ? h("p", { class: "all-well" }, "Nothing: no alarm, no dead letters that grow, no queue waits for a consumer.")
      : h("ul", { class: "attention" }, items.slice(0, 12).map(attentionItem)),
    items.length > 12 && h("p", { class: "quiet" }, `and ${count(items.length - 12)} more`),
  );
}

function attentionItem(item) {
  const [tone, word] = LEVELS[item.level] ?? ["", "Note"];
  const target = targetOf(item);
  return h(
    "li",
    null,
    h("span", { class: `tag ${tone}` }, word),
    h("span", { class: "why" }, (item.queue || item.connection) && [h("b", null, item.queue ?? item.connection), ": "], item.text),
    item.since && h("small", { class: "number" }, `since ${moment(item.since)}`),
    target && h("a", { href: target.href }, target.text, unseen(item.queue ?? item.connection)),
  );
}

function targetOf(item) {
  if (item.connection) return { href: link("connection", item.connection), text: "Connection" };
  if (!item.queue) return null;
  const isDead = item.kind === "dead_letters";
  return {
    href: isDead ? link("queue", item.vhost, item.queue, "messages") : link("queue", item.vhost, item.queue),
    text: isDead ? "Look at them" : "To the queue",
  };
}

/* ---------------------------------------------------------------- figures */

function tiles({ overview }) {
  if (overview === null) return null;
  const { totals } = overview;
  return h(
    "dl",
    { class: "tiles" },
    tile("Ready", totals.ready),
    tile("In flight", totals.unacked),
    totals.deferred !== undefined && tile("Deferred", totals.deferred),
    tile("Queues", totals.queues),
    tile("Consumers", totals.consumers),
    tile("Connections", totals.connections),
    tile("Channels", totals.channels),
  );
}

function tile(name, value) {
  return h("div", { class: "tile live-figure" }, h("dt", null, name), h("dd", { title: count(value) }, compact(value)));
}

function charts(history) {
  const range = rangeOf();
  if (history === null) return null;
  const times = timesOf(history);
  return h(
    "section",
    { class: "card", "aria-labelledby": "charts" },
    h(
      "div",
      { class: "card-head" },
      h("h2", { id: "charts" }, "Rates and backlog"),
      h(
        "div",
        { class: "buttons", role: "group", "aria-label": "Range of the charts" },
        Object.entries(RANGES).map(([name, text]) =>
          h("button", { type: "button", "aria-pressed": String(name === range), onclick: () => setQuery({ range: name === "fine" ? null : name }) }, text),
        ),
      ),
    ),
    h(
      "div",
      { class: "grid-2" },
      timeChart(
        "Messages per second",
        [
          { name: "published", values: history.publish },
          { name: "delivered", values: history.deliver },
          { name: "acked", values: history.ack },
        ],
        times,
        { format: rate, unit: "per second" },
      ),
      timeChart("Backlog", backlogSeries(history), times, { format: compact, unit: "messages" }),
    ),
  );
}

/** Ready, in flight, and deferred where the broker knows of it. */
export function backlogSeries(history) {
  const series = [
    { name: "ready", values: history.ready },
    { name: "in flight", values: history.unacked },
  ];
  if (history.deferred?.some((value) => value)) series.push({ name: "deferred", values: history.deferred });
  return series;
}

/** A history from its first sample on: a broker that has just started has an empty past. */
export function fromFirst(history) {
  const first = history.ready.findIndex((value) => value !== null);
  const from = Math.min(first === -1 ? 0 : first, Math.max(0, history.ready.length - 24));
  const cut = (value) => (Array.isArray(value) ? value.slice(from) : value);
  return Object.fromEntries(Object.entries(history).map(([name, value]) => [name, cut(value)]));
}

/** The moments of the points of a history. */
export function timesOf(history) {
  const last = history.ready.length - 1;
  return history.ready.map((_, at) => history.time - (last - at) * history.step);
}

/* ---------------------------------------------------------------- node */

function node({ overview, session }) {
  const facts = overview?.node_state;
  if (!facts) return null;
  const rows = [
    ["Node", overview.node],
    ["Version", `${session.broker.product} ${session.broker.version}`],
    ["Up for", facts.uptime !== undefined && duration(facts.uptime / 1000)],
    ["Memory", facts.mem_used !== undefined && `${bytes(facts.mem_used)}${facts.mem_limit ? ` of ${bytes(facts.mem_limit)}` : ""}`],
    ["Disk free", facts.disk_free !== undefined && bytes(facts.disk_free)],
    ["File descriptors", facts.fd_used !== undefined && count(facts.fd_used)],
  ];
  return h(
    "section",
    { class: "card", "aria-labelledby": "node" },
    h("h2", { id: "node" }, "The node"),
    h("dl", { class: "facts columns" }, rows.filter(([, value]) => value).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", { class: "number" }, value)))),
  );
}
