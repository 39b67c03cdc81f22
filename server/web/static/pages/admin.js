// Admin: who may do what, who did what, who is told, and what fills up.
import { useState } from "preact/hooks";
import { change } from "../api.js";
import { ago, bytes, count, moment, plain } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { href, list, set, text } from "../url.js";
import { Form, Secret, ask, dialog, toast } from "../parts/dialog.js";
import { Missing, Sign } from "../parts/signs.js";
import { cardTable, table } from "../parts/table.js";

const PARTS = { "": Tokens, webhooks: Webhooks, audit: Audit, storage: Storage };
const SCOPES = {
  read: "read",
  run: "read, start, change and end runs",
  admin: "everything, tokens too",
  simulate: "join runs as a simulator, nothing else",
};

export default function Admin() {
  const part = text("part");
  const Shown = Object.hasOwn(PARTS, part) && PARTS[/** @type {keyof typeof PARTS} */ (part)];
  const tabs = Object.entries(PARTS).map(([value, { name }]) => {
    const current = value === part ? "page" : undefined;
    return html`<a key=${value} href=${href("ui/admin", { part: value })} aria-current=${current}>${name}</a>`;
  });
  return html`<div class="head"><h1>Admin</h1></div>
    <nav class="tabs" aria-label="Parts">${tabs}</nav>
    ${Shown && html`<${Shown} />`}`;
}

/** What a token is bound to. @param {any} token */
function bound({ run_id: run, ladder_id: ladder, project }) {
  if (run) return html`run <a href=${runHref({ id: run })}>${run}</a>`;
  return ladder ? html`ladder <a href=${href(`ui/ladders/${ladder}`)}>${ladder}</a>` : `project ${project}`;
}

/** Until when a token holds. @param {any} token */
function end({ revoked_at: revoked, expires_at: expires }) {
  if (revoked) return `revoked ${ago(revoked)}`;
  return expires ? `${moment(expires)}${Date.parse(expires) < Date.now() ? " (over)" : ""}` : "until it is revoked";
}

function Tokens() {
  const answer = useGet("v1/tokens", { page_size: 200 }, { seconds: 15 });
  const found = answer.data?.tokens ?? [];
  const revoke = (/** @type {any} */ each) =>
    ask({ title: "Revoke the token?", action: "Revoke it", danger: true,
      text: `${plain(each.name, 120)} is refused from now on, everywhere. This cannot be undone.`,
      carryOut: async () => (await change("DELETE", `v1/tokens/${each.id}`), answer.reload()) });
  return html`<p><button class="main" onClick=${() => makeToken(answer.reload)}>New token …</button></p>
    ${found.length ? cardTable(found, [
      ["name", (each) => html`${plain(each.name, 160)}<br />
        <small>${each.id}, made by ${plain(each.created_by, 80)} ${ago(each.created_at)}</small>`, "name"],
      ["may", (each) => each.scopes.join(", ")],
      ["bound to", bound],
      ["used", (each) => ago(each.last_used_at), "small"],
      ["holds until", end, "small"],
      ["", (each) =>
        !each.revoked_at && html`<button class="danger" onClick=${() => revoke(each)}>Revoke …</button>`],
    ]) : html`<${Missing} ...${answer}>There is no token yet.<//>`}`;
}

/** @param {() => void} reload */
function makeToken(reload) {
  dialog("New token", () => {
    const [name, setName] = useState("");
    const [scope, setScope] = useState("read");
    const [days, setDays] = useState("90");
    const [made, setMade] = useState("");
    const make = async () => {
      const until = days && { expires_in_seconds: 86400 * Number(days) };
      const answer = await change("POST", "v1/tokens", { name, scopes: [scope], ...until });
      setMade(answer.token);
      reload();
    };
    const once = html`<p>It is shown only now: keep it where only its user sees it.</p>`;
    if (made) return html`${once}<${Secret} label="Token" text=${made} />`;
    return html`<${Form} action="Make it" stays carryOut=${make}>
      <div class="field"><label for="token-name">Name: who or what uses it</label>
        <input id="token-name" type="text" required pattern="[\\p{L}\\p{N}][\\p{L}\\p{M}\\p{N}._\\-]*" value=${name}
          onInput=${withValue(setName)} /></div>
      <div class="field"><label for="token-scope">It may</label>
        <select id="token-scope" value=${scope} onChange=${withValue(setScope)}>${choices(SCOPES)}</select></div>
      <div class="field"><label for="token-days">Days for which it holds; empty: until it is revoked</label>
        <input id="token-days" type="number" min="1" max="3650" value=${days} onInput=${withValue(setDays)} /></div>
    <//>`;
  });
}

/** Events of which a webhook tells. @param {any} webhook */
function told({ events, run_id: run, tag }) {
  return `${events.join(", ")}${run ? ` of ${run}` : tag ? ` of runs tagged ${plain(tag, 60)}` : ""}`;
}

