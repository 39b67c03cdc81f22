// The address is the state of the view: its path says which page, its query what the page shows.
import { computed, signal } from "@preact/signals";

/** Address below which the server stands, with a slash at its end. `<base>` fixes it when the page loads. */
export const ROOT = new URL(".", document.baseURI);

/** Path below ROOT, without a slash at its start: `ui/runs/nightly`. */
export const path = signal(here());
/** The query of the address. */
export const query = signal(new URLSearchParams(location.search));
/** The project in which requests act; "": the token's own. */
export const project = computed(() => query.value.get("project") ?? "");

function here() {
  return decoded(location.pathname).slice(ROOT.pathname.length);
}

function read() {
  path.value = here();
  query.value = new URLSearchParams(location.search);
}

/**
 * An address in the present project, below any prefix.
 * @param {string} to path below ROOT @param {Record<string, unknown>} [parameters] see `withParameters`
 */
export function href(to, parameters = {}) {
  const text = withParameters(new URLSearchParams(), { project: project.value, ...parameters }).toString();
  return new URL(to, ROOT).pathname + (text ? `?${text}` : "");
}

/**
 * Set parameters: a list is joined by commas, and null, "" or false removes one.
 * @param {URLSearchParams} old @param {Record<string, unknown>} parameters
 */
export function withParameters(old, parameters) {
  const all = new URLSearchParams(old);
  for (const [name, value] of Object.entries(parameters)) {
    const text = Array.isArray(value) ? value.map((each) => encodeURIComponent(each)).join(",") : value;
    if (text === null || text === undefined || text === "" || text === false) all.delete(name);
    else all.set(name, text === true ? "1" : String(text));
  }
  return all;
}

/** Go to a page without loading anything again. @param {string} to an address of `href` @param {boolean} [replace] */
export function go(to, replace = false) {
  history[replace ? "replaceState" : "pushState"](null, "", to);
  read();
  if (!replace) scrollTo(0, 0);
}

/** Change parameters of the present address. What a reader looks at changes no page: there is nothing to go back to. */
export function set(/** @type {Record<string, unknown>} */ parameters) {
  const text = withParameters(query.value, parameters).toString();
  go(location.pathname + (text ? `?${text}` : ""), true);
}

/** @param {string} name @param {string} [otherwise] */
export function text(name, otherwise = "") {
  return query.value.get(name) ?? otherwise;
}

/** @param {string} name */
export function flag(name) {
  return query.value.get(name) === "1";
}

/** A text without its percent signs; one that was typed wrong stays as it is. @param {string} words */
function decoded(words) {
  try {
    return decodeURIComponent(words);
  } catch {
    return words;
  }
}

/** A parameter that is a list. @param {string} name @returns {string[]} */
export function list(name) {
  const found = query.value.get(name);
  return found ? found.split(",").map(decoded) : [];
}

/** A number, or null where there is none. @param {string} name */
export function numeric(name) {
  const value = Number.parseFloat(query.value.get(name) ?? "");
  return Number.isFinite(value) ? value : null;
}

/** Follow the links of this page, and the browser's arrows. */
export function start() {
  addEventListener("popstate", read);
  document.addEventListener("click", (event) => {
    const link = /** @type {HTMLElement} */ (event.target).closest?.("a");
    const plain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    const to = new URL(link.href);
    const page = to.pathname.slice(ROOT.pathname.length);
    const inside = to.origin === location.origin && to.pathname.startsWith(ROOT.pathname);
    if (!inside || !(page === "" || page.startsWith("ui"))) return;
    event.preventDefault();
    go(to.pathname + to.search + to.hash);
  });
}
