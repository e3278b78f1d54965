/** The login. */

import { post } from "../api.js";
import { field } from "../dialogs.js";
import { h } from "../dom.js";

let refused = null;
let waiting = false;

/**
 * @param {State} state
 * @param {(session: object) => void} onsession
 * @param {() => void} redraw
 */
export function loginView(state, onsession, redraw) {
  const broker = state.session.broker ?? {};
  async function submit(event) {
    event.preventDefault();
    const form = event.currentTarget;
    waiting = true;
    refused = null;
    redraw();
    try {
      const { user, password } = Object.fromEntries(new FormData(form));
      const session = await post("ui/login", { user, password });
      form.reset();
      onsession(session);
    } catch (error) {
      refused = error.message;
      form.elements.password.value = "";
      form.elements.password.focus();
    } finally {
      waiting = false;
      redraw();
    }
  }
  return h(
    "main",
    { class: "login" },
    h(
      "form",
      { class: "card", onsubmit: submit },
      h("h1", null, broker.name ?? "Broker"),
      h("p", { class: "quiet" }, state.reason ?? "Log in with a user of the broker."),
      field("User", h("input", { name: "user", autocomplete: "username", required: true, autofocus: true, autocapitalize: "none", spellcheck: "false" })),
      field("Password", h("input", { name: "password", type: "password", autocomplete: "current-password" })),
      h("p", { role: "alert", class: "refused" }, refused),
      h("button", { class: "primary", disabled: waiting }, waiting ? "Logging in …" : "Log in"),
    ),
  );
}
