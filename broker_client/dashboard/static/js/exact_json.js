/**
 * JSON whose numbers stay as they are written: a number of JavaScript holds integers up to 2^53, and
 * does not tell 1.0, which AMQP carries as a double, from 1.
 */

/** A number that JavaScript's would not print as it is written. In arithmetic it is the nearest. */
export class ExactNumber {
  /** @param {string} text as JSON has it */
  constructor(text) {
    this.text = text;
  }

  valueOf() {
    return Number(this.text);
  }

  toString() {
    return this.text;
  }
}

const LONG = /\d{16}/;
const ANY = /\d{16}|\d[.eE]/;
const INTEGER = /^-?\d+$/;
const TOKEN = /\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s{}[\],:"]+|[{}[\],:])/g;

/**
 * The value of a JSON text.
 *
 * @param {string} text
 * @param {object} options `floats`: also those that are written otherwise than JavaScript does
 * @throws {SyntaxError} it is not JSON
 */
export function parse(text, { floats = false } = {}) {
  const value = JSON.parse(text);
  if (!(floats ? ANY : LONG).test(text)) return value;
  const tokens = Array.from(text.matchAll(TOKEN), ([, token]) => token);
  return valueAt(tokens, { at: 0 }, floats);
}

/* The text is known to be JSON, so that every token is where it has to be. */
function valueAt(tokens, place, floats) {
  const token = tokens[place.at++];
  if (token === "[" || token === "{") {
    const values = [];
    const end = token === "[" ? "]" : "}";
    while (tokens[place.at] !== end) {
      if (tokens[place.at] === ",") place.at += 1;
      if (end === "]") {
        values.push(valueAt(tokens, place, floats));
        continue;
      }
      const name = JSON.parse(tokens[place.at]);
      place.at += 2; // the colon, too
      values.push([name, valueAt(tokens, place, floats)]);
    }
    place.at += 1;
    return end === "]" ? values : Object.fromEntries(values);
  }
  const value = JSON.parse(token);
  if (typeof value !== "number" || (!floats && !INTEGER.test(token))) return value;
  return String(value) === token ? value : new ExactNumber(token);
}

/**
 * The JSON text of a value, indented by two where `pretty` is set.
 *
 * @param {*} value
 * @param {boolean} pretty
 */
export function stringify(value, pretty = false) {
  return written(value, pretty ? "\n" : "");
}

function written(value, line) {
  if (value instanceof ExactNumber) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const isList = Array.isArray(value);
  const within = line && `${line}  `;
  const parts = isList
    ? value.map((each) => written(each, within))
    : Object.entries(value)
        .filter(([, each]) => each !== undefined)
        .map(([name, each]) => `${JSON.stringify(name)}:${line && " "}${written(each, within)}`);
  const [open, close] = isList ? "[]" : "{}";
  if (parts.length === 0) return open + close;
  return `${open}${within}${parts.join(`,${within}`)}${line}${close}`;
}
