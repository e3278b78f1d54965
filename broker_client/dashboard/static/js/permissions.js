/** What users may do in virtual hosts: shown, asked for and set. */

import { at, put, remove } from "./api.js";
import { attempt, field, form, say } from "./dialogs.js";
import { h } from "./dom.js";

const KINDS = ["configure", "write", "read"];

/** A list of permissions, each after its user or its virtual host. */
export function permissionList(permissions, of) {
  if (permissions.length === 0) return h("span", { class: "quiet" }, of === "user" ? "nobody" : "nothing");
  return h(
    "ul",
    { class: "bare" },
    permissions.map((each) =>
      h("li", null, h("b", null, each[of]), " ", h("small", null, KINDS.map((kind) => [`${kind} `, h("span", { class: "mono" }, each[kind] || "nothing"), " "]))),
    ),
  );
}

/**
 * Ask for the permissions of a user in a virtual host, one of which is chosen there, and set them.
 *
 * @param {string} title
 * @param {object} known `permissions` there are, and the `users` and `vhosts` to choose from
 */
export async function permit(title, { permissions, users, vhosts }) {
  const chosen = { user: users[0], vhost: vhosts[0] };
  const patterns = {};
  for (const kind of KINDS) patterns[kind] = h("input", { name: kind, autocomplete: "off", spellcheck: "false" });
  const note = h("p", { class: "quiet", role: "status" });
  const none = h("input", { type: "checkbox", name: "none", onchange: () => able() });
  // Always show those of what is selected, so that another's are not set by mistake.
  const showChosen = () => {
    const { user, vhost } = chosen;
    const known = permissions.find((each) => each.user === user && each.vhost === vhost);
    for (const [kind, input] of Object.entries(patterns)) input.value = known?.[kind] ?? ".*";
    note.textContent = known ? `What ${user} may in ${vhost} now:` : `${user} has no permissions in ${vhost} yet; these would be given:`;
    none.checked = false;
    none.disabled = !known;
    able();
  };
  const able = () => Object.values(patterns).forEach((input) => (input.disabled = none.checked));
  const choice = (name, values) =>
    h("select", { name, onchange: (event) => ((chosen[name] = event.target.value), showChosen()) }, values.map((each) => h("option", { value: each }, each)));
  showChosen();
  const values = await form(
    title,
    [
      users.length > 1 && field("User", choice("user", users)),
      vhosts.length > 1 && field("Virtual host", choice("vhost", vhosts)),
      note,
      field("Configure", patterns.configure, "A regular expression of names that may be declared and deleted; empty for none."),
      field("Write", patterns.write, "Exchanges that may be published to."),
      field("Read", patterns.read, "Queues that may be consumed."),
      h("label", { class: "choice" }, none, "Take all permissions there away"),
    ],
    "Set the permissions",
  );
  if (values === null) return;
  const { user, vhost } = chosen;
  await attempt(async () => {
    if (values.none !== undefined) {
      await remove(at("ui/api/permissions", vhost, user));
      say(`${user} may do nothing in ${vhost} any more.`);
      return;
    }
    await put(at("ui/api/permissions", vhost, user), { configure: values.configure, write: values.write, read: values.read });
    say(`The permissions of ${user} in ${vhost} are set.`);
  });
}
