/** One queue: its figures, who consumes it, what it holds. */

import { at, get, post, put, remove } from "../api.js";
import { timeChart } from "../charts.js";
import { attempt, confirm, field, form, say } from "../dialogs.js";
import { h, unseen, valueOf } from "../dom.js";
import { bytes, compact, count, counted, duration, moment, rate } from "../format.js";
import { runJob } from "../jobs.js";
import { notPermittedOn } from "../rights.js";
import { link } from "../route.js";
import { figure, listing } from "../table.js";
import { publishForm } from "../publishing.js";
import { askTarget } from "../targets.js";
import { bindingColumns } from "../bindings.js";
import { messagesPart } from "./messages.js";
import { backlogSeries, fromFirst, timesOf } from "./overview.js";
import { queueTags } from "./queues.js";

const PARTS = { "": "Overview", messages: "Messages", "in-flight": "In flight", deferred: "Deferred" };

export function queuePage({ state, redraw }, vhost = "", name = "", part = "") {
  const own = { detail: null, history: null, missing: null };
  const messages = part === "messages" ? messagesPart({ state, redraw }, vhost, name) : null;

  async function load() {
    try {
      const query = new URLSearchParams({ range: "fine", vhost, queue: name });
      const [detail, history] = await Promise.all([
        get(at("ui/queues", vhost, name), { automatic: true }),
        part === "" ? get(`ui/history?${query}`, { automatic: true }) : null,
      ]);
      Object.assign(own, { detail, history: history && fromFirst(history), missing: null });
    } catch (error) {
      if (error.status === 404) own.missing = error.message;
    }
    redraw();
  }

  load();
  return {
    title: name,
    sampled: load,
    view() {
      if (own.missing !== null) return gone(name);
      const row = state.queue(vhost, name) ?? own.detail?.row ?? { vhost, name };
      return [
        head(state, row, own.detail, load),
        own.detail && refused(state, row, own.detail),
        tabs(state, row, part),
        own.detail === null
          ? h("p", { class: "quiet" }, "Loading …")
          : part === "messages"
            ? messages.view(row, own.detail.lacking)
            : part === "in-flight"
              ? inFlight(state, own.detail)
              : part === "deferred"
                ? deferred(state, own.detail, row, load)
                : overview(state, row, own.detail, own.history),
      ];
    },
  };
}

function gone(name) {
  return h(
    "div",
    { class: "empty" },
    h("h1", { tabindex: "-1" }, name),
    h("p", null, "There is no such queue, or it was deleted."),
    h("a", { href: link("queues") }, "All queues"),
  );
}

/* ---------------------------------------------------------------- head */

function head(state, row, detail, load) {
  return h(
    "div",
    { class: "page-head" },
    h(
      "div",
      null,
      h("div", { class: "crumbs" }, h("a", { href: link("queues") }, "Queues"), state.vhosts.length > 1 && ` in ${row.vhost}`),
      h("h1", { tabindex: "-1" }, row.name, " ", queueTags(row)),
    ),
    h("div", { class: "buttons" }, actions(state, row, detail, load)),
  );
}

function refused(state, row, { lacking }) {
  return notPermittedOn(row.name, lacking, {
    configure: state.has("pause") ? "pause or delete the queue" : "delete the queue",
    read: "look at, move, replay, delete or purge its messages",
    publish: "publish to it, move or replay its messages",
  });
}

function actions(state, row, detail, load) {
  if (detail === null) return null;
  const { vhost, name } = row;
  const [mayConfigure, mayRead, mayPublish] = ["configure", "read", "publish"].map((each) => !detail.lacking.includes(each));
  const mayMove = state.can("messages") && mayRead && mayPublish;
  const ready = row.ready ?? 0;
  const isDead = row.dead_letter_queue || detail?.row?.dead_letter_queue;
  const change = (path, said) => async () => {
    if ((await attempt(() => put(`${at("ui/api/queues", vhost, name)}/${path}`))) !== undefined) say(said);
    load();
  };
  return [
    isDead && mayMove && ready > 0 &&
      h("button", { type: "button", class: "primary", onclick: () => runJob(state, { kind: "replay", vhost, queue: name }).then(load) }, "Replay all …"),
    state.has("pause") && mayConfigure &&
      (row.paused
        ? h("button", { type: "button", onclick: change("resume", `${name} delivers again.`) }, "Resume")
        : h("button", { type: "button", onclick: change("pause", `${name} is paused: it takes messages and delivers none.`) }, "Pause")),
    mayPublish && h("button", { type: "button", onclick: () => publishTo(row) }, "Publish …"),
    mayMove && ready > 0 && h("button", { type: "button", onclick: () => moveAll(state, row).then(load) }, "Move all …"),
    mayRead && ready > 0 && h("button", { type: "button", class: "danger", onclick: () => purge(row).then(load) }, "Purge …"),
    mayConfigure && h("button", { type: "button", class: "danger", onclick: () => drop(row) }, "Delete the queue …"),
  ];
}

