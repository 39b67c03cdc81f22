// Admin: who may do what, who did what, who is told, and what fills up.
import { useState } from "preact/hooks";
import { change, get } from "../api.js";
import { ago, bytes, count, moment, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { runHref } from "../runs.js";
import { href, set, text } from "../url.js";
import { ask, dialog, toast } from "../parts/dialog.js";
import { Missing } from "../parts/signs.js";

const PARTS = /** @type {const} */ ([["", "Tokens"], ["webhooks", "Webhooks"], ["audit", "Audit"], ["storage", "Storage"]]);

export default function Admin() {
  const part = text("part");
  return html`<div class="head"><h1>Admin</h1></div>
    <nav class="tabs" aria-label="Parts">${PARTS.map(([value, name]) => html`<a key=${value} href=${href("ui/admin", { part: value })} aria-current=${value === part ? "page" : undefined}>${name}</a>`)}</nav>
    ${part === "" && html`<${Tokens} />`}
    ${part === "webhooks" && html`<${Webhooks} />`}
    ${part === "audit" && html`<${Audit} />`}
    ${part === "storage" && html`<${Storage} />`}`;
}

function Tokens() {
  const answer = useLive(() => get("v1/tokens", { page_size: 200 }), { seconds: 15 });
  const found = answer.data?.tokens ?? [];
  const revoke = (/** @type {any} */ each) => ask({ title: "Revoke the token?", text: `${plain(each.name, 120)} is refused from now on, everywhere. This cannot be undone.`, action: "Revoke it", danger: true, carryOut: async () => (await change("DELETE", `v1/tokens/${each.id}`), answer.reload()) });
  return html`<p><button class="main" onClick=${() => makeToken(answer.reload)}>New token …</button></p>
    ${found.length ? html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
      <thead><tr><th scope="col">name</th><th scope="col">may</th><th scope="col">bound to</th><th scope="col">used</th><th scope="col">holds until</th><th scope="col"></th></tr></thead>
      <tbody>${found.map((/** @type {any} */ each) => html`<tr key=${each.id}>
        <td class="name">${plain(each.name, 160)}<br /><small>${each.id}, made by ${plain(each.created_by, 80)} ${ago(each.created_at)}</small></td>
        <td>${each.scopes.join(", ")}</td>
        <td>${each.run_id ? html`run <a href=${runHref({ id: each.run_id })}>${each.run_id}</a>` : each.ladder_id ? html`ladder <a href=${href(`ui/ladders/${each.ladder_id}`)}>${each.ladder_id}</a>` : `project ${each.project}`}</td>
        <td class="small">${ago(each.last_used_at)}</td>
        <td class="small">${each.revoked_at ? `revoked ${ago(each.revoked_at)}` : each.expires_at ? `${moment(each.expires_at)}${Date.parse(each.expires_at) < Date.now() ? " (over)" : ""}` : "revoked"}</td>
        <td>${!each.revoked_at && html`<button class="danger" onClick=${() => revoke(each)}>Revoke …</button>`}</td>
      </tr>`)}</tbody></table></div>` : html`<${Missing} ...${answer}>There is no token yet.<//>`}`;
}

/** @param {() => void} reload */
function makeToken(reload) {
  dialog("New token", ({ close }) => {
    const [form, setForm] = useState({ name: "", scope: "read", days: "90" });
    const [made, setMade] = useState("");
    const [refusal, setRefusal] = useState("");
    const put = (/** @type {string} */ key) => (/** @type {any} */ event) => setForm({ ...form, [key]: event.target.value });
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      try {
        const answer = await change("POST", "v1/tokens", { name: form.name, scopes: [form.scope], ...(form.days && { expires_in_seconds: 86400 * Number(form.days) }) });
        setMade(answer.token);
        reload();
      } catch (/** @type {any} */ problem) {
        setRefusal([problem.message, ...problem.errors.map((/** @type {any} */ each) => each.message)].join(" "));
      }
    };
    if (made) return html`<p>It is shown only now: keep it where only its user sees it.</p><input type="text" readonly aria-label="Token" size="60" value=${made} onFocus=${(/** @type {any} */ event) => event.target.select()} /><div class="row"><button onClick=${() => navigator.clipboard.writeText(made)}>Copy</button><button class="main" onClick=${close}>Done</button></div>`;
    return html`<form onSubmit=${submit}>
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${refusal}</p>`}
      <div class="field"><label for="token-name">Name: who or what uses it</label><input id="token-name" type="text" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" value=${form.name} onInput=${put("name")} /></div>
      <div class="field"><label for="token-scope">It may</label><select id="token-scope" value=${form.scope} onChange=${put("scope")}><option value="read">read</option><option value="run">read, start, change and end runs</option><option value="admin">everything, tokens too</option><option value="simulate">join runs as a simulator, nothing else</option></select></div>
      <div class="field"><label for="token-days">Days for which it holds; empty: until it is revoked</label><input id="token-days" type="number" min="1" max="3650" value=${form.days} onInput=${put("days")} /></div>
      <div class="row"><button type="button" onClick=${close}>Leave it</button><button class="main">Make it</button></div>
    </form>`;
  });
}

