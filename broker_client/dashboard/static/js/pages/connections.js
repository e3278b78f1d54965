/** Connections with what their clients say of themselves, and their channels. */

import { at, get, remove } from "../api.js";
import { attempt, field, form, say } from "../dialogs.js";
import { h, valueOf } from "../dom.js";
import { count, counted, moment } from "../format.js";
import { link, route, setQuery } from "../route.js";
import { figure, filterField, listing } from "../table.js";

export function connectionsPage({ redraw }) {
  const own = { connections: null, channels: null };

  async function load() {
    const wanted = partOf();
    try {
      own[wanted] = await get(`ui/api/${wanted}`, { automatic: true });
    } catch {
      return;
    }
    redraw();
  }

  load();
  return {
    title: "Connections",
    sampled: load,
    view() {
      const part = partOf();
      const rows = own[part];
      if (rows === null) load();
      return [
        h(
          "div",
          { class: "page-head" },
          h("h1", { tabindex: "-1" }, "Connections"),
          h("div", { class: "buttons", role: "group", "aria-label": "What is listed" }, choice("connections", "Connections", part), choice("channels", "Channels", part)),
        ),
        h(
          "section",
          { class: "card", "aria-label": part },
          h("div", { class: "bar" }, filterField("Filter")),
          rows === null ? h("p", { class: "quiet" }, "Loading …") : part === "connections" ? connections(rows) : channels(rows, true),
        ),
      ];
    },
  };
}

function partOf() {
  return route().query.get("list") === "channels" ? "channels" : "connections";
}

function choice(id, text, part) {
  return h("button", { type: "button", "aria-pressed": String(id === part), onclick: () => setQuery({ list: id === "connections" ? null : id, filter: null, sort: null, page: null }) }, text);
}

function nameOf(connection) {
  return connection.client_properties?.connection_name || connection.user_provided_name || connection.name;
}

function clientOf({ client_properties: client = {} }) {
  return [client.product, client.version].filter((value) => typeof value === "string").join(" ");
}

function connections(rows) {
  return listing({
    name: "connections",
    rows,
    key: (row) => row.name,
    sort: "name",
    search: (row) => `${row.name} ${nameOf(row)} ${row.user} ${row.vhost} ${clientOf(row)}`,
    empty: "There are no connections.",
    columns: [
      { id: "name", label: "Name", head: true, of: nameOf, cell: (row) => [h("a", { href: link("connection", row.name) }, nameOf(row)), nameOf(row) !== row.name && h("div", null, h("small", null, row.name))] },
      { id: "user", label: "User", of: (row) => row.user, cell: (row) => row.user },
      { id: "vhost", label: "Virtual host", wide: true, of: (row) => row.vhost, cell: (row) => row.vhost },
      { id: "client", label: "Client", wide: true, class: "wrap", of: clientOf, cell: clientOf },
      { id: "state", label: "State", of: (row) => row.state, cell: stateTag },
      { id: "channels", label: "Channels", number: true, of: (row) => row.channels, cell: (row) => figure(row.channels ?? 0) },
      { id: "since", label: "Since", wide: true, of: (row) => row.connected_at, cell: (row) => since(row) },
    ],
  });
}

function since(row) {
  return row.connected_at ? h("span", { class: "number" }, moment(row.connected_at / 1000)) : "–";
}

function stateTag(row) {
  const bad = row.state === "blocked" || row.state === "blocking" || row.state === "flow";
  return h("span", { class: bad ? "tag warn" : "tag" }, row.state ?? "unknown");
}

function channels(rows, withConnection) {
  return listing({
    name: "channels",
    prefix: withConnection ? "" : "ch",
    rows,
    key: (row) => row.name,
    sort: "name",
    search: (row) => `${row.name} ${row.user} ${row.vhost}`,
    empty: "No channel is open.",
    columns: [
      {
        id: "name",
        label: "Channel",
        head: true,
        of: (row) => row.name,
        cell: (row) => (withConnection && row.connection_details?.name ? h("a", { href: link("connection", row.connection_details.name) }, row.name) : row.name),
      },
      { id: "consumers", label: "Consumers", number: true, of: (row) => row.consumer_count, cell: (row) => figure(row.consumer_count ?? 0) },
      { id: "unacked", label: "In flight", number: true, of: (row) => row.messages_unacknowledged, cell: (row) => figure(row.messages_unacknowledged ?? 0) },
      { id: "prefetch", label: "Prefetch", number: true, of: (row) => row.prefetch_count, cell: (row) => count(row.prefetch_count) },
      {
        id: "mode",
        label: "Mode",
        wide: true,
        cell: (row) => h("span", { class: "tags" }, row.confirm && h("span", { class: "tag" }, "confirms"), row.transactional && h("span", { class: "tag" }, "transactions")),
      },
    ],
  });
}

