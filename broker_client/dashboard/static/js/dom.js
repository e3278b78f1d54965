/**
 * Elements, and keeping those on the page equal to what a view describes.
 *
 * A view is a function of the state that returns new elements. `morph` makes the ones on the page
 * equal to them and leaves alone what is equal already, so that focus, selection and scrolling
 * survive an update. Text is only ever set as text: nothing here parses markup.
 */

import { valueNote, valueText } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/**
 * An HTML element.
 *
 * @param {string} tag
 * @param {object|null} props attributes; `onclick` and the like are listeners; `class`, `key`;
 *   null, undefined and false leave one out; true sets it empty
 * @param {...(Node|string|number|null|undefined|false|Array)} children
 */
export function h(tag, props, ...children) {
  return dress(document.createElement(tag), props, children);
}

/** An SVG element. */
export function svg(tag, props, ...children) {
  return dress(document.createElementNS(SVG, tag), props, children);
}

function dress(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "key") element.key = String(value);
    else if (name === "checked" || name === "indeterminate" || name === "selected") element[name] = true;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/* One listener per kind stays on an element and calls the newest handler: see `morph`. */
function listen(element, kind, handler) {
  element.handlers ??= {};
  if (!(kind in element.handlers)) {
    element.addEventListener(kind, (event) => element.handlers[kind]?.(event));
  }
  element.handlers[kind] = handler;
}

/** Give the focus to an element where what had it is gone, so that the keyboard goes on from there. */
export function refocus(id) {
  if (document.activeElement === document.body) document.getElementById(id)?.focus({ preventScroll: true });
}

/** Words for a screen reader only, after those that are seen. */
export function unseen(text) {
  return h("span", { class: "unseen" }, ` ${text}`);
}

/** A value of a header or an argument, such that it is seen even where it is empty. */
export function valueOf(value) {
  const note = valueNote(value);
  return note === null ? valueText(value) : [valueText(value), h("small", { class: "quiet" }, ` (${note})`)];
}

/** Have `parent` contain exactly `children`, by changing what differs. */
export function show(parent, ...children) {
  const wanted = document.createElement("div");
  append(wanted, children);
  const focused = document.activeElement;
  morphChildren(parent, wanted);
  // To move an element takes its focus away.
  if (focused !== document.activeElement && focused?.isConnected && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    let found = null;
    if (wanted.key !== undefined) {
      found = keyed.get(wanted.key) ?? null;
      keyed.delete(wanted.key);
    } else if (place !== null && place.key === undefined) {
      found = place;
    }
    if (found === null || !isSame(found, wanted)) {
      from.insertBefore(wanted, place);
      if (found !== null) {
        if (found === place) place = place.nextSibling;
        found.remove();
      }
      continue;
    }
    if (found === place) place = place.nextSibling;
    else from.insertBefore(found, place);
    morph(found, wanted);
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function isSame(a, b) {
  return a.nodeName === b.nodeName && a.key === b.key && a.id === b.id;
}

function morph(from, to) {
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) {
    if (!to.hasAttribute(name) && !isUsers(from, name)) from.removeAttribute(name);
  }
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value && !isUsers(from, name)) from.setAttribute(name, value);
  }
  for (const kind of Object.keys(from.handlers ?? {})) from.handlers[kind] = null;
  for (const [kind, handler] of Object.entries(to.handlers ?? {})) listen(from, kind, handler);
  if (from.nodeName === "INPUT") {
    if (from.checked !== to.checked) from.checked = to.checked;
    from.indeterminate = to.indeterminate;
    if (from !== document.activeElement && to.hasAttribute("value")) from.value = to.value;
  }
  morphChildren(from, to);
  if (from.nodeName === "SELECT" && from !== document.activeElement) from.value = to.value;
}

/* What the user has opened or written stays as it is. */
function isUsers(element, attribute) {
  return attribute === "open" && element.nodeName === "DETAILS";
}
