/**
 * Where the reader is: the part of the address behind `#`, as "#/queues/%2F/orders?sort=-ready".
 *
 * It stays in the browser, so the dashboard works below any path of a proxy, and every view with
 * its filter and order can be bookmarked.
 */

/** @returns {{path: string[], query: URLSearchParams}} the decoded parts of the path, and the query */
export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return {
    path: path.split("/").filter((part) => part !== "").map(decoded),
    query: new URLSearchParams(query),
  };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view: `link("queue", "/", "orders")`; a last object is the query. */
export function link(...parts) {
  const query = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const path = parts.map(encodeURIComponent).join("/");
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => isSet(value)));
  return `#/${path}${search.size > 0 ? `?${search}` : ""}`;
}

/** Change parts of the query in place, without a step in the history; null removes one. */
export function setQuery(changes) {
  const { path, query } = route();
  const merged = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", link(...path, merged));
  dispatchEvent(new Event("routequery"));
}

function isSet(value) {
  return value !== null && value !== undefined && value !== "" && value !== false;
}