async function moveAll(state, row) {
  const to = await askTarget(state, row, "Move all messages");
  if (to !== null) await runJob(state, { kind: "move", vhost: row.vhost, queue: row.name, to });
}

async function purge({ vhost, name, ready }) {
  const many = counted(ready, "message");
  const agreed = await confirm(`Purge ${name}?`, `${many} ready now, and any that come meanwhile, are dropped for good. Those in flight stay.`, `Purge ${many}`, {
    danger: true,
  });
  if (!agreed) return;
  await attempt(async () => {
    await remove(`${at("ui/api/queues", vhost, name)}/contents`);
    say(`${name} is purged.`);
  });
}

async function drop({ vhost, name, ready = 0, unacked = 0 }) {
  const held = ready + unacked;
  const agreed = await confirm(
    `Delete the queue ${name}?`,
    held > 0 ? `Its ${counted(held, "message")} are lost with it, and its consumers are cancelled.` : "It is empty. Its bindings go, too, and its consumers are cancelled.",
    "Delete the queue",
    { danger: true },
  );
  if (!agreed) return;
  await attempt(async () => {
    await remove(at("ui/api/queues", vhost, name));
    say(`The queue ${name} is deleted.`);
    location.hash = link("queues");
  });
}

async function publishTo({ vhost, name }) {
  await publishForm({ vhost, exchange: "", routingKey: name, title: `Publish to ${name}` });
}

function tabs(state, row, part) {
  const counts = { messages: row.ready ?? 0, "in-flight": row.unacked ?? 0, deferred: row.deferred ?? 0 };
  const known = { "in-flight": state.has("in_flight"), deferred: state.has("deferred") };
  return h(
    "nav",
    { class: "tabs", "aria-label": "Parts of this queue" },
    Object.entries(PARTS)
      .filter(([id]) => known[id] !== false)
      .map(([id, text]) =>
        h(
          "a",
          { href: link("queue", row.vhost, row.name, ...(id === "" ? [] : [id])), "aria-current": id === part ? "page" : null },
          text,
          id in counts && h("span", { class: "number tab-count" }, ` ${compact(counts[id])}`),
        ),
      ),
  );
}

/* ---------------------------------------------------------------- overview */

function overview(state, row, detail, history) {
  return [
    tiles(state, row),
    history !== null && charts(history),
    h("div", { class: "grid-2 block" }, about(row, detail), routes(detail)),
    consumers(state, detail),
  ];
}

function tiles(state, row) {
  const tile = (name, value, tone = "") => h("div", { class: `tile live-figure ${tone}` }, h("dt", null, name), h("dd", null, value));
  const { latency } = row;
  return h(
    "dl",
    { class: "tiles" },
    tile("Ready", compact(row.ready ?? 0)),
    tile("In flight", compact(row.unacked ?? 0)),
    state.has("deferred") && tile("Deferred", compact(row.deferred ?? 0)),
    state.has("age") && tile("Oldest waits", row.ready ? duration(row.age) : "–"),
    tile("Consumers", count(row.consumers ?? 0), !row.consumers && row.ready ? "warn" : ""),
    row.dead_lettered !== undefined && tile("Died here", compact(row.dead_lettered)),
    state.has("latency") && latency?.p50 !== undefined && tile("To ack, median", duration(latency.p50)),
    state.has("latency") && latency?.p99 !== undefined && tile("To ack, 99 %", duration(latency.p99)),
  );
}

function charts(history) {
  const times = timesOf(history);
  return h(
    "section",
    { class: "card", "aria-label": "The last half hour" },
    h(
      "div",
      { class: "grid-2" },
      timeChart("Backlog", backlogSeries(history), times, { format: compact, unit: "messages" }),
      timeChart(
        "Messages per second",
        [
          { name: "in", values: history.publish },
          { name: "out", values: history.deliver },
          { name: "acked", values: history.ack },
        ],
        times,
        { format: rate, unit: "per second" },
      ),
    ),
  );
}

