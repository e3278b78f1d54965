/** The messages of a queue, looked at without taking them: searched, selected, and dealt with. */

import { at, post } from "../api.js";
import { h, refocus, unseen, valueOf } from "../dom.js";
import { attempt, field } from "../dialogs.js";
import { stringify } from "../exact_json.js";
import { bytes, count, counted, fullMoment, moment, prettyJson } from "../format.js";
import { runJob } from "../jobs.js";
import { link, route, setQuery } from "../route.js";
import { resendForm } from "../publishing.js";
import { askTarget } from "../targets.js";

const COUNTS = [20, 50, 100, 200];
const TRUNCATE = 65536;

export function messagesPart({ state, redraw }, vhost, queue) {
  const own = { found: null, selected: new Set(), open: new Set(), count: 50, begun: false, loading: false, mayPublish: true };
  const looksFreely = state.session.broker?.product !== "RabbitMQ";

  async function look() {
    own.begun = own.loading = true;
    redraw();
    const result = await attempt(() => post(`${at("ui/queues", vhost, queue)}/peek`, { count: own.count, truncate: TRUNCATE }, { floats: true }));
    own.loading = false;
    if (result !== undefined) {
      numbered(result.messages);
      own.found = result;
      const ids = new Set(result.messages.map((each) => each.id));
      own.selected = new Set([...own.selected].filter((id) => ids.has(id)));
    }
    redraw();
  }

  async function run(kind, ids, more = {}) {
    const chosen = new Set(ids);
    const keys = own.found.messages.filter((each) => chosen.has(each.id)).map((each) => each.key);
    const job = await runJob(state, { kind, vhost, queue, keys, ...more });
    if (job === null) return;
    own.selected = new Set();
    await look();
    requestAnimationFrame(() => refocus("messages"));
  }

  async function move(ids) {
    const title = `Move ${counted(ids.size ?? ids.length, "message")}`;
    const to = await askTarget(state, { vhost, name: queue }, title);
    if (to !== null) await run("move", ids, { to });
  }

  async function edit(message) {
    if (await resendForm({ vhost, queue, message })) {
      await look();
      requestAnimationFrame(() => refocus("messages"));
    }
  }

  return {
    view(row, lacking) {
      if (lacking.includes("read")) return h("section", { class: "card", "aria-label": "Messages" }, h("p", { class: "quiet" }, "Your user may not look at the messages of this queue."));
      own.mayPublish = !lacking.includes("publish");
      if (looksFreely && !own.begun) look();
      const messages = own.found?.messages ?? [];
      const shown = messages.filter(matching(findOf()));
      return h(
        "section",
        { class: "card", "aria-labelledby": "messages" },
        h("h2", { id: "messages", tabindex: "-1" }, "Messages, from the head of the queue"),
        bar(own, row, look, redraw),
        own.found?.warning && h("p", { class: "quiet" }, own.found.warning),
        own.found === null && !looksFreely && h("p", { class: "quiet" }, "To look, a RabbitMQ hands messages out and takes them back: they are marked as redelivered, and in a quorum queue it counts as an attempt."),
        summary(own, row, messages, shown),
        messages.length > 0 && selectAll(own, shown, redraw),
        h("ul", { class: "messages" }, shown.map((message) => item(message, own, { state, redraw, run, move, edit, vhost }))),
        own.selected.size > 0 && selection(own, { state, run, move, row }),
      );
    },
  };
}

/* Equal messages have the same key, and are distinguished by their position among these. */
function numbered(messages) {
  const seen = new Map();
  for (const message of messages) {
    const before = seen.get(message.key) ?? 0;
    seen.set(message.key, before + 1);
    message.id = `${message.key} ${before}`;
  }
}

function findOf() {
  return route().query.get("find") ?? "";
}

/* ---------------------------------------------------------------- search */

function bar(own, row, look, redraw) {
  return h(
    "div",
    { class: "bar" },
    field("Search in these", h("input", { type: "search", id: "field-find", value: findOf(), autocomplete: "off", spellcheck: "false", oninput: (event) => setQuery({ find: event.target.value }) })),
    field(
      "How many",
      h(
        "select",
        {
          id: "field-count",
          onchange: (event) => {
            own.count = Number(event.target.value);
            look();
          },
        },
        COUNTS.map((value) => h("option", { value, selected: value === own.count }, value)),
      ),
    ),
    h("button", { type: "button", class: own.found === null ? "primary" : null, onclick: look, disabled: own.loading }, own.found === null ? "Look at them" : "Look again"),
  );
}

function matching(find) {
  const words = find.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return () => true;
  return (message) => {
    const text = [
      message.body.text,
      message.exchange,
      message.routing_key,
      stringify(message.properties),
      stringify(message.headers),
      ...message.story.map((each) => each.text),
    ]
      .join("\n")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  };
}

function summary(own, row, messages, shown) {
  if (own.loading && own.found === null) return h("p", { class: "quiet" }, "Looking …");
  if (own.found === null) return null;
  if (messages.length === 0) return h("div", { class: "empty" }, "No message is ready here.");
  const all = Math.max(row.ready ?? 0, messages.length);
  const text =
    shown.length < messages.length
      ? `${count(shown.length)} of ${count(messages.length)} looked at match.`
      : messages.length < all
        ? `The first ${count(messages.length)} of ${count(all)}.`
        : `All ${count(messages.length)}.`;
  return h("p", { class: "quiet number", role: "status" }, text);
}