/** How a webhook goes. @param {any} webhook */
function health({ enabled, disabled_reason: reason, failing_since: failing, last_success_at: success }) {
  const fails = failing && html`<${Sign} sign="✖" tone="bad">failing since ${ago(failing)}<//>`;
  return html`${fails || (enabled ? "on" : `off (${reason})`)}<br /><small>last success ${ago(success)}</small>`;
}

function Webhooks() {
  const answer = useGet("v1/webhooks", { page_size: 200 }, { seconds: 15 });
  const found = answer.data?.webhooks ?? [];
  const test = async (/** @type {any} */ each) => {
    const { state, log } = await change("POST", `v1/webhooks/${each.id}:test`);
    const taken = state === "succeeded";
    toast(taken ? "The receiver has taken the test message." : `Not taken: ${log.at(-1)?.error ?? state}`);
    answer.reload();
  };
  const turn = async (/** @type {any} */ each) => {
    await change("PATCH", `v1/webhooks/${each.id}`, { enabled: !each.enabled });
    answer.reload();
  };
  const buttons = (/** @type {any} */ each) => html`<button onClick=${() => test(each)}>Test</button>${" "}
    <button onClick=${() => turn(each)}>${each.enabled ? "Turn off" : "Turn on"}</button>`;
  const none = html`No webhook yet. <code>ludus webhook create URL</code> makes one.`;
  if (!found.length) return html`<${Missing} ...${answer}>${none}<//>`;
  return cardTable(found, [
    ["receiver", (each) => html`${plain(each.url, 200)}<br />
      <small>${plain(each.description, 200)}</small>`, "name"],
    ["events", told, "small"],
    ["state", health],
    ["", buttons],
  ]);
}

function Audit() {
  const [tokens, filter] = [list("pages"), text("filter")];
  const choose = (/** @type {string} */ words) => set({ filter: words, pages: null });
  const query = { page_size: 100, filter, page_token: tokens.at(-1) ?? "" };
  const answer = useGet("v1/audit", query, { seconds: 15 });
  const found = answer.data?.entries ?? [];
  const next = answer.data?.next_page_token;
  return html`<input type="search" size="44" placeholder='filter, as in: actor = "ci" AND status >= 400'
      aria-label="Filter of the audit log" value=${filter} onChange=${withValue(choose)} />
    ${found.length ? html`<div style=${{ marginTop: "10px" }}>
        ${cardTable(found, [
          ["when", (each) => html`<span title=${ago(each.at)}>${moment(each.at)}</span>`, "small"],
          ["who", (each) => plain(each.actor, 120), "name"],
          ["what", (each) => html`<code>${each.method} ${plain(each.target, 300)}</code>`, "wrap"],
          ["answer", (each) => each.status, "number"],
          ["from", (each) => each.client, "small"],
        ])}
      </div>
      <div class="row">
        ${tokens.length > 0 && html`<button onClick=${() => set({ pages: tokens.slice(0, -1) })}>← Newer</button>`}
        ${next && html`<button onClick=${() => set({ pages: [...tokens, next] })}>Earlier →</button>`}
      </div>` :
      html`<${Missing} ...${answer}>${filter ? "No entry fits this filter." : "Nothing was changed yet."}<//>`}`;
}

function Storage() {
  const [days, setDays] = useState("30");
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const words = (/** @type {any} */ found) => `${found.checkpoints.length} checkpoints of ${bytes(found.bytes)}`;
  const choose = (/** @type {string} */ text) => (setDays(text), setPlan(null));
  const look = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const body = { older_than_seconds: 86400 * Number(days) };
    setPlan({ ...(await change("POST", "v1/checkpoints:prune", { ...body, dry_run: true })), body });
  };
  const prune = () =>
    ask({ title: "Delete these checkpoints?", action: "Delete them", danger: true,
      text: `${words(plan)} are deleted. This cannot be undone.`,
      carryOut: async () => {
        toast(`${words(await change("POST", "v1/checkpoints:prune", plan.body))} are deleted.`);
        setPlan(null);
      } });
  const found = plan?.checkpoints ?? [];
  const sum = html`<b>${found.length} checkpoints, ${bytes(plan?.bytes)}</b>`;
  return html`<section class="card"><h2>Delete old checkpoints</h2>
    <p class="sentence">
      Newest, best and pinned checkpoints, those with an alias, and those that a run uses, are kept.</p>
    <form class="row" onSubmit=${look}>
      <label>older than <input type="number" min="1" value=${days} onInput=${withValue(choose)} /> days</label>
      <button>Show what would go</button>
    </form>
    ${plan && html`<p style=${{ marginTop: "12px" }}>${found.length ? sum : "Nothing would go."}</p>`}
    ${found.length > 0 && html`${table(found.slice(0, 200), [
        ["run", ({ run_id: id }) => html`<a href=${runHref({ id }, "models")}>${id}</a>`],
        ["step", (each) => count(each.step), "number"],
        ["saved", (each) => ago(each.created_at)],
        ["size", (each) => bytes(each.size), "number"],
        ["rule", (each) => each.rule],
      ])}
      <p><button class="danger" onClick=${prune}>Delete them …</button></p>`}
  </section>`;
}
