/** Exchanges: what is bound to them, a test publish, and who would get a key. */

import { at, get, post } from "../api.js";
import { attempt, field } from "../dialogs.js";
import { h, valueOf } from "../dom.js";
import { notPermitted } from "../rights.js";
import { link } from "../route.js";
import { filterField, listing } from "../table.js";
import { bindingColumns } from "../bindings.js";
import { publishForm } from "../publishing.js";
import { vhostField, vhostOf } from "../vhosts.js";

export function exchangesPage({ state, redraw }) {
  let rows = null;

  async function load() {
    rows = (await attempt(() => get("ui/api/exchanges?columns=name,vhost,type,durable,auto_delete,internal,policy", { automatic: true }))) ?? rows;
    redraw();
  }

  load();
  return {
    title: "Exchanges",
    view: () => [
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Exchanges")),
      h(
        "section",
        { class: "card", "aria-label": "Exchanges" },
        h("div", { class: "bar" }, filterField("Filter by name"), vhostField(state)),
        rows === null ? h("p", { class: "quiet" }, "Loading …") : table(state, rows),
      ),
    ],
  };
}

function table(state, rows) {
  const vhost = vhostOf();
  return listing({
    name: "exchanges",
    rows: rows.filter((row) => vhost === null || row.vhost === vhost),
    key: (row) => JSON.stringify([row.vhost, row.name]),
    sort: "name",
    search: (row) => `${row.name} ${row.vhost} ${row.type}`,
    columns: [
      { id: "name", label: "Name", head: true, of: (row) => row.name, cell: (row) => h("a", { href: link("exchange", row.vhost, row.name || "amq.default") }, row.name || "the default exchange") },
      state.vhosts.length > 1 && { id: "vhost", label: "Virtual host", of: (row) => row.vhost, cell: (row) => row.vhost },
      { id: "type", label: "Type", of: (row) => row.type, cell: (row) => row.type },
      { id: "kind", label: "", wide: true, cell: exchangeTags },
    ].filter(Boolean),
  });
}

function exchangeTags(row) {
  return h(
    "span",
    { class: "tags" },
    !row.durable && h("span", { class: "tag" }, "transient"),
    row.auto_delete && h("span", { class: "tag" }, "auto-delete"),
    row.internal && h("span", { class: "tag" }, "internal"),
    row.policy && h("span", { class: "tag" }, `policy ${row.policy}`),
  );
}

/* ---------------------------------------------------------------- one */

export function exchangePage({ state, redraw }, vhost = "", given = "") {
  const name = given === "amq.default" ? "" : given;
  const own = { exchange: null, bindings: null, lacking: null, missing: null, routes: null, asked: null };

  async function load() {
    try {
      Object.assign(own, await get(at("ui/exchanges", vhost, given)));
    } catch (error) {
      own.missing = error.message;
    }
    redraw();
  }

  async function ask(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.currentTarget));
    const headers = pairs(values.headers ?? "");
    own.routes = (await attempt(() => post("ui/routes", { vhost, exchange: name, routing_key: values.routing_key, headers }))) ?? null;
    own.asked = values.routing_key;
    redraw();
  }

  load();
  return {
    title: name || "Default exchange",
    view() {
      if (own.missing !== null) return h("div", { class: "empty" }, h("h1", { tabindex: "-1" }, given), h("p", null, "There is no such exchange."));
      return [
        h(
          "div",
          { class: "page-head" },
          h("div", null, h("div", { class: "crumbs" }, h("a", { href: link("exchanges") }, "Exchanges"), state.vhosts.length > 1 && ` in ${vhost}`), h("h1", { tabindex: "-1" }, name || "The default exchange", " ", own.exchange && exchangeTags(own.exchange))),
          h("div", { class: "buttons" }, own.lacking?.length === 0 && h("button", { type: "button", onclick: () => publishForm({ vhost, exchange: name, title: `Publish to ${name || "the default exchange"}` }) }, "Publish …"), h("a", { class: "button", href: link("topology", { vhost, find: name }) }, "In the drawing")),
        ),
        notPermitted(own.lacking, { publish: ["publish here", `write for ${name || "the default exchange, amq.default"}`] }),
        h("div", { class: "grid-2" }, whoGets(own, ask, vhost), about(own)),
        bound(own, name),
      ];
    },
  };
}

