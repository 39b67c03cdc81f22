// The frame of every page: which page the address names, the navigation, who one is, shortcuts, messages.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { ANONYMOUS, identity, may, send, signedOut, whoAmI } from "./api.js";
import { html, withValue } from "./html.js";
import { connection } from "./live.js";
import { clock, plain } from "./format.js";
import { nextTheme, theme } from "./theme.js";
import { go, href, path, project, set, start } from "./url.js";
import { Dialog, Form, dialog, toast } from "./parts/dialog.js";

/** Pages by the first part of the path; each is loaded when it is first needed. */
const PAGES = {
  "": () => import("./pages/now.js"),
  runs: () => import("./pages/runs.js"),
  run: () => import("./pages/run.js"),
  compare: () => import("./pages/compare.js"),
  experiments: () => import("./pages/experiments.js"),
  ladders: () => import("./pages/ladders.js"),
  models: () => import("./pages/models.js"),
  fleet: () => import("./pages/fleet.js"),
  new: () => import("./pages/new.js"),
  admin: () => import("./pages/admin.js"),
  login: () => import("./pages/login.js"),
  share: () => import("./pages/login.js"),
};

/** The navigation: address, name, letter of the shortcut, scope that it needs. */
const NAVIGATION = /** @type {[string, string, string, "read"|"run"|"admin"][]} */ ([
  ["", "Now", "n", "read"],
  ["ui/runs", "Runs", "r", "read"],
  ["ui/experiments", "Experiments", "e", "read"],
  ["ui/ladders", "Ladders", "l", "read"],
  ["ui/models", "Models", "m", "read"],
  ["ui/fleet", "Fleet", "f", "read"],
  ["ui/admin", "Admin", "a", "admin"],
]);

/** Shortcuts: key -> [what it does, function]. @typedef {Record<string, [string, () => unknown]>} Keys */
/** Shortcuts of the page that is shown, which sets them. */
export const keys = signal(/** @type {Keys} */ ({}));

/** Set the shortcuts of a page while it is there. @param {Keys} own */
export function useKeys(own) {
  const latest = useRef(own);
  latest.current = own; // what a key does depends on what the page shows now
  useEffect(() => {
    const entries = Object.entries(own).map(([key, [what]]) => [key, [what, () => latest.current[key]?.[1]()]]);
    keys.value = Object.fromEntries(entries);
    return () => {
      keys.value = {};
    };
  }, [Object.keys(own).join()]);
}

/** @returns {{page: keyof typeof PAGES, rest: string[]}|null} */
function route() {
  const [first, page = "", ...rest] = path.value.replace(/\/$/, "").split("/");
  if (first === "" || (first === "ui" && page === "")) return { page: "", rest: [] };
  if (first !== "ui") return null;
  if (page === "runs" && rest.length) return { page: "run", rest };
  return page in PAGES ? { page: /** @type {keyof typeof PAGES} */ (page), rest } : null;
}

function Freshness() {
  const { state, since } = connection.value;
  const words = state === "disconnected" ? `disconnected since ${clock(since)}` : state;
  return html`<span class="freshness" data-state=${state} role="status">${words}</span>`;
}

function Project() {
  const who = identity.value;
  if (!who) return null;
  if (who.project !== "*") return html`<span class="small" title="The project of this token">${who.project}</span>`;
  const change = () =>
    dialog("Project", () => {
      const [name, setName] = useState(project.value || who.acts_in);
      const text = "This token is bound to no project. Name the one whose runs the pages show.";
      const show = async () => set({ project: name, pages: null, sel: null });
      return html`<${Form} text=${text} action="Show it" carryOut=${show}>
        <input type="text" aria-label="Project" value=${name} onInput=${withValue(setName)}
          pattern="[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" required />
      <//>`;
    });
  return html`<button class="quiet" onClick=${change} title="Choose the project">project ${who.acts_in} ▾</button>`;
}

async function signOut() {
  await send("DELETE", "ui/session");
  identity.value = null;
  signedOut.value = true;
  go(href("ui/login", { project: null }));
}

/** Why the server does not say who one is. */
const refusal = signal("");