/* ---------------------------------------------------------------- one */

export function connectionPage({ state, redraw }, name = "") {
  const own = { connection: null, channels: [], missing: false };
  const path = at("ui/api/connections", name);

  async function load() {
    try {
      own.connection = await get(path, { automatic: true });
      own.channels = await get(`${path}/channels`, { automatic: true });
    } catch (error) {
      if (error.status === 404) own.missing = true;
    }
    redraw();
  }

  async function close() {
    const values = await form(
      "Close this connection?",
      [h("p", null, `Its ${counted(own.channels.length, "channel")} close with it, and what its consumers hold goes back to the queues. A client that reconnects comes back.`), field("Reason, told to the client and in its log", h("input", { name: "reason", value: "Closed by an operator" }))],
      "Close the connection",
      { danger: true },
    );
    if (values === null) return;
    await attempt(async () => {
      await remove(path, { "X-Reason": latin1(values.reason) });
      say("The connection is closed.");
      location.hash = link("connections");
    });
  }

  load();
  return {
    title: "Connection",
    sampled: load,
    view() {
      const { connection } = own;
      const mayClose = state.can("administer") || connection?.user === state.session.user;
      const crumbs = h("div", { class: "crumbs" }, h("a", { href: link("connections") }, "Connections"));
      if (own.missing) return h("div", { class: "empty" }, crumbs, h("h1", { tabindex: "-1" }, name), h("p", null, "This connection is closed."));
      return [
        h(
          "div",
          { class: "page-head" },
          h("div", null, crumbs, h("h1", { tabindex: "-1" }, connection === null ? name : nameOf(connection), " ", connection && stateTag(connection))),
          connection && mayClose && h("button", { type: "button", class: "danger", onclick: close }, "Close the connection …"),
        ),
        connection && !mayClose && h("p", { class: "quiet" }, `You may not close it: only an administrator and its own user, ${connection.user}, may.`),
        connection === null ? h("p", { class: "quiet" }, "Loading …") : [h("div", { class: "grid-2" }, about(connection), client(connection)), own.channels !== null && h("section", { class: "card", "aria-labelledby": "channels" }, h("h2", { id: "channels" }, "Channels"), channels(own.channels, false))],
      ];
    },
  };
}

/* What a header may carry. */
function latin1(text) {
  return text.replace(/[^\x20-\x7e\xa0-\xff]/g, "?");
}

function about(connection) {
  const facts = [
    ["Address", `${connection.peer_host ?? ""}:${connection.peer_port ?? ""}`],
    ["User", connection.user],
    ["Virtual host", connection.vhost],
    ["Protocol", connection.protocol],
    ["Encrypted", connection.ssl ? "yes, TLS" : "no"],
    ["Heartbeat", connection.timeout ? `${connection.timeout} s` : "none"],
    ["Largest frame", connection.frame_max && count(connection.frame_max)],
    ["Since", connection.connected_at && moment(connection.connected_at / 1000)],
  ];
  return h("section", { class: "card", "aria-labelledby": "about" }, h("h2", { id: "about" }, "The connection"), factsOf(facts.filter(([, value]) => value)));
}

function client({ client_properties: properties = {} }) {
  const { capabilities = {}, ...rest } = properties;
  const can = Object.entries(capabilities).filter(([, value]) => value === true);
  return h(
    "section",
    { class: "card", "aria-labelledby": "client" },
    h("h2", { id: "client" }, "What the client says of itself"),
    Object.keys(properties).length === 0 ? h("p", { class: "quiet" }, "Nothing.") : factsOf(Object.entries(rest).map(([key, value]) => [key, valueOf(value)])),
    can.length > 0 && h("p", { class: "after tags" }, can.map(([key]) => h("span", { class: "tag" }, key.replaceAll("_", " ")))),
  );
}

function factsOf(facts) {
  return h("dl", { class: "facts" }, facts.map(([key, value]) => [h("dt", null, key), h("dd", null, value)]));
}
