/** Columns of a list of bindings. */

import { h, valueOf } from "./dom.js";
import { link } from "./route.js";

/** @param {"source"|"destination"} end which of the two ends is the other one */
export function bindingColumns(end) {
  return [
    {
      id: end,
      label: end === "source" ? "From the exchange" : "To",
      head: true,
      of: (each) => each[end],
      cell: (each) => endOf(each, end),
    },
    { id: "key", label: "Binding key", class: "wrap", of: (each) => each.routing_key, cell: (each) => h("span", { class: "mono" }, each.routing_key || "(empty)") },
    { id: "arguments", label: "Arguments", class: "wrap", wide: true, cell: (each) => argumentsOf(each.arguments) },
  ];
}

function endOf(binding, end) {
  const name = binding[end];
  const isQueue = end === "destination" && binding.destination_type === "queue";
  if (isQueue) return h("a", { href: link("queue", binding.vhost, name) }, name);
  return [
    h("a", { href: link("exchange", binding.vhost, name || "amq.default") }, name || "the default exchange"),
    end === "destination" && h("small", null, " (exchange)"),
  ];
}

function argumentsOf(values) {
  return h("span", { class: "mono" }, Object.entries(values ?? {}).map(([key, value], at) => [`${at > 0 ? ", " : ""}${key}: `, valueOf(value)]));
}
