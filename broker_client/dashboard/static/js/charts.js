/** Small charts, drawn as SVG. */

import { h, svg } from "./dom.js";
import { duration, rate } from "./format.js";

const WIDTH = 560;
const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 8;

/**
 * Lines over time, with a legend that carries the newest values.
 *
 * @param {string} title
 * @param {object[]} series `{name, values, tone}`; `values` are numbers or null, oldest first, all
 *   of one length
 * @param {number[]} times seconds since 1970, one for each value
 * @param {object} options `format` of a value, `unit` as read by a screen reader
 */
export function timeChart(title, series, times, { format = rate, unit = "" } = {}) {
  const known = series.flatMap((each) => each.values).filter((value) => value !== null);
  const top = niceCeiling(Math.max(0, ...known));
  const x = scale(0, Math.max(1, times.length - 1), LEFT, WIDTH - RIGHT);
  const y = scale(0, top, HEIGHT - BOTTOM, TOP);
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", null, h("span", { class: "chart-title" }, title), legend(series, format)),
    known.length === 0 || times.length < 2
      ? h("p", { class: "quiet" }, "Nothing measured yet.")
      : svg(
          "svg",
          {
            viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
            role: "img",
            "aria-label": spoken(title, series, times, format, unit),
          },
          grid(top, y, format),
          timeLabels(times, x),
          series.map((each, index) => line(each, index, x, y)),
        ),
  );
}

function legend(series, format) {
  return h(
    "span",
    { class: "legend" },
    series.map((each, index) =>
      h(
        "span",
        { class: `legend-item line-${each.tone ?? index}` },
        `${each.name} `,
        h("b", { class: "number" }, format(lastKnown(each.values))),
      ),
    ),
  );
}

function grid(top, y, format) {
  return [0, top / 2, top].map((value) =>
    svg(
      "g",
      { class: "grid" },
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    ),
  );
}

function timeLabels(times, x) {
  const last = times.length - 1;
  const span = times[last] - times[0];
  return [0, 0.5, 1].map((part) => {
    const at = Math.round(part * last);
    const ago = times[last] - times[at];
    return svg(
      "text",
      { class: "grid", x: x(at), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][part * 2] },
      part === 1 || span === 0 ? "now" : `${duration(roundedTime(ago))} ago`,
    );
  });
}

function roundedTime(seconds) {
  if (seconds < 90) return Math.round(seconds);
  if (seconds < 5400) return Math.round(seconds / 60) * 60;
  return Math.round(seconds / 3600) * 3600;
}

function line({ values, tone }, index, x, y) {
  const kind = `line-${tone ?? index}`;
  return runs(values).map((run) => {
    const points = run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`);
    const [first, last] = [x(run[0][0]).toFixed(1), x(run.at(-1)[0]).toFixed(1)];
    return svg(
      "g",
      { class: kind },
      index === 0 &&
        svg("polygon", { points: [`${first},${y(0)}`, ...points, `${last},${y(0)}`].join(" ") }),
      svg("polyline", { points: points.join(" ") }),
    );
  });
}

/* Pieces without a gap: [[index, value], ...]. */
function runs(values) {
  const found = [];
  let run = [];
  values.forEach((value, at) => {
    if (value !== null && value !== undefined) run.push([at, value]);
    else if (run.length > 0) {
      found.push(run);
      run = [];
    }
  });
  if (run.length > 0) found.push(run);
  return found;
}

function spoken(title, series, times, format, unit) {
  const span = duration(times.at(-1) - times[0]);
  const parts = series.map((each) => {
    const known = each.values.filter((value) => value !== null);
    const highest = known.length > 0 ? Math.max(...known) : null;
    return `${each.name}: now ${format(lastKnown(each.values))}, highest ${format(highest)}`;
  });
  return `${title}, the last ${span}. ${parts.join("; ")}${unit && ` ${unit}`}.`;
}

function lastKnown(values) {
  return values.findLast((value) => value !== null && value !== undefined) ?? null;
}

/** A line without axes for a table's cell; decoration, since the figure stands beside it. */
export function sparkline(values, tone = 0) {
  const known = values.filter((value) => value !== null);
  const [width, height] = [72, 18];
  if (known.length < 2) return svg("svg", { class: "spark", "aria-hidden": "true", viewBox: `0 0 ${width} ${height}` });
  const y = scale(0, Math.max(1, ...known), height - 2, 2);
  const x = scale(0, values.length - 1, 1, width - 1);
  return svg(
    "svg",
    { class: `spark line-${tone}`, "aria-hidden": "true", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" },
    runs(values).map((run) =>
      svg("polyline", {
        points: run.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
      }),
    ),
  );
}

function scale(low, high, from, to) {
  return (value) => from + ((value - low) / (high - low || 1)) * (to - from);
}

/* The next of 1, 2, 4, 5, 10 times a power of ten. */
function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
}

