// Fleet: what is idle, what waits, and what breaks: workers, the queue, simulators, webhooks that fail.
import { get, may } from "../api.js";
import { ago, plain } from "../format.js";
import { html } from "../html.js";
import { useGet, useLive } from "../live.js";
import { LIVE, runHref, why } from "../runs.js";
import { Failure, Missing, Sign, State } from "../parts/signs.js";
import { Reasons, SimulatorTable } from "../parts/simulators.js";
import { table } from "../parts/table.js";

/** Seconds in which simulators that left are still shown. */
const RECENT = 600;

export default function Fleet() {
  const queue = useGet("v1/runs", { filter: "state = QUEUED", order_by: "created_at asc", page_size: 100 });
  const recovering = useGet("v1/runs", { filter: "state = RECOVERING", page_size: 100 });
  const waiting = [...(recovering.data?.runs ?? []), ...(queue.data?.runs ?? [])];
  const rows = waiting.map((run) => html`<tr key=${run.id}>
    <td><${State} run=${run} /></td>
    <td class="name"><a href=${runHref(run)}>${plain(run.name, 160)}</a></td>
    <td class="wrap">${plain(why(run), 300)}</td><td class="small number">${ago(run.queued_at)}</td>
  </tr>`);
  return html`<div class="head"><h1>Fleet</h1></div>
    <${Workers} />
    <section class="card"><h2>Queue (${waiting.length})</h2>
      <${Failure} problem=${queue.problem} />
      ${rows.length
        ? html`<table class="stack"><tbody>${rows}</tbody></table>`
        : html`<${Missing} data=${queue.data} problem=${null}>No run waits for a worker.<//>`}
    </section>
    <${AllSimulators} />
    ${may("run") && html`<${Webhooks} />`}`;
}

/** Milliseconds since a worker has shown that it lives. */
const silence = (/** @type {any} */ worker) => Date.now() - Date.parse(worker.heartbeat_at);

/** @param {any} worker */
function heartbeat(worker) {
  const time = ago(worker.heartbeat_at);
  const silent = html`<${Sign} sign="✖" tone="bad">silent for ${time.replace(" ago", "")}<//>`;
  return worker.silent_since ? silent : time;
}

/** @param {any} worker */
function slot({ resources: { gpus }, labels, pid }) {
  const labelled = labels.length ? ` · ${plain(labels.join(", "), 120)}` : "";
  return `${gpus?.length ? `${gpus.length} GPU` : "CPU"}${labelled} · pid ${pid}`;
}

function Workers() {
  const answer = useGet("v1/workers", { page_size: 200, order_by: "heartbeat_at desc" });
  const held = useGet("v1/runs", { filter: LIVE, order_by: "updated_at desc", page_size: 200 }, { seconds: 15 });
  const names = new Map((held.data?.runs ?? []).map((/** @type {any} */ run) => [run.id, run.name]));
  if (answer.problem?.status === 403) {
    const needed = "to see them, a token needs the scope admin, and must be bound to no project.";
    return html`<p class="note">The workers serve all projects: ${needed}</p>`;
  }
  const alive = /** @type {any[]} */ (answer.data?.workers ?? []).filter((w) => !w.stopped_at && silence(w) < 864e5);
  const none = "No worker is running: runs stay queued. ";
  const elsewhere = html`on another, <code>ludus worker</code> with the settings of docs/workers.md.`;
  return html`<section class="card">
    <h2>Slots (${alive.filter((each) => each.run_id).length} of ${alive.length} busy)</h2>
    ${alive.length ? table(alive, [
      ["host", (each) => plain(each.host, 120), "name"],
      ["slot", slot, "small"],
      ["run", ({ run_id: id, cordoned, silent_since: silent }) => {
        if (!id) return silent ? "lost" : cordoned ? "cordoned" : "idle";
        return html`<a href=${runHref({ id })}>${plain(names.get(id) ?? id, 120)}</a>`;
      }],
      ["heartbeat", heartbeat],
      ["release", (each) => plain(each.version, 40), "small"],
    ]) : html`<${Missing} ...${answer}>${none}<code>ludus up</code> starts one on this machine; ${elsewhere}<//>`}
  </section>`;
}

function AllSimulators() {
  const here = useGet("v1/simulators", { filter: "state = connected", page_size: 200 });
  const since = new Date(Date.now() - 1000 * RECENT).toISOString();
  const recent = { filter: `state = left AND left_at >= ${since}`, page_size: 200 };
  const left = useLive(() => get("v1/simulators", recent), { seconds: 15 });
  const playing = here.data?.simulators ?? [];
  const gone = left.data?.simulators ?? [];
  const connected = `${playing.length}${here.data?.next_page_token ? " and more" : ""} connected`;
  return html`<section><h2>Simulators (${connected}, ${gone.length} left in ten minutes)</h2>
    <${Failure} problem=${here.problem} />
    ${playing.length > 0 && html`<${SimulatorTable} simulators=${playing} runs />`}
    ${here.data && !playing.length && html`<p class="card empty">No game is connected to any run.</p>`}
    ${gone.length > 0 && html`<${Reasons} simulators=${gone} /><${SimulatorTable} simulators=${gone} runs />`}
  </section>`;
}

function Webhooks() {
  const { data } = useGet("v1/webhooks", { page_size: 200 }, { seconds: 30 });
  const known = /** @type {any[]} */ (data?.webhooks ?? []);
  const failing = known.filter((each) => each.failing_since || !each.enabled);
  if (!failing.length) return null;
  const rows = failing.map((each) => html`<tr key=${each.id}>
    <td class="name">${plain(each.url, 200)}</td>
    <td>${each.enabled ? "failing" : `off: ${each.disabled_reason}`}</td>
    <td class="small">${each.failing_since ? `since ${ago(each.failing_since)}` : ""}</td>
  </tr>`);
  return html`<section class="card"><h2>Webhooks that fail (${failing.length})</h2>
    <table class="stack"><tbody>${rows}</tbody></table>
  </section>`;
}