function about(row, detail) {
  const { queue, words = [] } = detail;
  const facts = [
    ["Type", queue.type],
    ["Survives a restart", queue.durable ? "yes, it is durable" : "no"],
    queue.auto_delete && ["Deleted", "when its last consumer goes"],
    queue.exclusive && ["Exclusive", "to one connection"],
    queue.policy && ["Policy", queue.policy],
    queue.memory !== undefined && ["Memory", bytes(queue.memory)],
  ].filter(Boolean);
  return h(
    "section",
    { class: "card", "aria-labelledby": "about" },
    h("h2", { id: "about" }, "What it does"),
    words.length > 0 && h("ul", { class: "words" }, words.map((each) => h("li", null, each.text, " ", h("small", { class: "mono" }, `${each.key}: `, valueOf(each.value))))),
    h("dl", { class: "facts" }, facts.map(([key, value]) => [h("dt", null, key), h("dd", null, value)])),
  );
}

function routes({ bindings = [], dead_letters_to: dead, queue }) {
  const own = bindings.filter((each) => each.source !== "");
  return h(
    "section",
    { class: "card", "aria-labelledby": "routes" },
    h("h2", { id: "routes" }, "What comes and goes"),
    own.length === 0
      ? h("p", null, `No exchange is bound to it: only what is published to the default exchange with the key ${queue.name} comes here.`)
      : listing({
          name: "bindings",
          prefix: "b",
          rows: own,
          key: (each) => `${each.source} ${each.properties_key}`,
          sort: "source",
          columns: bindingColumns("source"),
        }),
    dead && h("p", { class: "after" }, "Dead letters go to ", deadTargets(queue.vhost, dead)),
  );
}

function deadTargets(vhost, dead) {
  const through = dead.exchange === "" ? "" : [" through ", h("a", { href: link("exchange", vhost, dead.exchange) }, dead.exchange)];
  if ((dead.queues ?? []).length === 0) return [h("b", { class: "bad-text" }, "no queue: they are lost"), through];
  return [
    dead.queues.map(([queueVhost, name], index) => [index > 0 && ", ", h("a", { href: link("queue", queueVhost, name) }, name)]),
    through,
  ];
}

function consumers(state, { consumers: rows = [] }) {
  const held = state.has("in_flight");
  const longest = (each) => (each.holds_since === undefined ? null : Math.max(0, state.now() - each.holds_since));
  return h(
    "section",
    { class: "card", "aria-labelledby": "consumers" },
    h("h2", { id: "consumers" }, "Consumers"),
    listing({
      name: "consumers",
      prefix: "c",
      rows,
      key: (each) => `${each.connection} ${each.channel} ${each.tag}`,
      sort: held ? "-longest" : "tag",
      empty: "It has no consumers.",
      columns: [
        { id: "tag", label: "Consumer", head: true, of: (each) => each.tag, cell: (each) => h("span", { class: "mono" }, each.tag) },
        { id: "connection", label: "Connection", class: "wrap", of: (each) => each.connection, cell: (each) => h("a", { href: link("connection", each.connection) }, each.connection) },
        { id: "user", label: "User", wide: true, of: (each) => each.user, cell: (each) => each.user },
        { id: "unacked", label: "Holds", number: true, of: (each) => each.unacked ?? 0, cell: (each) => figure(each.unacked ?? 0) },
        held && { id: "longest", label: "Longest for", number: true, of: (each) => longest(each), cell: (each) => duration(longest(each)) },
        { id: "prefetch", label: "Prefetch", number: true, wide: true, of: (each) => each.prefetch, cell: (each) => (each.prefetch ? count(each.prefetch) : "no limit") },
        { id: "acks", label: "Acks", wide: true, cell: (each) => (each.ack_required ? "yes" : "no, sent is done") },
        { id: "active", label: "State", wide: true, cell: (each) => (each.active === false ? "waits its turn" : "active") },
      ].filter(Boolean),
    }),
  );
}

/* ---------------------------------------------------------------- in flight, deferred */

/* The server leaves out what needs a permission that lacks. */
function held(title) {
  return h("section", { class: "card", "aria-label": title }, h("h2", null, title), h("p", { class: "quiet" }, "Your user may not see these: the permission to read this queue lacks."));
}

