/** Numbers, sizes, times and durations as people read them. */

import { ExactNumber, stringify } from "./exact_json.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** A count: 12,345. What is not known is a dash. */
export function count(value) {
  return isKnown(value) ? whole.format(value) : "–";
}

/** A count in little space: 12.3K. */
export function compact(value) {
  return isKnown(value) ? (Math.abs(value) < 10000 ? count(value) : short.format(value)) : "–";
}

/** A rate per second: 0, 0.4, 12, 3,400. */
export function rate(value) {
  if (!isKnown(value)) return "–";
  if (value === 0) return "0";
  if (value < 0.1) return "<0.1";
  return value < 10 ? value.toFixed(1) : count(value);
}

/** "1 message", "12 messages". */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A size in bytes: 512 B, 1.2 KB, 34 MB. */
export function bytes(value) {
  if (!isKnown(value)) return "–";
  if (value < 1000) return `${whole.format(value)} B`;
  const units = ["KB", "MB", "GB", "TB"];
  let size = value;
  let unit = -1;
  do {
    size /= 1000;
    unit += 1;
  } while (size >= 999.5 && unit < units.length - 1);
  return `${size < 9.95 ? size.toFixed(1) : whole.format(size)} ${units[unit]}`;
}

/** A duration in seconds: 250 ms, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!isKnown(seconds)) return "–";
  const past = Math.abs(seconds);
  if (past < 1) return `${Math.round(past * 1000)} ms`;
  if (past < 10) return `${trimmed(past)} s`;
  const all = Math.round(past);
  if (all < 60) return `${all} s`;
  if (all < 3600) return two(Math.floor(all / 60), "min", all % 60, "s");
  if (all < 86400) return two(Math.floor(all / 3600), "h", Math.floor((all % 3600) / 60), "min");
  return two(Math.floor(all / 86400), "d", Math.floor((all % 86400) / 3600), "h");
}

function trimmed(value) {
  return value.toFixed(1).replace(/\.0$/, "");
}

function two(more, unit, less, lessUnit) {
  return less === 0 || more >= 10 ? `${more} ${unit}` : `${more} ${unit} ${less} ${lessUnit}`;
}

/** A moment, given as seconds since 1970, in the reader's time zone; the date where it is not today. */
export function moment(seconds) {
  if (!isKnown(seconds)) return "–";
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${isoDay(date)} ${time}`;
}

/** A moment in full, with its time zone. */
export function fullMoment(seconds) {
  if (!isKnown(seconds)) return "";
  const date = new Date(seconds * 1000);
  return `${isoDay(date)} ${date.toLocaleTimeString("en-GB", { timeZoneName: "short" })}`;
}

function isoDay(date) {
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/** JSON with two spaces where `text` is JSON, or else null. */
export function prettyJson(text) {
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/* Laid out as it is written: to parse and print would round numbers beyond 2^53. */
function indented(text) {
  let out = "";
  let depth = 0;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const line = `\n${"  ".repeat(depth)}`;
    if (token === "{" || token === "[") {
      depth += 1;
      out += `${token}\n${"  ".repeat(depth)}`;
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const empty = /[{[]\s*$/.test(out);
      out = empty ? out.trimEnd() + token : `${out}\n${"  ".repeat(depth)}${token}`;
    } else if (token === ",") {
      out += `,${line}`;
    } else {
      out += token === ":" ? ": " : token;
    }
  }
  return out;
}

/**
 * A value of a header or an argument as one line of text: a text as it is, unless nothing of it would
 * be seen, and else as JSON.
 */
export function valueText(value) {
  return typeof value === "string" && !isUnseen(value) ? value : stringify(value);
}

/** What to say beside a value that would be overlooked, or taken for a text; null where nothing. */
export function valueNote(value) {
  if (value === null) return "no value";
  if (value === "") return "empty text";
  if (typeof value === "string") return isUnseen(value) ? "white space" : null;
  if (Array.isArray(value)) return value.length === 0 ? "empty list" : null;
  return typeof value === "object" && !(value instanceof ExactNumber) && Object.keys(value).length === 0 ? "empty table" : null;
}

/* Spaces, controls and marks that have no width. */
function isUnseen(text) {
  return /^[\s\p{C}]*$/u.test(text);
}

export function isKnown(value) {
  return value !== null && value !== undefined && !Number.isNaN(value);
}
