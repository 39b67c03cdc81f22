// Models: which file goes into the game: aliases with their history, and the newest checkpoints of all runs.
import { useState } from "preact/hooks";
import { get } from "../api.js";
import { ago, moment, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { CheckpointTable } from "../parts/models.js";
import { Failure, Missing } from "../parts/signs.js";

/** Runs whose newest checkpoints are listed. */
const RUNS = 20;

export default function Models() {
  const aliases = useLive(() => get("v1/aliases", { page_size: 200 }), { seconds: 15 });
  const checkpoints = useLive(
    async () => {
      const { runs } = await get("v1/runs", { order_by: "updated_at desc", page_size: RUNS });
      const trained = runs.filter((/** @type {any} */ run) => run.step > 0 || run.kind === "clone");
      const pages = await Promise.all(trained.map((/** @type {any} */ run) => get(`v1/runs/${run.id}/checkpoints`, { page_size: 3 })));
      return {
        names: new Map(runs.map((/** @type {any} */ run) => [run.id, run.name])),
        found: pages.flatMap((page) => page.checkpoints).sort((/** @type {any} */ one, /** @type {any} */ other) => other.created_at.localeCompare(one.created_at)),
      };
    },
    { seconds: 20 },
  );
  const known = aliases.data?.aliases ?? [];
  const byCheckpoint = new Map();
  for (const { name, checkpoint_id: id } of known) byCheckpoint.set(id, [...(byCheckpoint.get(id) ?? []), name]);
  return html`
    <div class="head"><h1>Models</h1></div>
    <section class="card"><h2>Aliases</h2>
      ${known.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">alias</th><th scope="col">checkpoint</th><th scope="col">since</th><th scope="col"></th></tr></thead>
        <tbody>${known.map((/** @type {any} */ each) => html`<${Alias} key=${each.name} alias=${each} />`)}</tbody></table></div>`
      : html`<${Missing} ...${aliases}>No alias yet. An alias, such as <b>champion</b>, is a name that always means the checkpoint that is used now: set one below, or by <code>ludus checkpoint alias</code>.<//>`}
    </section>
    <h2>Newest checkpoints</h2>
    <${Failure} problem=${checkpoints.problem} />
    ${checkpoints.data?.found.length ? html`<${CheckpointTable} checkpoints=${checkpoints.data.found} names=${checkpoints.data.names} aliases=${byCheckpoint} reload=${() => (aliases.reload(), checkpoints.reload())} />`
    : html`<${Missing} data=${checkpoints.data} problem=${null}>No run has saved a checkpoint yet.<//>`}
  `;
}

/** @param {{alias: any}} props */
function Alias({ alias }) {
  const [open, setOpen] = useState(false);
  const { data } = useLive(async () => (open ? get(`v1/aliases/${encodeURIComponent(alias.name)}/history`, { page_size: 50 }) : null), { seconds: null, again: [open, alias.version] });
  return html`<tr>
      <td class="name"><b>${plain(alias.name, 120)}</b></td><td><code>${alias.checkpoint_id}</code></td>
      <td><span title=${moment(alias.moved_at)}>${ago(alias.moved_at)}</span>${alias.moved_by ? html` <small>by ${plain(alias.moved_by, 80)}</small>` : ""}</td>
      <td><button aria-expanded=${open} onClick=${() => setOpen(!open)}>History</button></td>
    </tr>
    ${open && (data?.history ?? data?.moves ?? []).map((/** @type {any} */ each) => html`<tr key=${each.version}><td class="small">version ${each.version}</td><td><code>${each.checkpoint_id ?? "removed"}</code></td><td class="small">${moment(each.moved_at)}${each.moved_by ? ` by ${plain(each.moved_by, 80)}` : ""}</td><td></td></tr>`)}`;
}
