// Models: which file goes into the game: aliases with their history, and the best checkpoint of each run that has one.
import { useState } from "preact/hooks";
import { get } from "../api.js";
import { ago, count, moment, number, plain } from "../format.js";
import { html, withValue } from "../html.js";
import { useGet, useLive } from "../live.js";
import { REWARD, quoted, runHref } from "../runs.js";
import { list, set, text } from "../url.js";
import { BestLinks, modelLinks } from "../parts/models.js";
import { Failure, Missing, State } from "../parts/signs.js";
import { cardTable } from "../parts/table.js";

/** Runs of a page. */
const RUNS = 20;
const HEADS = ["alias", "checkpoint", "models", "since", ""];

export default function Models() {
  const aliases = useGet("v1/aliases", { page_size: 200 }, { seconds: 15 });
  const [words, tokens] = [text("q"), list("pages")];
  const filter = `has_checkpoints = true${words && ` AND name = ${quoted(`${words}*`)}`}`;
  const query = { filter, order_by: "updated_at desc", page_size: RUNS, page_token: tokens.at(-1), metrics: [REWARD] };
  const answer = useGet("v1/runs", query, { seconds: 20 });
  const known = /** @type {any[]} */ (aliases.data?.aliases ?? []);
  const runs = /** @type {any[]} */ (answer.data?.runs ?? []);
  const next = answer.data?.next_page_token;
  const meaning = "is a name that always means the checkpoint that is used now: set one at a run's checkpoints, or by ";
  const none = words ? "No run with a checkpoint has a name that begins so." : "No run has saved a checkpoint yet.";
  return html`<div class="head"><h1>Models</h1></div>
    <section class="card"><h2>Aliases</h2>
      ${known.length ? html`<div class="scroll" tabindex="0"><table>
        <thead><tr>${HEADS.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${known.map((each) => html`<${Alias} key=${each.name} alias=${each} />`)}</tbody>
      </table></div>` : html`<${Missing} ...${aliases}>
        No alias yet. An alias, such as <b>champion</b>, ${meaning}<code>ludus checkpoint alias</code>.<//>`}
    </section>
    <h2>The best model of each run <small>the run that changed last first</small></h2>
    <p><input type="search" size="28" placeholder="Run's name begins with" aria-label="Run's name begins with"
      value=${words} onChange=${withValue((q) => set({ q, pages: null }))} /></p>
    <${Failure} problem=${answer.problem} />
    ${runs.length ? cardTable(runs, [
      ["run", (run) => html`<a href=${runHref(run, "models")}>${plain(run.name, 160)}</a><br /><${State} run=${run} />`,
        "name"],
      ["reward", (run) => number(run.metrics[REWARD]), "number"],
      ["best model", (run) => html`<${BestLinks} run=${run} />`],
      ["changed", (run) => html`<span title=${moment(run.updated_at)}>${ago(run.updated_at)}</span>`, "small"],
    ]) : html`<${Missing} data=${answer.data} problem=${null}>${none}<//>`}
    <div class="row">
      ${tokens.length > 0 && html`<button onClick=${() => set({ pages: tokens.slice(0, -1) })}>← Newer</button>`}
      ${next && html`<button onClick=${() => set({ pages: [...tokens, next] })}>Earlier →</button>`}
    </div>`;
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
