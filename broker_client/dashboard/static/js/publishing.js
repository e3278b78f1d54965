/** A message written by hand: a test publish, or the edited copy of one that lies in a queue. */

import { at, post } from "./api.js";
import { attempt, field, form, say } from "./dialogs.js";
import { h } from "./dom.js";
import { ExactNumber, parse, stringify } from "./exact_json.js";
import { prettyJson } from "./format.js";

/** Ask for a message and publish it; says whether a queue got it. */
export async function publishForm({ vhost, exchange, routingKey = "", title }) {
  const body = [
    keyField(routingKey),
    field("Body", h("textarea", { name: "payload", rows: "6", spellcheck: "false" })),
    contentTypeField("application/json"),
    headersField({}),
    persistentField(true),
  ];
  const message = await asked(title, body, "Publish");
  if (message === null) return;
  await attempt(async () => {
    const { routed } = await post(`${at("ui/api/exchanges", vhost, exchange || "amq.default")}/publish`, {
      properties: { ...message.properties, headers: message.headers },
      routing_key: message.routing_key,
      payload: message.payload,
      payload_encoding: "string",
    });
    if (routed) say("Published, and routed to a queue.");
    else say("Published, but no queue was bound for that key: the message is dropped.", { bad: true });
  });
}

/** Edit a copy of `message` and put it in its place; resolves to whether that was done. */
export async function resendForm({ vhost, queue, message }) {
  const isText = message.payload_encoding === "string";
  const target = message.origin?.queue;
  const shownBody = prettyJson(message.payload) ?? message.payload;
  const headers = Object.fromEntries(Object.entries(message.headers ?? {}).filter(([name]) => !OF_THE_BROKER.test(name)));
  const wasPersistent = message.properties.delivery_mode === 2;
  const body = [
    h("p", null, "The edited copy is published and confirmed, and only then is the original removed from here."),
    h(
      "div",
      { class: "grid-2" },
      field("Exchange", h("input", { name: "exchange", value: target === undefined ? message.exchange : "", autocomplete: "off" }), "Empty: the default exchange, where the key is the queue."),
      keyField(target ?? message.routing_key),
    ),
    isText
      ? field("Body", h("textarea", { name: "payload", rows: "10", spellcheck: "false", autofocus: true }, shownBody))
      : h("p", { class: "quiet" }, "The body is binary, and is sent as it is."),
    contentTypeField(message.properties.content_type ?? ""),
    headersField(headers),
    persistentField(wasPersistent),
  ];
  const edited = await asked("Edit and send again", body, "Send it and remove the original");
  if (edited === null) return false;
  const done = await attempt(() =>
    post(`${at("ui/queues", vhost, queue)}/resend`, {
      key: message.key,
      exchange: edited.exchange,
      routing_key: edited.routing_key,
      ...changes(edited, { message, headers, wasPersistent }),
      ...(isText && lines(edited.payload) !== lines(shownBody) && { payload: edited.payload, payload_encoding: "string" }),
      confirmed: true,
    }),
  );
  if (done === undefined) return false;
  if (done.routed) say("Sent again, and the original is removed.");
  else say("No queue was bound for that key: nothing was changed.", { bad: true });
  return true;
}

/* Headers in which brokers note where a message died, and how often it was delivered. */
const OF_THE_BROKER = /^(x-death|x-(first|last)-death-(exchange|queue|reason)|x-delivery-count|x-acquired-count)$/;

/* Only what is different is sent: JSON has fewer types than AMQP, so the server keeps the rest. */
function changes(edited, { message, headers, wasPersistent }) {
  const properties = {};
  const contentType = edited.properties.content_type ?? "";
  if (contentType !== (message.properties.content_type ?? "")) properties.content_type = contentType || null;
  const persistent = edited.properties.delivery_mode === 2;
  if (persistent !== wasPersistent) properties.delivery_mode = edited.properties.delivery_mode;
  const isKept = ([name, value]) => Object.hasOwn(headers, name) && stringify(headers[name]) === stringify(value);
  const entries = Object.entries(edited.headers);
  return {
    properties,
    kept_headers: entries.filter(isKept).map(([name]) => name),
    headers: Object.fromEntries(entries.filter((each) => !isKept(each))),
  };
}

/* A text field has its own ends of lines. */
function lines(text) {
  return text.replace(/\r\n?/g, "\n");
}

function keyField(value) {
  return field("Routing key", h("input", { name: "routing_key", value, autocomplete: "off", spellcheck: "false" }));
}

function contentTypeField(value) {
  return field("Content type", h("input", { name: "content_type", value, autocomplete: "off", list: "content-types" }));
}

function headersField(headers) {
  const text = Object.keys(headers).length === 0 ? "" : stringify(headers, true);
  return field("Headers, as a JSON object", h("textarea", { name: "headers", rows: text === "" ? "2" : "6", spellcheck: "false", oninput: checkHeaders }, text));
}

function persistentField(on) {
  return h("p", { class: "after" }, h("label", { class: "choice" }, h("input", { type: "checkbox", name: "persistent", checked: on }), "Persistent: it outlives a restart in a durable queue"));
}

function checkHeaders(event) {
  event.target.setCustomValidity(parsedHeaders(event.target.value) === null ? "This is not a JSON object." : "");
}

function parsedHeaders(text) {
  if (text.trim() === "") return {};
  try {
    const value = parse(text, { floats: true });
    return value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof ExactNumber) ? value : null;
  } catch {
    return null;
  }
}

async function asked(title, body, verb) {
  const values = await form(title, body, verb, { wide: true });
  if (values === null) return null;
  const properties = { delivery_mode: values.persistent === undefined ? 1 : 2 };
  if (values.content_type) properties.content_type = values.content_type;
  return {
    exchange: values.exchange ?? "",
    routing_key: values.routing_key,
    payload: values.payload ?? "",
    headers: parsedHeaders(values.headers) ?? {},
    properties,
  };
}
