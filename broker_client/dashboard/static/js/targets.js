/** The queue to move messages to. */

import { field, form } from "./dialogs.js";
import { h } from "./dom.js";

/** Ask for another queue of the same virtual host; null when cancelled. */
export async function askTarget(state, { vhost, name }, title) {
  const names = [...state.queues.values()].filter((row) => row.vhost === vhost && row.name !== name).map((row) => row.name);
  const values = await form(
    title,
    [
      field("To the queue", h("input", { name: "to", required: true, list: "targets", autocomplete: "off", autofocus: true })),
      h("datalist", { id: "targets" }, names.sort().slice(0, 500).map((value) => h("option", { value }))),
    ],
    "Count them",
  );
  return values === null ? null : values.to;
}
