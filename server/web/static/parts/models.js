// Checkpoints and the models in them: what goes in and out, sizes, pins, aliases, downloads.
import { change, get, may } from "../api.js";
import { ago, bytes, count, moment, number, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { runHref } from "../runs.js";
import { ROOT } from "../url.js";
import { setAlias } from "./gate.js";
import { Missing } from "./signs.js";

/** The address of a checkpoint's file. @param {any} checkpoint @param {any} file */
function fileHref(checkpoint, file) {
  return `${ROOT.pathname}v1/runs/${checkpoint.run_id}/checkpoints/${checkpoint.id}/files/${file.name.split("/").map(encodeURIComponent).join("/")}`;
}

/** @param {any} checkpoint */
function modelsOf(checkpoint) {
  return checkpoint.files.filter((/** @type {any} */ file) => file.name.endsWith(".onnx"));
}

/** What goes into a model and what comes out of it. @param {{model: any}} props */
export function ModelShape({ model }) {
  if (!model) return null;
  const tensors = (/** @type {any[]} */ all) => all.map((each) => html`<tr key=${each.name}><td><code>${plain(each.name, 80)}</code></td><td>${each.dtype}</td><td><code>${each.shape.map((/** @type {any} */ size) => size ?? "batch").join(" × ")}</code></td></tr>`);
  return html`<details>
    <summary class="small">inputs and outputs, opset ${model.opset}${model.memory_size ? `, memory ${model.memory_size}` : ", no memory"}</summary>
    <div class="scroll" tabindex="0"><table>
      <thead><tr><th scope="col">input</th><th scope="col">type</th><th scope="col">shape</th></tr></thead><tbody>${tensors(model.inputs)}</tbody>
      <thead><tr><th scope="col">output</th><th scope="col">type</th><th scope="col">shape</th></tr></thead><tbody>${tensors(model.outputs)}</tbody>
    </table></div>
  </details>`;
}

/** The files to put into the game. @param {{checkpoint: any}} props */
function Models({ checkpoint }) {
  const models = modelsOf(checkpoint);
  if (!models.length) return html`<small>no model in it</small>`;
  return models.map((/** @type {any} */ file) => html`<div key=${file.name}>
    <a href=${fileHref(checkpoint, file)} download=${file.name}>${plain(file.name, 120)}</a> <small>${bytes(file.size)}</small>
    <${ModelShape} model=${file.model} />
  </div>`);
}

/** @param {{run: any, again: number}} props */
export function NewestModel({ run, again }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/checkpoints`, { page_size: 1 }), { seconds: null, again: [run.id, again, run.state] });
  const checkpoint = answer.data?.checkpoints[0];
  if (!checkpoint) return html`<${Missing} ...${answer}>No checkpoint yet. One is saved every <code>checkpoint_interval</code> steps, and at the end.<//>`;
  return html`<p>Saved ${ago(checkpoint.created_at)} at step ${count(checkpoint.step)}${checkpoint.score === null ? "" : `, score ${number(checkpoint.score)}`}.</p>
    ${modelsOf(checkpoint).map((/** @type {any} */ file) => html`<p key=${file.name}><a class="button main" href=${fileHref(checkpoint, file)} download=${file.name}>Download ${plain(file.name, 80)}</a> <small>${bytes(file.size)}</small><${ModelShape} model=${file.model} /></p>`)}`;
}

/** All checkpoints of a run. @param {{run: any, live: boolean}} props */
export function Checkpoints({ run, live }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/checkpoints`, { page_size: 200 }), { seconds: live ? 10 : null, again: [run.id, run.state] });
  const found = answer.data?.checkpoints ?? [];
  if (!found.length) return html`<${Missing} ...${answer}>No checkpoint yet. One is saved every <code>checkpoint_interval</code> steps, and at the end.<//>`;
  return html`<${CheckpointTable} checkpoints=${found} reload=${answer.reload} />`;
}

/** @param {{checkpoints: any[], reload: () => void, names?: Map<string, string>, aliases?: Map<string, string[]>}} props */
export function CheckpointTable({ checkpoints, reload, names, aliases }) {
  const pin = async (/** @type {any} */ each) => {
    await change("POST", `v1/runs/${each.run_id}/checkpoints/${each.id}:${each.pinned_at ? "unpin" : "pin"}`);
    reload();
  };
  return html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
    <thead><tr>${names && html`<th scope="col">run</th>`}<th scope="col" class="number">step</th><th scope="col">saved</th><th scope="col" class="number">score</th><th scope="col">models</th><th scope="col" class="number">size</th><th scope="col"></th></tr></thead>
    <tbody>${checkpoints.map((each) => html`<tr key=${each.id}>
      ${names && html`<td class="name"><a href=${runHref({ id: each.run_id }, "models")}>${plain(names.get(each.run_id) ?? each.run_id, 120)}</a></td>`}
      <td class="number" title=${each.id}>${count(each.step)}</td>
      <td><span title=${moment(each.created_at)}>${ago(each.created_at)}</span><br /><small>${each.reason}${each.pinned_at ? " · pinned" : ""}${(aliases?.get(each.id) ?? []).map((name) => ` · ${name}`)}</small>
        ${each.damage && html`<br /><small class="old">damaged: ${plain(each.damage, 200)}</small>`}</td>
      <td class="number">${number(each.score)}</td>
      <td><${Models} checkpoint=${each} /></td>
      <td class="number">${bytes(each.size)}</td>
      <td>${may("run") && html`<button onClick=${() => pin(each)} title="Retention leaves a pinned checkpoint alone">${each.pinned_at ? "Unpin" : "Pin"}</button> <button onClick=${() => setAlias(each.id, reload)}>Alias …</button>`}</td>
    </tr>`)}</tbody>
  </table></div>`;
}
