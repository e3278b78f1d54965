/** The frame of every page, the way from an address to its page, and the link to the server. */

import { get, post, useToken } from "./api.js";
import { h, show, unseen } from "./dom.js";
import { say } from "./dialogs.js";
import { moment } from "./format.js";
import { jobStrip } from "./jobs.js";
import { Live } from "./live.js";
import { link, route } from "./route.js";
import { State } from "./state.js";
import { loginView } from "./pages/login.js";
import { auditPage } from "./pages/audit.js";
import { connectionPage, connectionsPage } from "./pages/connections.js";
import { deadLettersPage } from "./pages/dead_letters.js";
import { exchangePage, exchangesPage } from "./pages/exchanges.js";
import { overviewPage } from "./pages/overview.js";
import { queuePage } from "./pages/queue.js";
import { queuesPage } from "./pages/queues.js";
import { topologyPage } from "./pages/topology.js";
import { usersPage } from "./pages/users.js";
import { vhostsPage } from "./pages/vhosts.js";

/** Pages by the first part of the address; `under` is the entry of the menu they belong to. */
const PAGES = {
  overview: { make: overviewPage, menu: "Overview" },
  queues: { make: queuesPage, menu: "Queues" },
  queue: { make: queuePage, under: "queues" },
  "dead-letters": { make: deadLettersPage, menu: "Dead letters" },
  exchanges: { make: exchangesPage, menu: "Exchanges" },
  exchange: { make: exchangePage, under: "exchanges" },
  topology: { make: topologyPage, menu: "Topology" },
  connections: { make: connectionsPage, menu: "Connections" },
  connection: { make: connectionPage, under: "connections" },
  vhosts: { make: vhostsPage, menu: "Virtual hosts", needs: "administer" },
  users: { make: usersPage, menu: "Users", needs: "administer" },
  audit: { make: auditPage, menu: "Audit" },
};

const STREAM = "ui/stream";
const ACTIVE_MS = 60_000;
const LONGEST_PRESS_MS = 30_000;
const CLICK_MS = 50;

const app = document.getElementById("app");
const state = new State();
const live = new Live({
  names: ["overview", "queues", "job", "audit", "heartbeat", "unreachable", "end"],
  silence: 15,
  onupdate: hear,
  onstate: linkChanged,
  onrefused: checkSession,
});

let page = null;
let shown = "";
let menuOpen = false;
let drawing = 0;
let pressed = false;
let releasing = 0;
let lastActive = 0;

/* ---------------------------------------------------------------- session */

async function start() {
  try {
    state.session = await get("ui/session");
  } catch (error) {
    say(error.message, { bad: true });
    setTimeout(start, 2000);
    return;
  }
  enter();
}

function enter() {
  useToken(state.session.csrf);
  if (state.session.authenticated) live.open(STREAM);
  navigate();
}

async function checkSession() {
  try {
    const session = await get("ui/session", { automatic: true });
    if (session.authenticated) {
      state.session = session;
      useToken(session.csrf);
    } else {
      leave("The session has ended. Log in to go on.");
    }
  } catch {
    // No answer: the link is lost, and is said to be.
  }
}

function leave(reason = null) {
  if (!state.session.authenticated) return;
  live.close();
  closePage();
  state.clear();
  state.session = { authenticated: false, broker: state.session.broker };
  state.reason = reason;
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close(""));
  navigate();
}

async function logOut() {
  try {
    await post("ui/logout");
    leave();
  } catch (error) {
    say(error.message, { bad: true });
  }
}

async function loggedIn(session) {
  state.session = session;
  state.reason = null;
  enter();
}

/* Requests keep a session alive, and the stream does not: so somebody who only reads here stays. */
function active() {
  if (!state.session.authenticated || Date.now() - lastActive < ACTIVE_MS) return;
  lastActive = Date.now();
  get("ui/session").catch(() => {});
}

/* ---------------------------------------------------------------- updates */

function hear(name, data) {
  if (name === "end") {
    if (data.reason !== "stopping") leave("The session has ended. Log in to go on.");
    return;
  }
  state.hear(name, data);
  if (name === "overview") page?.sampled?.();
  if (name !== "heartbeat") redraw();
}

function linkChanged(now) {
  const before = state.link;
  state.link = now;
  if (now === "lost") speak("The link to the server is lost. Figures are old.");
  if (now === "live" && before === "lost") {
    speak("The link to the server is back.");
    page?.sampled?.();
  }
  redraw();
}

function speak(text) {
  document.getElementById("spoken").textContent = text;
}

/** Draw with the next frame in which nothing is pressed, however often it is asked for until then. */
function redraw() {
  if (drawing === 0) drawing = requestAnimationFrame(drawUnlessPressed);
}

function drawUnlessPressed() {
  if (pressed) drawing = requestAnimationFrame(drawUnlessPressed);
  else draw();
}

/* A browser makes a click where a pointer goes down and up on one element. What an update moved, or
   put in its place, in between would get none, or that of another. */
function press() {
  pressed = true;
  releaseIn(LONGEST_PRESS_MS);
}

