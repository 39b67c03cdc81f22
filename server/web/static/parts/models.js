// Checkpoints and the models in them: what goes in and out, sizes, pins, aliases, downloads.
import { change, may } from "../api.js";
import { ago, bytes, count, moment, number, plain } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { href } from "../url.js";
import { setAlias } from "./gate.js";
import { Missing } from "./signs.js";
import { cardTable } from "./table.js";

/** The address of a checkpoint's file. @param {any} checkpoint @param {any} file */
function fileHref(checkpoint, file) {
  const name = file.name.split("/").map(encodeURIComponent).join("/");
  return href(`v1/runs/${checkpoint.run_id}/checkpoints/${checkpoint.id}/files/${name}`, { redirect: true });
}

/** @param {any} checkpoint @returns {any[]} */
function modelsOf(checkpoint) {
  return checkpoint.files.filter((/** @type {any} */ file) => file.name.endsWith(".onnx"));
}

/** @param {any} tensor */
function row({ name, dtype, shape }) {
  const sizes = shape.map((/** @type {number|null} */ size) => size ?? "batch").join(" × ");
  return html`<tr key=${name}>
    <td><code>${plain(name, 80)}</code></td><td>${dtype}</td><td><code>${sizes}</code></td></tr>`;
}

/** What goes into a model and what comes out of it. @param {{model: any}} props */
export function ModelShape({ model }) {
  if (!model) return null;
  const { opset, memory_size: memory, inputs, outputs } = model;
  const part = (/** @type {string} */ name, /** @type {any[]} */ tensors) =>
    html`<thead><tr><th scope="col">${name}</th><th scope="col">type</th><th scope="col">shape</th></tr></thead>
      <tbody>${tensors.map(row)}</tbody>`;
  return html`<details>
    <summary class="small">inputs and outputs, opset ${opset}${memory ? `, memory ${memory}` : ", no memory"}</summary>
    <div class="scroll" tabindex="0"><table>${part("input", inputs)}${part("output", outputs)}</table></div>
  </details>`;
}

/** The files to put into the game. @param {any} checkpoint */
export function modelLinks(checkpoint) {
  const found = modelsOf(checkpoint);
  if (!found.length) return html`<small>no model in it</small>`;
  return found.map((file) => {
    const link = html`<a href=${fileHref(checkpoint, file)} download=${file.name}>${plain(file.name, 120)}</a>`;
    return html`<div key=${file.name}>${link} <small>${bytes(file.size)}</small>
      <${ModelShape} model=${file.model} /></div>`;
  });
}

/** @param {{data: unknown, problem: import("../api.js").Problem|null}} answer */
function noneYet(answer) {
  const when = html`every <code>checkpoint_interval</code> steps, and at the end.`;
  return html`<${Missing} ...${answer}>No checkpoint yet. One is saved ${when}<//>`;
}

/** @param {{run: any, again: number}} props */
export function NewestModel({ run, again }) {
  const when = { seconds: null, again: [again, run.state] };
  const answer = useGet(`v1/runs/${run.id}/checkpoints`, { page_size: 1 }, when);
  const checkpoint = answer.data?.checkpoints[0];
  if (!checkpoint) return noneYet(answer);
  const score = checkpoint.score === null ? "" : `, score ${number(checkpoint.score)}`;
  return html`<p>Saved ${ago(checkpoint.created_at)} at step ${count(checkpoint.step)}${score}.</p>
    ${modelsOf(checkpoint).map((file) => html`<p key=${file.name}>
      <a class="button main" href=${fileHref(checkpoint, file)} download=${file.name}>
        Download ${plain(file.name, 80)}</a>
      ${" "}<small>${bytes(file.size)}</small><${ModelShape} model=${file.model} /></p>`)}`;
}

/** All checkpoints of a run. @param {{run: any, live: boolean}} props */
export function Checkpoints({ run, live }) {
  const when = { seconds: live ? 10 : null, again: [run.state] };
  const answer = useGet(`v1/runs/${run.id}/checkpoints`, { page_size: 200 }, when);
  const found = answer.data?.checkpoints ?? [];
  if (!found.length) return noneYet(answer);
  return html`<${CheckpointTable} checkpoints=${found} reload=${answer.reload} />`;
}

/**
 * @param {{checkpoints: any[], reload: () => void, names?: Map<string, string>, aliases?: Map<string, string[]>}} props
 */
export function CheckpointTable({ checkpoints, reload, names, aliases }) {
  const pin = async (/** @type {any} */ each) => {
    await change("POST", `v1/runs/${each.run_id}/checkpoints/${each.id}:${each.pinned_at ? "unpin" : "pin"}`);
    reload();
  };
  const run = (/** @type {any} */ { run_id: id }) =>
    html`<a href=${runHref({ id }, "models")}>${plain(names?.get(id) ?? id, 120)}</a>`;
  const saved = (/** @type {any} */ each) => {
    const known = (aliases?.get(each.id) ?? []).map((name) => ` · ${name}`);
    return html`<span title=${moment(each.created_at)}>${ago(each.created_at)}</span><br />
      <small>${each.reason}${each.pinned_at ? " · pinned" : ""}${known}</small>
      ${each.damage && html`<br /><small class="old">damaged: ${plain(each.damage, 200)}</small>`}`;
  };
  const buttons = (/** @type {any} */ each) => {
    const title = "Retention leaves a pinned checkpoint alone";
    return html`<button onClick=${() => pin(each)} title=${title}>${each.pinned_at ? "Unpin" : "Pin"}</button>${" "}
      <button onClick=${() => setAlias(each.id, reload)}>Alias …</button>`;
  };
  return cardTable(checkpoints, [
    names && ["run", run, "name"],
    ["step", (each) => html`<span title=${each.id}>${count(each.step)}</span>`, "number"],
    ["saved", saved],
    ["score", (each) => number(each.score), "number"],
    ["models", modelLinks],
    ["size", (each) => bytes(each.size), "number"],
    ["", (each) => may("run") && buttons(each)],
  ]);
}