function inFlight(state, { in_flight: rows, queue }) {
  if (rows === undefined) return held("In flight");
  const all = queue.messages_unacknowledged ?? rows.length;
  return h(
    "section",
    { class: "card", "aria-labelledby": "in-flight" },
    h("h2", { id: "in-flight" }, "In flight, the longest first"),
    h("p", { class: "quiet" }, "Delivered and not yet acked. A lease that ends puts the message back for another consumer."),
    rows.length < all && h("p", { class: "quiet" }, `${count(rows.length)} of ${count(all)} are shown.`),
    listing({
      name: "messages in flight",
      rows,
      key: (each) => `${each.connection} ${each.channel} ${each.delivery_tag}`,
      sort: "-held",
      empty: "Nothing is in flight.",
      columns: leaseColumns(state),
    }),
  );
}

function leaseColumns(state) {
  const held = (each) => state.now() - each.delivered_at;
  const left = (each) => (each.deadline === null ? null : each.deadline - state.now());
  return [
    { id: "message", label: "Message", head: true, of: idOf, cell: (each) => messageName(each) },
    { id: "consumer", label: "Consumer", class: "wrap", of: (each) => each.consumer_tag, cell: (each) => each.consumer_tag || "taken by get" },
    { id: "attempts", label: "Attempt", number: true, of: (each) => each.attempts, cell: (each) => count(each.attempts) },
    { id: "size", label: "Size", number: true, wide: true, of: (each) => each.size_bytes, cell: (each) => bytes(each.size_bytes) },
    { id: "held", label: "Held for", number: true, of: held, cell: (each) => duration(held(each)) },
    { id: "left", label: "Lease left", number: true, of: left, cell: (each) => leaseLeft(left(each)) },
  ];
}

function idOf(each) {
  return each.message_id ?? "";
}

function messageName(each) {
  return [h("span", { class: "mono" }, each.message_id ?? "without an id"), " ", h("small", null, each.routing_key)];
}

function leaseLeft(seconds) {
  if (seconds === null) return "no limit";
  if (seconds <= 0) return "over";
  return seconds < 10 ? h("span", { class: "tag warn" }, duration(seconds)) : duration(seconds);
}

function deferred(state, { deferred: rows }, row, load) {
  if (rows === undefined) return held("Deferred");
  const { vhost, name } = row;
  const all = row.deferred ?? rows.length;
  const run = (ids, many) => async () => {
    const done = await attempt(() => post(`${at("ui/api/queues", vhost, name)}/deferred/run`, ids === null ? {} : { ids }));
    if (done !== undefined) say(`${counted(done.count ?? many, "message")} made ready.`);
    load();
  };
  const cancel = (ids, many) => async () => {
    const text = counted(many, "deferred message");
    if (!(await confirm(`Drop ${text}?`, "They are removed from the queue for good.", `Drop ${text}`, { danger: true }))) return;
    const done = await attempt(() => post(`${at("ui/api/queues", vhost, name)}/deferred/cancel`, ids === null ? {} : { ids }));
    if (done !== undefined) say(`${counted(done.count ?? many, "message")} dropped.`);
    load();
  };
  return h(
    "section",
    { class: "card", "aria-labelledby": "deferred" },
    h(
      "div",
      { class: "card-head" },
      h("h2", { id: "deferred" }, "Deferred, the earliest first"),
      all > 0 && h("div", { class: "buttons" }, h("button", { type: "button", onclick: run(null, all) }, "Make all ready"), h("button", { type: "button", class: "danger", onclick: cancel(null, all) }, "Drop all …")),
    ),
    h("p", { class: "quiet" }, "These wait for their time, and are delivered then."),
    rows.length < all && h("p", { class: "quiet" }, `${count(rows.length)} of ${count(all)} are shown.`),
    listing({
      name: "deferred messages",
      rows,
      key: (each) => String(each.id),
      sort: "due",
      empty: "Nothing is deferred.",
      columns: [
        { id: "message", label: "Message", head: true, of: idOf, cell: messageName },
        { id: "due", label: "Due", of: (each) => each.due_at, cell: (each) => h("span", { class: "number" }, moment(each.due_at)) },
        { id: "in", label: "In", number: true, cell: (each) => duration(Math.max(0, each.due_at - state.now())) },
        { id: "attempts", label: "Attempts", number: true, wide: true, of: (each) => each.attempts ?? 0, cell: (each) => count(each.attempts ?? 0) },
        {
          id: "steps", label: unseen("Actions"), class: "num", cell: (each) =>
            h("span", { class: "buttons end" },
              h("button", { type: "button", onclick: run([each.id], 1) }, "Ready now", unseen(`message ${each.id}`)),
              h("button", { type: "button", class: "danger", onclick: cancel([each.id], 1) }, "Drop …", unseen(`message ${each.id}`))),
        },
      ],
    }),
  );
}
