/** What the user may not do, and why. The broker refuses it in any case; here it is not offered. */

import { h } from "./dom.js";

/**
 * A list of what is not offered, with the permission that lacks; nothing where all is permitted.
 *
 * @param {string[]} lacking of the server: "configure", "read", "publish"
 * @param {object} told by each of those: `[what cannot be done, the permission that it needs]`
 */
export function notPermitted(lacking, told) {
  const known = (lacking ?? []).filter((each) => told[each] !== undefined);
  if (known.length === 0) return null;
  return h(
    "ul",
    { class: "quiet not-permitted", "aria-label": "Not permitted to you" },
    known.map((each) => h("li", null, `You may not ${told[each][0]}: it needs the permission ${told[each][1]}.`)),
  );
}

/** For a queue; `things` are what this page would offer. */
export function notPermittedOn(queue, lacking, { configure, read, publish }) {
  return notPermitted(lacking, {
    ...(configure && { configure: [configure, `configure for ${queue}`] }),
    ...(read && { read: [read, `read for ${queue}`] }),
    ...(publish && { publish: [publish, "write for the default exchange, amq.default"] }),
  });
}
