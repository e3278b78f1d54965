/**
 * Questions before something is changed, and words about what came of it.
 *
 * A <dialog> opened as modal keeps the focus within, closes by Escape and gives the focus back.
 */

import { h } from "./dom.js";

/**
 * Ask before a change; resolves to whether it was confirmed.
 *
 * @param {string} title a question that says what and how many: "Delete 3 messages?"
 * @param {string|Node|Array} text what will happen
 * @param {string} verb the button's word: "Delete"
 * @param {object} options `danger` where it cannot be undone
 */
export async function confirm(title, text, verb, { danger = false } = {}) {
  const answer = await form(title, h("p", null, text), verb, { danger });
  return answer !== null;
}

/**
 * Ask with fields; resolves to their values by name, or null when it was cancelled.
 *
 * @param {string} title
 * @param {Node|Array} body with named fields
 * @param {string} verb
 * @param {object} options `danger`, `wide`
 */
export function form(title, body, verb, { danger = false, wide = false } = {}) {
  const heading = `dialog-${(number += 1)}`;
  const ok = h("button", { class: danger ? "danger" : "primary", value: "ok" }, verb);
  const cancel = h("button", { type: "button", onclick: () => dialog.close("") }, "Cancel");
  const dialog = h(
    "dialog",
    { "aria-labelledby": heading, class: wide && "wide" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: heading }, title),
      body,
      h("div", { class: "buttons" }, ok, cancel),
    ),
  );
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const values = new FormData(dialog.querySelector("form"));
      dialog.remove();
      resolve(dialog.returnValue === "ok" ? Object.fromEntries(values) : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    // What cannot be undone must not happen by one Enter too many.
    if (danger && dialog.querySelector("input, select, textarea") === null) cancel.focus();
  });
}

let number = 0;

/** A field with its label for a form. */
export function field(label, control, hint = null) {
  return h(
    "label",
    { class: "field" },
    h("span", { class: "label" }, label),
    control,
    hint && h("small", null, hint),
  );
}

/** Say what came of a change, for sight and screen reader; errors stay until they are dismissed. */
export function say(text, { bad = false } = {}) {
  const area = document.getElementById("said");
  const note = h(
    "div",
    { class: `note ${bad ? "bad" : "good"}`, role: bad ? "alert" : null },
    h("span", null, text),
    h("button", { type: "button", class: "plain", "aria-label": "Dismiss", onclick: () => note.remove() }, "×"),
  );
  area.append(note);
  while (area.childElementCount > 3) area.firstElementChild.remove();
  if (!bad) setTimeout(() => note.remove(), 8000);
}

/** Run a change and say its failure; resolves to its result, or undefined when it failed. */
export async function attempt(change) {
  try {
    return await change();
  } catch (error) {
    say(error.message, { bad: true });
    return undefined;
  }
}