function releaseIn(milliseconds) {
  clearTimeout(releasing);
  releasing = setTimeout(() => {
    pressed = false;
  }, milliseconds);
}

function released() {
  releaseIn(CLICK_MS); // that of a finger comes a little later
}

/* ---------------------------------------------------------------- pages */

function navigate() {
  const { path } = route();
  const here = JSON.stringify(path);
  if (!state.session.authenticated) shown = "";
  else if (here !== shown) {
    const first = shown === "";
    closePage();
    menuOpen = false;
    const entry = entryOf(path);
    page = entry === null ? notFound() : PAGES[entry].make(context, ...path.slice(1));
    shown = here;
    draw();
    scrollTo(0, 0);
    // A screen reader says where it is now.
    if (!first) document.querySelector("main h1")?.focus();
    return;
  }
  draw();
}

function closePage() {
  page?.close?.();
  page = null;
  shown = "";
}

function entryOf(path) {
  const name = path[0] ?? "overview";
  const entry = Object.hasOwn(PAGES, name) ? PAGES[name] : null;
  return entry === null || (entry.needs && !state.can(entry.needs)) ? null : name;
}

function notFound() {
  return {
    title: "Not found",
    view: () => h("div", { class: "empty" }, h("p", null, "There is no such page, or you may not see it."), h("a", { href: link("overview") }, "To the overview")),
  };
}

const context = { state, redraw };

/* ---------------------------------------------------------------- frame */

function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const broker = state.session.broker ?? {};
  if (!state.session.authenticated) {
    document.title = `Log in – ${broker.name ?? "Broker"}`;
    document.body.className = "";
    show(app, loginView(state, loggedIn, redraw));
    return;
  }
  document.title = `${page.title} – ${broker.name ?? "Broker"}`;
  document.body.className = state.link === "lost" ? "is-lost" : "";
  show(
    app,
    h("a", { class: "skip", href: "#main", onclick: toMain }, "Skip to content"),
    h(
      "div",
      { class: "frame" },
      side(broker),
      h("div", { class: "content" }, lostBar(), h("main", { id: "main", tabindex: "-1" }, jobStrip(state), h("div", { key: shown }, page.view()))),
    ),
  );
}

function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function side(broker) {
  const current = route().path[0] ?? "overview";
  const under = PAGES[current]?.under ?? current;
  const entries = Object.entries(PAGES).filter(
    ([, entry]) => entry.menu && (!entry.needs || state.can(entry.needs)),
  );
  return h(
    "header",
    { class: menuOpen ? "side open" : "side" },
    h("div", { class: "brand" }, h("strong", null, broker.name ?? "Broker"), h("small", { class: "quiet" }, `${broker.product ?? ""} ${broker.version ?? ""}`)),
    linkState(),
    h(
      "button",
      {
        type: "button",
        class: "menu-button",
        "aria-expanded": String(menuOpen),
        "aria-controls": "menu",
        onclick: () => {
          menuOpen = !menuOpen;
          redraw();
        },
      },
      "Menu",
    ),
    h(
      "nav",
      { "aria-label": "Pages of the dashboard", id: "menu" },
      h(
        "ul",
        null,
        entries.map(([name, entry]) =>
          h("li", { key: name }, h("a", { href: link(name), "aria-current": name === under ? "page" : null }, entry.menu, badge(name))),
        ),
      ),
    ),
    h(
      "div",
      { class: "side-foot" },
      h("small", null, "Logged in as ", h("b", null, state.session.user)),
      h("button", { type: "button", onclick: logOut }, "Log out"),
    ),
  );
}

function badge(name) {
  if (name === "overview") {
    const urgent = (state.overview?.attention ?? []).filter((each) => each.level !== "notice").length;
    return urgent > 0 && h("span", { class: "tag warn" }, urgent, unseen("need attention"));
  }
  if (name === "dead-letters") {
    const dead = [...state.queues.values()].reduce((sum, row) => sum + (row.dead_letter_queue ? (row.ready ?? 0) : 0), 0);
    return dead > 0 && h("span", { class: "tag bad" }, dead > 9999 ? "9999+" : dead, unseen("messages"));
  }
  return null;
}

const LINK_WORDS = { connecting: "Connecting …", live: "Live", lost: "Link lost", paused: "Paused" };

function linkState() {
  return h("span", { class: `link ${state.link}` }, LINK_WORDS[state.link]);
}

function lostBar() {
  const since = state.overview === null ? "" : ` Figures are of ${moment(state.overview.time)}.`;
  if (state.link === "lost") return h("div", { class: "lost-bar", key: "lost" }, `The link to the server is lost; trying again.${since}`);
  if (state.unreachable !== null) {
    return h("div", { class: "lost-bar", key: "lost" }, `The broker does not answer: ${state.unreachable}${since}`);
  }
  return null;
}

addEventListener("hashchange", navigate);
addEventListener("routequery", redraw);
addEventListener("sessionended", () => leave("The session has ended. Log in to go on."));
addEventListener("pointerdown", active);
addEventListener("pointerdown", press, { capture: true });
addEventListener("pointerup", released, { capture: true });
addEventListener("pointercancel", released, { capture: true });
addEventListener("keydown", active);
await start();
