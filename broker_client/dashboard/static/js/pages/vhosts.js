/** Virtual hosts: what they are for, what is in them, their limits, and who may use them. */

import { at, get, put, remove } from "../api.js";
import { attempt, confirm, field, form, say } from "../dialogs.js";
import { h, unseen } from "../dom.js";
import { count, counted } from "../format.js";
import { permissionList, permit } from "../permissions.js";
import { link } from "../route.js";
import { figure, filterField, listing } from "../table.js";

const LIMITS = { "max-connections": "Connections", "max-queues": "Queues" };

export function vhostsPage({ state, redraw }) {
  const own = { vhosts: null, limits: new Map(), permissions: [], users: [] };

  async function load() {
    await attempt(async () => {
      const [vhosts, limits, permissions, users, session] = await Promise.all(
        ["ui/api/vhosts", "ui/api/vhost-limits", "ui/api/permissions", "ui/api/users?columns=name", "ui/session"].map((path) => get(path)),
      );
      own.vhosts = vhosts;
      own.limits = new Map(limits.map((each) => [each.vhost, each.value]));
      own.permissions = permissions;
      own.users = users.map((each) => each.name).sort();
      // What other pages choose from.
      Object.assign(state.session, { vhosts: session.vhosts, may_declare_in: session.may_declare_in });
    });
    redraw();
  }

  load();
  return {
    title: "Virtual hosts",
    view: () => [
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Virtual hosts"), h("button", { type: "button", onclick: () => add(state, load) }, "Add a virtual host …")),
      h(
        "section",
        { class: "card", "aria-label": "Virtual hosts" },
        h("div", { class: "bar" }, filterField("Filter by name, tag or description")),
        own.vhosts === null
          ? h("p", { class: "quiet" }, "Loading …")
          : listing({
              name: "virtual hosts",
              stacks: true,
              rows: own.vhosts,
              key: (row) => row.name,
              sort: "name",
              search: (row) => `${row.name} ${tagsOf(row).join(" ")} ${metadataOf(row).description ?? ""}`,
              columns: columns(state, own, load),
            }),
      ),
    ],
  };
}

function metadataOf(row) {
  return row.metadata ?? row;
}

function tagsOf(row) {
  return metadataOf(row).tags ?? [];
}

function typeOf(row) {
  const type = metadataOf(row).default_queue_type ?? row.default_queue_type;
  return type === undefined || type === "undefined" ? null : type;
}

function columns(state, own, load) {
  const queuesIn = (row) => [...state.queues.values()].filter((each) => each.vhost === row.name).length;
  return [
    {
      id: "name", label: "Name", head: true, class: "wrap", of: (row) => row.name, cell: (row) => [
        h("a", { href: link("queues", { vhost: row.name }) }, row.name),
        tagsOf(row).length > 0 && h("span", { class: "tags" }, tagsOf(row).map((tag) => h("span", { class: "tag" }, tag))),
        metadataOf(row).description && h("small", null, ` ${metadataOf(row).description}`),
      ],
    },
    state.has("default_queue_type") && { id: "type", label: "Queues are", wide: true, of: typeOf, cell: (row) => typeOf(row) ?? "–" },
    { id: "queues", label: "Queues", number: true, of: queuesIn, cell: (row) => figure(queuesIn(row)) },
    { id: "messages", label: "Messages", number: true, of: (row) => row.messages ?? 0, cell: (row) => figure(row.messages ?? 0) },
    { id: "limits", label: "Limits", class: "wrap", wide: true, cell: (row) => limitsOf(own.limits.get(row.name) ?? {}) },
    { id: "may", label: "Who may what", class: "wrap", cell: (row) => permissionList(own.permissions.filter((each) => each.vhost === row.name), "user") },
    {
      id: "steps", label: unseen("Actions"), class: "num", cell: (row) =>
        h(
          "span",
          { class: "buttons end" },
          own.users.length > 0 && h("button", { type: "button", onclick: () => allow(row, own, load) }, "Permissions …", unseen(row.name)),
          h("button", { type: "button", onclick: () => limit(row, own.limits.get(row.name) ?? {}, load) }, "Limits …", unseen(row.name)),
          h("button", { type: "button", onclick: () => change(state, row, load) }, "Change …", unseen(row.name)),
          h("button", { type: "button", class: "danger", onclick: () => drop(row, queuesIn(row), load) }, "Delete …", unseen(row.name)),
        ),
    },
  ].filter(Boolean);
}

