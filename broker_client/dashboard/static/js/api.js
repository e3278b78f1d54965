/** Requests to the server; addresses are relative to the page, whatever path of a proxy it is below. */

import { parse, stringify } from "./exact_json.js";

/** The server refused, or could not be reached. */
export class ApiError extends Error {
  /**
   * @param {number} status 0 where nothing answered
   * @param {string} code
   * @param {string} reason a sentence for people
   */
  constructor(status, code, reason) {
    super(reason);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
  }
}

let csrf = "";

/** The token that a change has to carry; it comes with the session. */
export function useToken(token) {
  csrf = token ?? "";
}

/**
 * @param {string} path below the page, such as "ui/overview"
 * @param {object} options `automatic` where no user asked: it does not keep a session alive
 */
export function get(path, { automatic = false } = {}) {
  return request("GET", path, undefined, automatic ? { "X-Automatic": "1" } : {});
}

/** `floats`: those of the answer stay as they are written; see `exact_json.js`. */
export function post(path, body = {}, { floats = false } = {}) {
  return request("POST", path, body, {}, floats);
}

export function put(path, body = {}) {
  return request("PUT", path, body);
}

export function remove(path, headers = {}) {
  return request("DELETE", path, {}, headers);
}

/** A path of names, each percent-encoded: `at("ui/queues", "/", "orders")`. */
export function at(base, ...names) {
  return [base, ...names.map(encodeURIComponent)].join("/");
}

async function request(method, path, body, headers = {}, floats = false) {
  const options = { method, headers: { Accept: "application/json", ...headers }, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = stringify(body);
    options.headers["Content-Type"] = "application/json";
    options.headers["X-CSRF-Token"] = csrf;
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new ApiError(0, "unreachable", "The server does not answer. It is not known whether anything was changed.");
  }
  const said = await read(answer, floats);
  if (answer.ok) return said;
  const error = new ApiError(
    answer.status,
    said?.error ?? "failed",
    said?.reason ?? `The server answered ${answer.status}.`,
  );
  if (error.status === 401 && error.code === "no_session") dispatchEvent(new Event("sessionended"));
  throw error;
}

async function read(answer, floats) {
  const text = await answer.text();
  if (text === "") return null;
  try {
    return parse(text, { floats });
  } catch {
    return null; // a proxy's page
  }
}
