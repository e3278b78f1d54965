/** Every queue, with what an operator looks for first. */

import { put, at } from "../api.js";
import { sparkline } from "../charts.js";
import { attempt, field, form, say } from "../dialogs.js";
import { h } from "../dom.js";
import { count, counted, duration, rate } from "../format.js";
import { link, route, setQuery } from "../route.js";
import { queueKey } from "../state.js";
import { figure, filterField, listing } from "../table.js";
import { vhostField, vhostOf } from "../vhosts.js";

const KINDS = {
  "": ["All", () => true],
  waiting: ["With messages", (row) => (row.ready ?? 0) + (row.unacked ?? 0) + (row.deferred ?? 0) > 0],
  unconsumed: ["Without consumers", (row) => !row.consumers],
  dead: ["Of dead letters", (row) => row.dead_letter_queue],
  paused: ["Paused", (row) => row.paused],
};

export function queuesPage({ state }) {
  return {
    title: "Queues",
    view: () => {
      const rows = [...state.queues.values()];
      const shown = rows.filter(chosen());
      return [
        h(
          "div",
          { class: "page-head" },
          h("h1", { tabindex: "-1" }, "Queues"),
          h("div", { class: "buttons" }, h("span", { class: "quiet number" }, tally(rows, shown)), mayAdd(state) && h("button", { type: "button", onclick: () => add(state) }, "Add a queue …")),
        ),
        h(
          "section",
          { class: "card", "aria-label": "Queues" },
          h("div", { class: "bar" }, filterField("Filter by name"), kindField(), vhostField(state)),
          listing({
            name: "queues",
            rows: shown,
            key: (row) => queueKey(row.vhost, row.name),
            sort: "name",
            search: (row) => `${row.name} ${row.vhost} ${row.type ?? ""} ${row.policy ?? ""}`,
            columns: columns(state),
            empty: rows.length === 0 ? noQueues(state) : "No queue matches.",
          }),
        ),
      ];
    },
  };
}

function mayAdd(state) {
  return declarable(state).length > 0;
}

/* Virtual hosts in which the user may declare some queue. */
function declarable(state) {
  return state.session.may_declare_in ?? [];
}

function tally(rows, shown) {
  return shown.length === rows.length ? counted(rows.length, "queue") : `${count(shown.length)} of ${counted(rows.length, "queue")}`;
}

function chosen() {
  const { query } = route();
  const [, is] = KINDS[query.get("show") ?? ""] ?? KINDS[""];
  const vhost = vhostOf();
  return (row) => is(row) && (vhost === null || row.vhost === vhost);
}

function kindField() {
  const now = route().query.get("show") ?? "";
  return field(
    "Show",
    h(
      "select",
      { id: "field-show", onchange: (event) => setQuery({ show: event.target.value || null, page: null }) },
      Object.entries(KINDS).map(([value, [text]]) => h("option", { value, selected: value === now }, text)),
    ),
  );
}

function columns(state) {
  const several = state.vhosts.length > 1;
  return [
    { id: "name", label: "Name", head: true, of: (row) => row.name, cell: (row) => nameCell(row, several) },
    { id: "ready", label: "Ready", number: true, of: (row) => row.ready ?? 0, cell: (row) => figure(row.ready ?? 0) },
    { id: "unacked", label: "In flight", number: true, of: (row) => row.unacked ?? 0, cell: (row) => figure(row.unacked ?? 0) },
    state.has("deferred") && {
      id: "deferred", label: "Deferred", number: true, wide: true, of: (row) => row.deferred ?? 0, cell: (row) => figure(row.deferred ?? 0),
    },
    state.has("age") && {
      id: "age", label: "Oldest", number: true, of: (row) => row.age ?? -1, cell: (row) => (row.ready ? duration(row.age) : h("span", { class: "zero" }, "–")),
    },
    {
      id: "dead", label: "Died", number: true, wide: true, of: (row) => row.dead_lettered ?? 0, cell: (row) => figure(row.dead_lettered ?? 0),
    },
    { id: "publish", label: "In /s", number: true, wide: true, of: (row) => row.publish ?? 0, cell: (row) => figure(row.publish ?? 0, rate) },
    { id: "deliver", label: "Out /s", number: true, wide: true, of: (row) => row.deliver ?? 0, cell: (row) => figure(row.deliver ?? 0, rate) },
    { id: "ack", label: "Acked /s", number: true, wide: true, of: (row) => row.ack ?? 0, cell: (row) => figure(row.ack ?? 0, rate) },
    {
      id: "consumers", label: "Consumers", number: true, wide: true, of: (row) => row.consumers ?? 0, cell: (row) => figure(row.consumers ?? 0),
    },
    { id: "trend", label: "Backlog", wide: true, cell: (row) => sparkline(row.spark ?? []) },
  ]
    .filter(Boolean)
    .filter((column) => column.id !== "dead" || !isRabbitMQ(state));
}

function isRabbitMQ(state) {
  return state.session.broker?.product === "RabbitMQ";
}

function nameCell(row, several) {
  return [
    h("a", { href: link("queue", row.vhost, row.name) }, row.name || "(no name)"),
    several && h("small", null, ` in ${row.vhost}`),
    " ",
    queueTags(row),
  ];
}

/** What is special about a queue, in words. */
export function queueTags(row) {
  const waits = !row.consumers && (row.ready ?? 0) > 0;
  return h(
    "span",
    { class: "tags" },
    row.paused && h("span", { class: "tag warn" }, "paused"),
    row.dead_letter_queue && h("span", { class: (row.ready ?? 0) > 0 ? "tag bad" : "tag" }, "dead letters"),
    waits && !row.dead_letter_queue && h("span", { class: "tag warn" }, "no consumer"),
    row.type && row.type !== "classic" && h("span", { class: "tag" }, row.type),
    row.exclusive && h("span", { class: "tag" }, "exclusive"),
  );
}

function noQueues(state) {
  return [
    h("p", null, "There is no queue yet."),
    mayAdd(state)
      ? [h("p", null, "A program declares its queues when it connects; or"), h("button", { type: "button", onclick: () => add(state) }, "add one here …")]
      : h("p", null, "A program declares its queues when it connects. Your user has no permission to."),
  ];
}

async function add(state) {
  const vhosts = declarable(state);
  const values = await form(
    "Add a queue",
    [
      field("Name", h("input", { name: "name", required: true, autocomplete: "off", autofocus: true })),
      vhosts.length > 1 &&
        field("Virtual host", h("select", { name: "vhost" }, vhosts.map((vhost) => h("option", { value: vhost, selected: vhost === vhostOf() }, vhost)))),
      field(
        "Type",
        h("select", { name: "type" }, h("option", { value: "classic" }, "classic"), h("option", { value: "quorum" }, "quorum")),
        "It is durable: it outlives a restart.",
      ),
      field("Dead letters go to the queue", h("input", { name: "dead", autocomplete: "off" }), "Through the default exchange. May be left empty."),
    ],
    "Add the queue",
  );
  if (values === null) return;
  const vhost = values.vhost ?? vhosts[0];
  const queueArguments = { "x-queue-type": values.type };
  if (values.dead) {
    queueArguments["x-dead-letter-exchange"] = "";
    queueArguments["x-dead-letter-routing-key"] = values.dead;
  }
  await attempt(async () => {
    await put(at("ui/api/queues", vhost, values.name), { durable: true, auto_delete: false, arguments: queueArguments });
    say(`The queue ${values.name} is there.`);
    location.hash = link("queue", vhost, values.name);
  });
}
