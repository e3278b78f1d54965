/** The virtual host that a page is about, kept in the address. */

import { field } from "./dialogs.js";
import { h } from "./dom.js";
import { route, setQuery } from "./route.js";

/** The one in the address; null for all. */
export function vhostOf() {
  return route().query.get("vhost");
}

/** Chooses a virtual host; nothing where there is only one. */
export function vhostField(state, { all = true } = {}) {
  if (state.vhosts.length < 2) return null;
  const now = vhostOf() ?? (all ? "" : state.vhosts[0]);
  return field(
    "Virtual host",
    h(
      "select",
      { id: "field-vhost", onchange: (event) => setQuery({ vhost: event.target.value || null, page: null }) },
      all && h("option", { value: "", selected: now === "" }, "All"),
      state.vhosts.map((vhost) => h("option", { value: vhost, selected: vhost === now }, vhost)),
    ),
  );
}
