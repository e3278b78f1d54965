/** Users, their tags, and what they may do where. */

import { at, get, put, remove } from "../api.js";
import { attempt, confirm, field, form, say } from "../dialogs.js";
import { h, unseen } from "../dom.js";
import { permissionList, permit } from "../permissions.js";
import { filterField, listing } from "../table.js";

const TAGS = ["management", "policymaker", "monitoring", "administrator"];

export function usersPage({ state, redraw }) {
  const own = { users: null, permissions: [] };

  async function load() {
    await attempt(async () => {
      // Only what is shown: a hash of a password is nobody's business here.
      [own.users, own.permissions] = await Promise.all([get("ui/api/users?columns=name,tags"), get("ui/api/permissions")]);
    });
    redraw();
  }

  load();
  return {
    title: "Users",
    view: () => [
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Users"), h("button", { type: "button", onclick: () => add(load) }, "Add a user …")),
      h(
        "section",
        { class: "card", "aria-label": "Users" },
        h("div", { class: "bar" }, filterField("Filter by name")),
        own.users === null
          ? h("p", { class: "quiet" }, "Loading …")
          : listing({
              name: "users",
              stacks: true,
              rows: own.users,
              key: (row) => row.name,
              sort: "name",
              search: (row) => `${row.name} ${tagsOf(row).join(" ")}`,
              columns: columns(state, own, load),
            }),
      ),
    ],
  };
}

function tagsOf({ tags }) {
  return (Array.isArray(tags) ? tags : String(tags ?? "").split(",")).map((tag) => tag.trim()).filter(Boolean);
}

function columns(state, own, load) {
  return [
    { id: "name", label: "Name", head: true, of: (row) => row.name, cell: (row) => [row.name, row.name === state.session.user && h("small", null, " (you)")] },
    { id: "tags", label: "Tags", of: (row) => tagsOf(row).join(" "), cell: (row) => h("span", { class: "tags" }, tagsOf(row).map((tag) => h("span", { class: tag === "administrator" ? "tag accent" : "tag" }, tag))) },
    { id: "may", label: "May, by virtual host", class: "wrap", cell: (row) => permissionList(own.permissions.filter((each) => each.user === row.name), "vhost") },
    {
      id: "steps",
      label: unseen("Actions"),
      class: "num",
      cell: (row) =>
        h(
          "span",
          { class: "buttons end" },
          h("button", { type: "button", onclick: () => allow(state, row, own, load) }, "Permissions …", unseen(row.name)),
          h("button", { type: "button", onclick: () => change(row, load) }, "Change …", unseen(row.name)),
          row.name !== state.session.user && h("button", { type: "button", class: "danger", onclick: () => drop(row, load) }, "Delete …", unseen(row.name)),
        ),
    },
  ];
}

function tagFields(chosen) {
  return h(
    "fieldset",
    null,
    h("legend", null, "Tags: what this user may see and change here"),
    TAGS.map((tag) => h("label", { class: "choice" }, h("input", { type: "checkbox", name: `tag-${tag}`, checked: chosen.includes(tag) }), tag)),
  );
}

function tagsFrom(values) {
  return TAGS.filter((tag) => values[`tag-${tag}`] !== undefined).join(",");
}

async function add(load) {
  const values = await form(
    "Add a user",
    [
      field("Name", h("input", { name: "name", required: true, autocomplete: "off", autofocus: true })),
      field("Password", h("input", { name: "password", type: "password", required: true, autocomplete: "new-password" })),
      tagFields(["management"]),
    ],
    "Add the user",
  );
  if (values === null) return;
  await attempt(async () => {
    await put(at("ui/api/users", values.name), { password: values.password, tags: tagsFrom(values) });
    say(`The user ${values.name} is there, and may do nothing until it has permissions.`);
  });
  load();
}

async function change(row, load) {
  const values = await form(
    `Change ${row.name}`,
    [field("New password", h("input", { name: "password", type: "password", required: true, autocomplete: "new-password" }), "Tags cannot be changed without setting the password anew."), tagFields(tagsOf(row))],
    "Change the user",
  );
  if (values === null) return;
  await attempt(async () => {
    await put(at("ui/api/users", row.name), { password: values.password, tags: tagsFrom(values) });
    say(`The user ${row.name} is changed.`);
  });
  load();
}

async function allow(state, row, { permissions }, load) {
  const vhosts = state.vhosts.length > 0 ? state.vhosts : ["/"];
  await permit(`Permissions of ${row.name}`, { permissions, users: [row.name], vhosts });
  load();
}

async function drop(row, load) {
  if (!(await confirm(`Delete the user ${row.name}?`, "Its permissions go with it, and it can no longer log in.", "Delete the user", { danger: true }))) return;
  await attempt(async () => {
    await remove(at("ui/api/users", row.name));
    say(`The user ${row.name} is deleted.`);
  });
  load();
}