/* "key: value" lines as an object of texts. */
function pairs(text) {
  const lines = text.split("\n").filter((line) => line.includes(":"));
  return Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()]));
}

function whoGets(own, ask, vhost) {
  const byHeaders = own.exchange?.type === "headers";
  return h(
    "section",
    { class: "card", "aria-labelledby": "who" },
    h("h2", { id: "who" }, "Who would get this key?"),
    h(
      "form",
      { onsubmit: ask },
      h("div", { class: "bar" }, field("Routing key", h("input", { name: "routing_key", autocomplete: "off", spellcheck: "false" })), h("button", { class: "primary" }, "Find out")),
      byHeaders && field("Headers, one a line as name: value", h("textarea", { name: "headers", rows: "3", spellcheck: "false" })),
    ),
    h("div", { role: "status" }, answer(own, vhost)),
  );
}

function answer({ routes, asked }, vhost) {
  if (routes === null) return h("p", { class: "quiet" }, "Nothing is published: the bindings are asked.");
  const found = routes.queues ?? [];
  return [
    found.length === 0 && h("p", { class: "bad-text" }, `No queue: a message with the key “${asked}” is dropped, or returned where it is mandatory.`),
    routes.alternate && h("p", null, "No binding matches, so it goes to the alternate exchange ", h("a", { href: link("exchange", vhost, routes.alternate) }, routes.alternate), "."),
    h(
      "ul",
      { class: "words" },
      found.map((each) =>
        h("li", null, h("a", { href: link("queue", vhost, each.name) }, each.name), " ", h("small", null, (each.via ?? []).map(([exchange, key], index) => [index > 0 && " → ", `${exchange || "default"}: `, h("span", { class: "mono" }, key || "(empty)")]))),
      ),
    ),
  ];
}

function about({ exchange }) {
  if (exchange === null) return h("section", { class: "card" }, h("p", { class: "quiet" }, "Loading …"));
  const values = Object.entries(exchange.arguments ?? {});
  return h(
    "section",
    { class: "card", "aria-labelledby": "about" },
    h("h2", { id: "about" }, "What it does"),
    h("p", null, MEANINGS[exchange.type] ?? "A type of its own."),
    h(
      "dl",
      { class: "facts" },
      [["Type", exchange.type], ["Survives a restart", exchange.durable ? "yes, it is durable" : "no"], exchange.policy && ["Policy", exchange.policy], ...values.map(([key, value]) => [key, valueOf(value)])]
        .filter(Boolean)
        .map(([key, value]) => [h("dt", null, key), h("dd", null, value)]),
    ),
  );
}

const MEANINGS = {
  direct: "A message goes to the queues bound with exactly its key.",
  fanout: "A message goes to every queue bound to it, whatever its key.",
  topic: "A message goes where the pattern of a binding matches its key: * is one word, # any number of words.",
  headers: "A message goes where the arguments of a binding match its headers.",
};

function bound({ bindings }, name) {
  if (bindings === null) return null;
  return h(
    "section",
    { class: "card", "aria-labelledby": "bound" },
    h("h2", { id: "bound" }, "What is bound to it"),
    listing({
      name: "bindings",
      rows: bindings,
      key: (each) => `${each.destination_type} ${each.destination} ${each.properties_key}`,
      sort: "destination",
      search: (each) => `${each.destination} ${each.routing_key}`,
      columns: bindingColumns("destination"),
      empty: name === "" ? "Every queue, by its name." : "Nothing: what is published to it is dropped, or returned where it is mandatory.",
    }),
  );
}