/* ---------------------------------------------------------------- selection */

function selectAll(own, shown, redraw) {
  const chosen = shown.filter((message) => own.selected.has(message.id)).length;
  const all = shown.length > 0 && chosen === shown.length;
  return h(
    "label",
    { class: "choice" },
    h("input", {
      type: "checkbox",
      id: "select-all",
      checked: all,
      indeterminate: chosen > 0 && !all,
      onchange: () => {
        for (const { id } of shown) all ? own.selected.delete(id) : own.selected.add(id);
        redraw();
      },
    }),
    `Select ${shown.length === (own.found?.messages.length ?? 0) ? "all" : "those found"}`,
  );
}

function selection(own, { state, run, move }) {
  const text = counted(own.selected.size, "message");
  return h(
    "div",
    { class: "selection buttons", role: "group", "aria-label": "With the selected messages" },
    h("b", { class: "number" }, `${text} selected`),
    state.can("messages") && [
      own.mayPublish && h("button", { type: "button", class: "primary", onclick: () => run("replay", own.selected) }, "Replay …"),
      own.mayPublish && h("button", { type: "button", onclick: () => move(own.selected) }, "Move …"),
      h("button", { type: "button", class: "danger", onclick: () => run("delete", own.selected) }, "Delete …"),
    ],
  );
}

/* ---------------------------------------------------------------- one message */

function item(message, own, doing) {
  const { redraw } = doing;
  const number = message.position + 1;
  return h(
    "li",
    { class: "message", key: message.id },
    h(
      "div",
      { class: "message-line" },
      h("input", {
        type: "checkbox",
        "aria-label": `Select message ${number}`,
        checked: own.selected.has(message.id),
        onchange: () => {
          own.selected.has(message.id) ? own.selected.delete(message.id) : own.selected.add(message.id);
          redraw();
        },
      }),
      h("span", { class: "number quiet" }, count(number)),
      message.origin?.reason && h("span", { class: "tag bad" }, message.origin.reason),
      message.attempts > 1 && h("span", { class: "tag warn" }, `${count(message.attempts)} attempts`),
      h("span", { class: "body" }, firstLine(message)),
      h("small", { class: "number" }, bytes(message.size)),
    ),
    message.origin?.error && h("div", { class: "error-line" }, message.origin.error),
    h(
      "details",
      {
        ontoggle: (event) => {
          event.target.open ? own.open.add(message.id) : own.open.delete(message.id);
          redraw();
        },
      },
      h("summary", null, `Message ${number} in full`),
      own.open.has(message.id) && [parts(message), steps(message, own, doing)],
    ),
  );
}

function firstLine({ body, payload, payload_encoding: encoding }) {
  if (body.kind === "empty") return "(empty)";
  if (encoding !== "string") return `(binary) ${body.text.slice(0, 60)}`;
  return payload.slice(0, 300).replace(/\s+/g, " ");
}

function parts(message) {
  return h(
    "div",
    { class: "message-parts" },
    h(
      "div",
      null,
      h("h3", null, `Body, ${message.body.kind === "json" ? "JSON" : message.body.kind}`),
      h("pre", { tabindex: "0", "aria-label": "Body" }, message.body.kind === "json" ? (prettyJson(message.payload) ?? message.body.text) : message.body.text || "(empty)"),
      message.truncated && h("p", { class: "quiet" }, `Only the first ${bytes(TRUNCATE)} of ${bytes(message.size)} are shown.`),
    ),
    h("div", null, h("h3", null, "What happened to it"), story(message), h("h3", null, "Headers"), table(message.headers), h("h3", null, "Properties"), table(properties(message))),
  );
}

function story({ story: events }) {
  return h(
    "ol",
    { class: "story" },
    events.map((each) => h("li", null, each.text, each.time && [" ", h("time", { class: "quiet number", title: fullMoment(each.time), datetime: new Date(each.time * 1000).toISOString() }, moment(each.time))])),
  );
}

function properties({ exchange, routing_key: key, properties: more, redelivered }) {
  const { headers: _, ...rest } = more;
  return { exchange: exchange || "(default)", "routing key": key, ...rest, redelivered: redelivered ? "yes" : "no" };
}

function table(values) {
  const entries = Object.entries(values ?? {});
  if (entries.length === 0) return h("p", { class: "quiet" }, "None.");
  return h(
    "dl",
    { class: "facts" },
    entries.map(([key, value]) => [h("dt", { class: "mono" }, valueOf(key)), h("dd", { class: "mono" }, valueOf(value))]),
  );
}

function steps(message, { mayPublish }, { state, run, move, edit, vhost }) {
  const which = `message ${message.position + 1}`;
  const { origin } = message;
  return h(
    "div",
    { class: "buttons after" },
    state.can("messages") && [
      mayPublish && origin && h("button", { type: "button", class: "primary", onclick: () => run("replay", [message.id]) }, `Replay to ${origin.queue} …`, unseen(which)),
      // The copy of what is only shown in part would be cut off.
      !message.truncated && h("button", { type: "button", onclick: () => edit(message) }, "Edit and send again …", unseen(which)),
      mayPublish && h("button", { type: "button", onclick: () => move([message.id]) }, "Move …", unseen(which)),
      h("button", { type: "button", class: "danger", onclick: () => run("delete", [message.id]) }, "Delete …", unseen(which)),
    ],
    origin?.queue && h("a", { href: link("queue", vhost, origin.queue) }, `The queue ${origin.queue}`),
  );
}
