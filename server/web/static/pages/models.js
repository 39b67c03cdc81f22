// Models: which file goes into the game: aliases with their history, and the newest checkpoints of all runs.
import { useState } from "preact/hooks";
import { get } from "../api.js";
import { ago, count, moment, plain } from "../format.js";
import { html } from "../html.js";
import { useGet, useLive } from "../live.js";
import { runHref } from "../runs.js";
import { CheckpointTable, modelLinks } from "../parts/models.js";
import { Failure, Missing } from "../parts/signs.js";

/** Runs whose newest checkpoints are listed. */
const RUNS = 20;
const HEADS = ["alias", "checkpoint", "models", "since", ""];

/** The newest checkpoints of the runs that have trained, and the names of those runs. */
async function newestCheckpoints() {
  const answer = await get("v1/runs", { order_by: "updated_at desc", page_size: RUNS });
  const runs = /** @type {any[]} */ (answer.runs);
  const trained = runs.filter((run) => run.kind === "train" || run.kind === "clone");
  const pages = await Promise.all(trained.map((run) => get(`v1/runs/${run.id}/checkpoints`, { page_size: 3 })));
  const found = pages.flatMap((page) => page.checkpoints);
  found.sort((one, other) => other.created_at.localeCompare(one.created_at));
  return { found, names: new Map(runs.map((run) => [run.id, run.name])) };
}

export default function Models() {
  const aliases = useGet("v1/aliases", { page_size: 200 }, { seconds: 15 });
  const checkpoints = useLive(newestCheckpoints, { seconds: 20 });
  const known = /** @type {any[]} */ (aliases.data?.aliases ?? []);
  const byCheckpoint = new Map();
  for (const { name, checkpoint_id: id } of known) byCheckpoint.set(id, [...(byCheckpoint.get(id) ?? []), name]);
  const { found, names } = checkpoints.data ?? { found: [], names: new Map() };
  const reload = () => (aliases.reload(), checkpoints.reload());
  const meaning = "is a name that always means the checkpoint that is used now: set one below, or by ";
  return html`<div class="head"><h1>Models</h1></div>
    <section class="card"><h2>Aliases</h2>
      ${known.length ? html`<div class="scroll" tabindex="0"><table>
        <thead><tr>${HEADS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${known.map((each) => html`<${Alias} key=${each.name} alias=${each} />`)}</tbody>
      </table></div>` : html`<${Missing} ...${aliases}>
        No alias yet. An alias, such as <b>champion</b>, ${meaning}<code>ludus checkpoint alias</code>.<//>`}
    </section>
    <h2>Newest checkpoints <small>of the ${RUNS} runs that changed last, three of each</small></h2>
    <${Failure} problem=${checkpoints.problem} />
    ${found.length
      ? html`<${CheckpointTable} checkpoints=${found} names=${names} aliases=${byCheckpoint} reload=${reload} />`
      : html`<${Missing} data=${checkpoints.data} problem=${null}>No run has saved a checkpoint yet.<//>`}`;
}

/** @param {{alias: any}} props */
function Alias({ alias }) {
  const [open, setOpen] = useState(false);
  const path = `v1/aliases/${encodeURIComponent(alias.name)}/history`;
  const again = [open, alias.version];
  const { data } = useLive(async () => (open ? get(path, { page_size: 50 }) : null), { seconds: null, again });
  const moves = /** @type {any[]} */ (data?.moves ?? []);
  const by = (/** @type {string|null} */ name) => (name ? ` by ${plain(name, 80)}` : "");
  const { run_id: id, checkpoint_id: checkpoint, step } = alias;
  const saved = useGet(`v1/runs/${id}/checkpoints/${checkpoint}`, {}, { seconds: null });
  const run = useGet(`v1/runs/${id}`, {}, { seconds: null });
  return html`<tr>
      <td class="name"><b>${plain(alias.name, 120)}</b></td>
      <td class="name"><a href=${runHref({ id }, "models")}>${plain(run.data?.name ?? id, 120)}</a>,
        ${` step ${count(step)}`}<br /><small><code>${checkpoint}</code></small></td>
      <td>${saved.data ? modelLinks(saved.data) : html`<${Failure} problem=${saved.problem} />`}</td>
      <td><span title=${moment(alias.moved_at)}>${ago(alias.moved_at)}</span>
        ${alias.moved_by && html`<small>${by(alias.moved_by)}</small>`}</td>
      <td><button aria-expanded=${open} onClick=${() => setOpen(!open)}>History</button></td>
    </tr>
    ${open && moves.map((each) => html`<tr key=${each.version}>
      <td class="small">version ${each.version}</td><td colspan="2"><code>${each.checkpoint_id ?? "removed"}</code></td>
      <td class="small">${moment(each.moved_at)}${by(each.moved_by)}</td><td></td>
    </tr>`)}`;
}