function limitsOf(limits) {
  const set = Object.keys(LIMITS).filter((name) => (limits[name] ?? -1) >= 0);
  if (set.length === 0) return h("span", { class: "quiet" }, "none");
  return set.map((name) => h("div", null, `${LIMITS[name]}: ${count(limits[name])}`));
}

/* ---------------------------------------------------------------- changes */

function metadataFields(state, row = {}) {
  const types = ["classic", "quorum", ...(state.session.broker?.product === "RabbitMQ" ? ["stream"] : [])];
  const now = typeOf(row) ?? "classic";
  return [
    field("Description", h("input", { name: "description", value: metadataOf(row).description ?? "", autocomplete: "off" })),
    field("Tags", h("input", { name: "tags", value: tagsOf(row).join(", "), autocomplete: "off" }), "Words with commas between."),
    state.has("default_queue_type") && field(
      "Type of queues that are declared without one",
      h("select", { name: "default_queue_type" }, [...new Set([...types, now])].map((type) => h("option", { value: type, selected: type === now }, type))),
    ),
  ].filter(Boolean);
}

function metadataFrom({ description, tags, default_queue_type: type }) {
  return { description, tags: tags.split(",").map((tag) => tag.trim()).filter(Boolean).join(","), ...(type && { default_queue_type: type }) };
}

async function add(state, load) {
  const name = field("Name", h("input", { name: "name", required: true, autocomplete: "off", autofocus: true }));
  const values = await form("Add a virtual host", [name, metadataFields(state)], "Add the virtual host");
  if (values === null) return;
  await attempt(async () => {
    await put(at("ui/api/vhosts", values.name), metadataFrom(values));
    say(`The virtual host ${values.name} is there, and you may use it.`);
  });
  load();
}

async function change(state, row, load) {
  const values = await form(`Change ${row.name}`, metadataFields(state, row), "Change the virtual host");
  if (values === null) return;
  await attempt(async () => {
    await put(at("ui/api/vhosts", row.name), metadataFrom(values));
    say(`The virtual host ${row.name} is changed.`);
  });
  load();
}

async function allow(row, { permissions, users }, load) {
  await permit(`Permissions in ${row.name}`, { permissions, users, vhosts: [row.name] });
  load();
}

async function limit(row, now, load) {
  const fields = Object.entries(LIMITS).map(([name, label]) => {
    const value = (now[name] ?? -1) >= 0 ? now[name] : "";
    return field(label, h("input", { name, type: "number", min: 0, step: 1, value, autocomplete: "off" }));
  });
  const hint = h("p", { class: "quiet" }, "How many there may be; empty for no limit. What is there already stays.");
  const values = await form(`Limits of ${row.name}`, [hint, fields], "Set the limits");
  if (values === null) return;
  await attempt(async () => {
    for (const name of Object.keys(LIMITS)) {
      const path = at("ui/api/vhost-limits", row.name, name);
      if (values[name] !== "") await put(path, { value: Number(values[name]) });
      else if (name in now) await remove(path);
    }
    say(`The limits of ${row.name} are set.`);
  });
  load();
}

async function drop(row, queues, load) {
  const lost = `${counted(queues, "queue")} with ${counted(row.messages ?? 0, "message")}, its exchanges, permissions and policies go with it. Its connections are closed. This cannot be undone.`;
  if (!(await confirm(`Delete the virtual host ${row.name}?`, lost, "Delete the virtual host", { danger: true }))) return;
  await attempt(async () => {
    await remove(at("ui/api/vhosts", row.name));
    say(`The virtual host ${row.name} is deleted.`);
  });
  load();
}
