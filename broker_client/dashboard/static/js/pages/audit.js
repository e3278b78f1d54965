/** What was done here, by whom. */

import { get } from "../api.js";
import { attempt } from "../dialogs.js";
import { h } from "../dom.js";
import { fullMoment, moment } from "../format.js";
import { filterField, listing } from "../table.js";

export function auditPage({ state, redraw }) {
  let entries = null;

  async function load() {
    const found = await attempt(() => get("ui/audit?limit=500"));
    if (found !== undefined) {
      entries = found.entries;
      state.audit = [];
    }
    redraw();
  }

  load();
  return {
    title: "Audit",
    view: () => [
      h("div", { class: "page-head" }, h("h1", { tabindex: "-1" }, "Audit"), h("span", { class: "quiet" }, state.can("administer") ? "What was changed through this dashboard" : "What you have changed through this dashboard")),
      h(
        "section",
        { class: "card", "aria-label": "Audit" },
        entries !== null && entries.length + state.audit.length > 0 && h("div", { class: "bar" }, filterField("Filter by user, action or target")),
        entries === null
          ? h("p", { class: "quiet" }, "Loading …")
          : listing({
              name: "changes",
              stacks: true,
              rows: [...state.audit, ...entries].map((each, at, all) => ({ ...each, number: all.length - at })),
              key: (row) => String(row.number),
              sort: "-time",
              search: (row) => `${row.user} ${row.action} ${row.target} ${row.detail ?? ""}`,
              empty: "There are no changes yet.",
              columns: [
                { id: "time", label: "When", of: (row) => row.time, cell: (row) => h("span", { class: "number", title: fullMoment(row.time) }, moment(row.time)) },
                { id: "user", label: "Who", of: (row) => row.user, cell: (row) => [row.user, row.address && h("small", { class: "wide-only" }, ` from ${row.address}`)] },
                { id: "action", label: "What", head: true, of: (row) => row.action, cell: (row) => row.action },
                { id: "target", label: "Of what", class: "wrap", of: (row) => row.target, cell: (row) => [row.target, row.detail && h("div", null, h("small", null, typeof row.detail === "string" ? row.detail : JSON.stringify(row.detail)))] },
                { id: "outcome", label: "Outcome", wide: true, of: (row) => row.outcome, cell: (row) => outcomeTag(row.outcome) },
              ],
            }),
      ),
    ],
  };
}

function outcomeTag(outcome) {
  const done = typeof outcome === "number" ? outcome < 400 : outcome === "done";
  return h("span", { class: done ? "tag good" : "tag bad" }, done ? "done" : `refused: ${outcome}`);
}
