/**
 * Lists: filtered by text, sorted by a column, one page at a time; all three kept in the address.
 *
 * Only the rows of one page become elements, so a thousand queues cost no more than a hundred.
 */

import { h } from "./dom.js";
import { count, counted } from "./format.js";
import { route, setQuery } from "./route.js";

const PAGE_SIZE = 50;

/**
 * @param {object} options
 * @param {string} options.name what the rows are, as read by a screen reader
 * @param {object[]} options.columns `{id, label, cell(row), of?(row), number?, wide?, head?}`:
 *   `of` gives what to sort by, `number` aligns right, `wide` is left out on a phone, `head` makes
 *   it the row's header
 * @param {object[]} options.rows
 * @param {(row: object) => string} options.key what tells rows apart
 * @param {string} options.sort the order without one in the address: "name", or "-ready"
 * @param {string} [options.prefix] of the names in the address, for a second list in a view
 * @param {(row: object) => string} [options.search] the text that the filter looks through
 * @param {string|Node} [options.empty] shown without any row
 * @param {boolean} [options.stacks] on a phone, the cells of a row stand below each other, so that
 *   what can be done with it is seen
 * @returns {Node[]}
 */
export function listing(options) {
  const { name, columns, rows, key, prefix = "", search, empty = "Nothing here.", stacks = false } = options;
  const { query } = route();
  const filter = query.get(`${prefix}filter`) ?? "";
  const order = query.get(`${prefix}sort`) ?? options.sort;
  const found = search === undefined || filter === "" ? rows : rows.filter(matches(filter, search));
  const sorted = sortedBy(found, columns, order);
  const pages = Math.max(1, Math.ceil(sorted.length / PAGE_SIZE));
  const page = Math.min(pages, Math.max(1, Number(query.get(`${prefix}page`)) || 1));
  const shown = sorted.slice((page - 1) * PAGE_SIZE, page * PAGE_SIZE);
  if (rows.length === 0) return [h("div", { class: "empty" }, empty)];
  return [
    shown.length === 0
      ? h("div", { class: "empty" }, h("p", null, `No ${name} match “${filter}”.`))
      : h(
          "div",
          { class: "scroll", role: "region", "aria-label": name, tabindex: "0" },
          h(
            "table",
            // A table that is laid out in another way is one by its roles only.
            { class: stacks ? "stacks" : null, role: "table" },
            h("caption", { class: "unseen" }, name),
            h(
              "thead",
              { role: "rowgroup" },
              h("tr", { role: "row" }, columns.map((column) => heading(column, order, prefix))),
            ),
            h("tbody", { role: "rowgroup" }, shown.map((row) => tableRow(row, columns, key(row)))),
          ),
        ),
    pages > 1 && pager(page, pages, sorted.length, prefix),
  ].filter(Boolean);
}

/** The field that filters a listing, which keeps its text in the address. */
export function filterField(label, prefix = "") {
  const name = `${prefix}filter`;
  return h(
    "label",
    { class: "field" },
    h("span", { class: "label" }, label),
    h("input", {
      type: "search",
      name,
      id: `field-${name}`,
      value: route().query.get(name) ?? "",
      autocomplete: "off",
      spellcheck: "false",
      oninput: (event) => setQuery({ [name]: event.target.value, [`${prefix}page`]: null }),
    }),
  );
}

/* Every word has to be in the text. */
function matches(filter, search) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => {
    const text = search(row).toLowerCase();
    return words.every((word) => text.includes(word));
  };
}

function sortedBy(rows, columns, order) {
  const descending = order.startsWith("-");
  const column = columns.find((each) => each.id === order.replace(/^-/, ""));
  if (column?.of === undefined) return rows;
  const sign = descending ? -1 : 1;
  return rows
    .map((row) => [column.of(row), row])
    .sort(([a], [b]) => compare(a, b, sign))
    .map(([, row]) => row);
}

/* What is not known comes last either way. */
function compare(a, b, sign) {
  const [missingA, missingB] = [a ?? null, b ?? null].map((value) => value === null);
  if (missingA || missingB) return missingA - missingB;
  if (typeof a === "string") return sign * collator.compare(a, String(b));
  return sign * (a - b);
}

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function heading(column, order, prefix) {
  const classes = classesOf(column);
  if (column.of === undefined) return h("th", { scope: "col", role: "columnheader", class: classes }, column.label);
  const isSorted = order.replace(/^-/, "") === column.id;
  const descending = order.startsWith("-");
  // Figures are most of interest where they are high.
  const next = isSorted ? !descending : Boolean(column.number);
  const mark = isSorted ? (descending ? " ↓" : " ↑") : "";
  return h(
    "th",
    {
      scope: "col",
      role: "columnheader",
      class: classes,
      "aria-sort": isSorted ? (descending ? "descending" : "ascending") : null,
    },
    h(
      "button",
      {
        type: "button",
        class: "sort",
        onclick: () => setQuery({ [`${prefix}sort`]: `${next ? "-" : ""}${column.id}`, [`${prefix}page`]: null }),
      },
      column.label,
      h("span", { "aria-hidden": "true" }, mark),
    ),
  );
}

function tableRow(row, columns, key) {
  return h(
    "tr",
    { key, role: "row" },
    columns.map((column) =>
      column.head
        ? h("th", { scope: "row", role: "rowheader", class: classesOf(column) }, column.cell(row))
        : h("td", { role: "cell", class: classesOf(column), "data-label": labelOf(column) }, column.cell(row)),
    ),
  );
}

function labelOf(column) {
  return typeof column.label === "string" ? column.label : null;
}

function classesOf(column) {
  return [column.number && "num live-figure", column.wide && "wide-only", column.class].filter(Boolean).join(" ") || null;
}

function pager(page, pages, total, prefix) {
  const to = (number) => setQuery({ [`${prefix}page`]: number === 1 ? null : number });
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    h("button", { type: "button", disabled: page === 1, onclick: () => to(page - 1) }, "Previous"),
    h("span", { class: "number" }, `Page ${count(page)} of ${count(pages)}`),
    h("button", { type: "button", disabled: page === pages, onclick: () => to(page + 1) }, "Next"),
    h("span", { class: "quiet number" }, counted(total, "row")),
  );
}

/** A figure for a cell, dimmed if it is zero. */
export function figure(value, format = count) {
  return value === 0 ? h("span", { class: "zero" }, format(0)) : format(value);
}
