// Fleet: what is idle, what waits, and what breaks: workers, the queue, simulators, webhooks that fail.
import { get, may } from "../api.js";
import { ago, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { runHref, why } from "../runs.js";
import { Failure, Missing, State } from "../parts/signs.js";
import { Reasons, SimulatorTable } from "../parts/simulators.js";

/** A worker that is silent for so many seconds is lost (its lease has run out). */
const SILENT = 15;
/** Seconds in which simulators that left are still shown. */
const RECENT = 600;

export default function Fleet() {
  const queue = useLive(() => get("v1/runs", { filter: "state = QUEUED", order_by: "created_at asc", page_size: 100 }), { seconds: 5 });
  const recovering = useLive(() => get("v1/runs", { filter: "state = RECOVERING", page_size: 100 }), { seconds: 5 });
  const waiting = [...(recovering.data?.runs ?? []), ...(queue.data?.runs ?? [])];
  return html`
    <div class="head"><h1>Fleet</h1></div>
    <${Workers} />
    <section class="card"><h2>Queue (${waiting.length})</h2>
      <${Failure} problem=${queue.problem} />
      ${waiting.length ? html`<table><tbody>${waiting.map((run) => html`<tr key=${run.id}>
        <td><${State} state=${run.state} /></td><td class="name"><a href=${runHref(run)}>${plain(run.name, 160)}</a></td><td class="wrap">${plain(why(run), 300)}</td><td class="small number">${ago(run.queued_at)}</td>
      </tr>`)}</tbody></table>` : html`<${Missing} data=${queue.data} problem=${null}>No run waits for a worker.<//>`}
    </section>
    <${AllSimulators} />
    ${may("run") && html`<${Webhooks} />`}
  `;
}

function Workers() {
  const answer = useLive(() => get("v1/workers", { page_size: 200, order_by: "heartbeat_at desc" }), { seconds: 5 });
  if (answer.problem?.status === 403) return html`<p class="note">The workers serve all projects: to see them, a token needs the scope admin, and must be bound to no project.</p>`;
  const alive = (answer.data?.workers ?? []).filter((/** @type {any} */ each) => !each.stopped_at && Date.now() - Date.parse(each.heartbeat_at) < 86_400_000);
  const busy = alive.filter((/** @type {any} */ each) => each.run_id).length;
  return html`<section class="card"><h2>Slots (${busy} of ${alive.length} busy)</h2>
    ${alive.length ? html`<div class="scroll" tabindex="0"><table>
      <thead><tr><th scope="col">host</th><th scope="col">slot</th><th scope="col">run</th><th scope="col">heartbeat</th><th scope="col">release</th></tr></thead>
      <tbody>${alive.map((/** @type {any} */ each) => {
        const silent = Date.now() - Date.parse(each.heartbeat_at) > 1000 * SILENT;
        return html`<tr key=${each.id}>
          <td class="name">${plain(each.host, 120)}</td>
          <td class="small">${each.resources.gpus?.length ? `${each.resources.gpus.length} GPU` : "CPU"}${each.labels.length ? ` · ${plain(each.labels.join(", "), 120)}` : ""} · pid ${each.pid}</td>
          <td>${each.run_id ? html`<a href=${runHref({ id: each.run_id })}>${each.run_id}</a>` : "idle"}</td>
          <td>${silent ? html`<span class="state" data-tone="bad"><span aria-hidden="true">✖</span>silent for ${ago(each.heartbeat_at).replace(" ago", "")}</span>` : ago(each.heartbeat_at)}</td>
          <td class="small">${plain(each.version, 40)}</td>
        </tr>`;
      })}</tbody></table></div>` : html`<${Missing} ...${answer}>No worker is running: runs stay queued. <code>ludus up</code> starts one on this machine; on another, <code>ludus worker</code> with the settings of docs/workers.md.<//>`}
  </section>`;
}

function AllSimulators() {
  const here = useLive(() => get("v1/simulators", { filter: "state = connected", page_size: 200 }), { seconds: 5 });
  const since = new Date(Date.now() - 1000 * RECENT).toISOString();
  const left = useLive(() => get("v1/simulators", { filter: `state = left AND left_at >= ${since}`, page_size: 200 }), { seconds: 15 });
  const playing = here.data?.simulators ?? [];
  const gone = left.data?.simulators ?? [];
  return html`<section><h2>Simulators (${playing.length}${here.data?.next_page_token ? " and more" : ""} connected, ${gone.length} left in ten minutes)</h2>
    <${Failure} problem=${here.problem} />
    ${playing.length > 0 && html`<${SimulatorTable} simulators=${playing} runs />`}
    ${here.data && !playing.length && html`<p class="card empty">No game is connected to any run.</p>`}
    ${gone.length > 0 && html`<${Reasons} simulators=${gone} /><${SimulatorTable} simulators=${gone} runs />`}
  </section>`;
}

function Webhooks() {
  const answer = useLive(() => get("v1/webhooks", { page_size: 200 }), { seconds: 30 });
  const failing = (answer.data?.webhooks ?? []).filter((/** @type {any} */ each) => each.failing_since || !each.enabled);
  if (!failing.length) return null;
  return html`<section class="card"><h2>Webhooks that fail (${failing.length})</h2>
    <table><tbody>${failing.map((/** @type {any} */ each) => html`<tr key=${each.id}><td class="name">${plain(each.url, 200)}</td><td>${each.enabled ? "failing" : `off: ${each.disabled_reason}`}</td><td class="small">${each.failing_since ? `since ${ago(each.failing_since)}` : ""}</td></tr>`)}</tbody></table>
  </section>`;
}