function Frame() {
  const found = route();
  const [loaded, setLoaded] = useState(/** @type {Record<string, any>} */ ({}));
  const [failure, setFailure] = useState("");
  const who = identity.value;
  const bound = who?.run_id ?? who?.ladder_id ?? null;
  useEffect(() => {
    if (!found) return;
    PAGES[found.page]().then(
      (module) => setLoaded((old) => ({ ...old, [found.page]: module.default })),
      () => setFailure("A part of this page could not be loaded. Is the server there? Load the page again."),
    );
  }, [found?.page]);
  useEffect(() => {
    const open = found?.page === "login" || found?.page === "share";
    if (signedOut.value && !open) go(href("ui/login", { next: path.value + location.search }), true);
  }, [signedOut.value, found?.page]);
  useEffect(() => document.getElementById("content")?.focus({ preventScroll: true }), [path.value]);
  const Shown = found && loaded[found.page];
  const named = who && who.name !== ANONYMOUS && `Signed in as ${plain(who.name, 200)}`;
  const allowed = who || found?.page === "login" || found?.page === "share";
  return html`<a class="skip" href=${location.href} onClick=${skip}>Skip to the content</a>
    <header class="bar">
      <a class="brand" href=${href("")}>Ludus</a>
      ${who && !bound && html`<nav aria-label="Pages">
        ${NAVIGATION.filter(([, , , scope]) => may(scope)).map(([to, name]) => {
          const current = to === "" ? found?.page === "" : path.value.startsWith(to);
          return html`<a key=${to} href=${href(to)} aria-current=${current ? "page" : undefined}>${name}</a>`;
        })}
      </nav>`}
      <span class="end">
        ${who && may("run") && html`<a class="button" href=${href("ui/new")}>New run</a>`}
        ${who && !bound && html`<${Project} />`}
        ${who && html`<${Freshness} />`}
        <button class="quiet" onClick=${nextTheme} title="Colors: ${theme.value}">
          ◐<span class="skip">Colors: ${theme.value}</span></button>
        <button class="quiet" onClick=${showKeys} title="Shortcuts">?</button>
        ${named && html`<button class="quiet" onClick=${signOut} title=${named}>Sign out</button>`}
      </span></header>
    <main id="content" tabindex="-1">
      ${failure && html`<p class="note" data-tone="bad">${failure}</p>`}
      ${!found && html`<p class="empty">There is no such page. <a href=${href("")}>Go to the first one.</a></p>`}
      ${found && !failure && !(Shown && allowed) &&
      html`<p class="empty" role=${refusal.value ? "alert" : "status"}>${refusal.value || "Loading …"}</p>`}
      ${found && Shown && allowed &&
      html`<${Shown} key=${found.rest[0] ?? ""} parts=${found.rest} page=${found.page} />`}
    </main>
    <${Dialog} />`;
}

/** `#content` as an address would lead to the first page, because of `<base>`. @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function showKeys() {
  const general = [
    ["g n, r, e, l, m, f, a", "go to Now, Runs, Experiments, Ladders, Models, Fleet, Admin"],
    ["/", "search"],
    ["?", "this list"],
  ];
  const own = Object.entries(keys.value).map(([key, [what]]) => [key === "Escape" ? "Esc" : key, what]);
  const rows = [...own, ...general].map(([key, what]) => html`<kbd>${key}</kbd><span>${what}</span>`);
  dialog("Shortcuts", () => html`<div class="keys">${rows}</div>`);
}

/** After `g`, the next letter is a page. */
let going = false;

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select")) return;
  if (document.querySelector("dialog[open]")) return; // Escape closes it, wherever the focus is
  if (event.key === "Enter" && target.closest("a, button, summary")) return; // it opens or presses that
  if (going) {
    going = false;
    const found = NAVIGATION.find(([, , letter, scope]) => letter === event.key && may(scope));
    if (found) go(href(found[0]));
    return;
  }
  if (event.key === "g") going = true;
  else if (event.key === "?") showKeys();
  else if (event.key === "/") document.querySelector(/** @type {"input"} */ ('input[type="search"]'))?.focus();
  else if (keys.value[event.key]) keys.value[event.key][1]();
  else return;
  event.preventDefault();
}

start();
document.addEventListener("keydown", onKey);
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "Problem" || event.reason?.status !== undefined) {
    toast(event.reason.message);
    event.preventDefault();
  }
});
render(html`<${Frame} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
/** Find out who one is, and try again while the server does not say. */
function begin() {
  whoAmI().then(() => (refusal.value = ""), (problem) => {
    refusal.value = `${problem.message} ${problem.next}`;
    setTimeout(begin, 5000);
  });
}
effect(() => {
  if (!path.peek().startsWith("ui/share")) begin(); // again when the project changes, which the request reads
});