function Webhooks() {
  const answer = useLive(() => get("v1/webhooks", { page_size: 200 }), { seconds: 15 });
  const found = answer.data?.webhooks ?? [];
  const test = async (/** @type {any} */ each) => {
    const delivery = await change("POST", `v1/webhooks/${each.id}:test`);
    toast(delivery.state === "succeeded" ? "The receiver has taken the test message." : `Not taken: ${delivery.log.at(-1)?.error ?? delivery.state}`);
    answer.reload();
  };
  const enable = async (/** @type {any} */ each) => (await change("PATCH", `v1/webhooks/${each.id}`, { enabled: !each.enabled }), answer.reload());
  return found.length ? html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
      <thead><tr><th scope="col">receiver</th><th scope="col">events</th><th scope="col">state</th><th scope="col"></th></tr></thead>
      <tbody>${found.map((/** @type {any} */ each) => html`<tr key=${each.id}>
        <td class="name">${plain(each.url, 200)}<br /><small>${plain(each.description, 200)}</small></td>
        <td class="small">${each.events.join(", ")}${each.run_id ? ` of ${each.run_id}` : each.tag ? ` of runs tagged ${plain(each.tag, 60)}` : ""}</td>
        <td>${each.failing_since ? html`<span class="state" data-tone="bad"><span aria-hidden="true">✖</span>failing since ${ago(each.failing_since)}</span>` : each.enabled ? "on" : `off (${each.disabled_reason})`}<br /><small>last success ${ago(each.last_success_at)}</small></td>
        <td><button onClick=${() => test(each)}>Test</button> <button onClick=${() => enable(each)}>${each.enabled ? "Turn off" : "Turn on"}</button></td>
      </tr>`)}</tbody></table></div>` : html`<${Missing} ...${answer}>No webhook yet. <code>ludus webhook create URL</code> makes one.<//>`;
}

function Audit() {
  const [tokens, setTokens] = useState(/** @type {string[]} */ ([]));
  const filter = text("filter");
  const answer = useLive(() => get("v1/audit", { page_size: 100, filter, page_token: tokens.at(-1) ?? "" }), { seconds: 15, again: [filter, tokens.length] });
  const found = answer.data?.audit ?? answer.data?.entries ?? [];
  return html`<input type="search" size="44" placeholder='filter, as in: actor = "ci" AND status >= 400' aria-label="Filter of the audit log" value=${filter} onChange=${(/** @type {any} */ event) => (setTokens([]), set({ filter: event.target.value }))} />
    ${found.length ? html`<div class="scroll card" tabindex="0" style=${{ padding: 0, marginTop: "10px" }}><table>
      <thead><tr><th scope="col">when</th><th scope="col">who</th><th scope="col">what</th><th scope="col" class="number">answer</th><th scope="col">from</th></tr></thead>
      <tbody>${found.map((/** @type {any} */ each) => html`<tr key=${each.id}><td class="small" title=${ago(each.at)}>${moment(each.at)}</td><td class="name">${plain(each.actor, 120)}</td><td class="wrap"><code>${each.method} ${plain(each.target, 300)}</code></td><td class="number">${each.status}</td><td class="small">${each.client}</td></tr>`)}</tbody></table></div>
      <div class="row">${tokens.length > 0 && html`<button onClick=${() => setTokens(tokens.slice(0, -1))}>← Newer</button>`}${answer.data.next_page_token && html`<button onClick=${() => setTokens([...tokens, answer.data.next_page_token])}>Earlier →</button>`}</div>`
    : html`<${Missing} ...${answer}>${filter ? "No entry fits this filter." : "Nothing was changed yet."}<//>`}`;
}

function Storage() {
  const [days, setDays] = useState("30");
  const [plan, setPlan] = useState(/** @type {any} */ (null));
  const body = { older_than_seconds: 86400 * Number(days) };
  const look = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setPlan(await change("POST", "v1/checkpoints:prune", { ...body, dry_run: true }));
  };
  const prune = () => ask({ title: "Delete these checkpoints?", text: `${plan.checkpoints.length} checkpoints of ${bytes(plan.bytes)} are deleted. This cannot be undone.`, action: "Delete them", danger: true, carryOut: async () => {
    const done = await change("POST", "v1/checkpoints:prune", body);
    toast(`${done.checkpoints.length} checkpoints of ${bytes(done.bytes)} are deleted.`);
    setPlan(null);
  } });
  return html`<section class="card"><h2>Delete old checkpoints</h2>
    <p class="sentence">Newest, best and pinned checkpoints, those with an alias, and those that a run uses, are kept.</p>
    <form class="row" onSubmit=${look}><label>older than <input type="number" min="1" value=${days} onInput=${(/** @type {any} */ event) => setDays(event.target.value)} /> days</label><button>Show what would go</button></form>
    ${plan && html`<p style=${{ marginTop: "12px" }}>${plan.checkpoints.length ? html`<b>${plan.checkpoints.length} checkpoints, ${bytes(plan.bytes)}</b>` : "Nothing would go."}</p>
      ${plan.checkpoints.length > 0 && html`<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">run</th><th scope="col" class="number">step</th><th scope="col">saved</th><th scope="col" class="number">size</th><th scope="col">rule</th></tr></thead>
        <tbody>${plan.checkpoints.slice(0, 200).map((/** @type {any} */ each) => html`<tr key=${each.id}><td><a href=${runHref({ id: each.run_id }, "models")}>${each.run_id}</a></td><td class="number">${count(each.step)}</td><td>${ago(each.created_at)}</td><td class="number">${bytes(each.size)}</td><td>${each.rule}</td></tr>`)}</tbody></table></div>
        <p><button class="danger" onClick=${prune}>Delete them …</button></p>`}`}
  </section>`;
}
