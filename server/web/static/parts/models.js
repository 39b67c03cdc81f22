// Checkpoints and the models in them: what goes in and out, sizes, pins, aliases, downloads.
import { change, may } from "../api.js";
import { ago, bytes, count, moment, number, plain } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { href } from "../url.js";
import { setAlias } from "./gate.js";
import { Missing, Sign } from "./signs.js";
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

/** Of what a checkpoint's score is, in words. @param {any} checkpoint */
export function scoreOf({ scored_by: by, steps }) {
  if (!by) return "mean return since the checkpoint before";
  if (by.kind === "metric") return by.metric;
  const episodes = by.episodes === 1 ? "1 episode" : `${count(by.episodes)} episodes`;
  if (by.kind === "evaluation") return `mean return of an evaluation, ${episodes}`;
  const since = Object.keys(steps).length === 1 ? `, since step ${count(by.from_step)}` : "";
  return `mean return of the last ${episodes}${since}`;
}

/**
 * The sound checkpoint of a run with the highest score, the newest where none has one.
 * @param {any} run @param {unknown} [again]
 */
function useBest(run, again) {
  const when = { seconds: null, again: [again, run.state] };
  const answer = useGet(`v1/runs/${run.id}/checkpoints`, { order_by: "score desc", page_size: 5 }, when);
  return { answer, best: answer.data?.checkpoints.find((/** @type {any} */ each) => !each.damage) };
}

/**
 * The best checkpoint of a run: its score, and the files to put into the game.
 * @param {{run: any, again?: unknown}} props
 */
export function BestModel({ run, again }) {
  const { answer, best: checkpoint } = useBest(run, again);
  const when = { seconds: null, again: [again, run.state] };
  const newest = useGet(`v1/runs/${run.id}/checkpoints`, { page_size: 1 }, when);
  if (!checkpoint) return noneYet(answer);
  const saved = `${ago(checkpoint.created_at)} at step ${count(checkpoint.step)}`;
  const later = newest.data?.checkpoints[0];
  const words = html`<b>${number(checkpoint.score)}</b> <small>${scoreOf(checkpoint)}</small>`;
  return html`<p>${checkpoint.score === null ? "" : words}</p>
    ${modelsOf(checkpoint).map((file) => html`<p key=${file.name}>
      <a class="button main" href=${fileHref(checkpoint, file)} download=${file.name}>
        Download ${plain(file.name, 80)}</a>
      ${" "}<small>${bytes(file.size)}</small><${ModelShape} model=${file.model} /></p>`)}
    <p class="small">Saved ${saved}. ${later && later.id !== checkpoint.id && html`The newest one, of step
      ${" "}${count(later.step)}, has ${later.score === null ? "no score" : `a score of ${number(later.score)}`}. `}
      <a href=${runHref(run, "models")}>All checkpoints</a></p>`;
}

/** The best checkpoint of a run as a line of a table. @param {{run: any}} props */
export function BestLinks({ run }) {
  const { answer, best } = useBest(run);
  if (!best) return answer.data ? html`<small>no checkpoint</small>` : null;
  const score = best.score === null ? "" : html`: <b>${number(best.score)}</b>, ${scoreOf(best)}`;
  return html`<small>step ${count(best.step)}${score}</small>${modelLinks(best)}`;
}

/** All checkpoints of a run. @param {{run: any, live: boolean}} props */
export function Checkpoints({ run, live }) {
  const when = { seconds: live ? 10 : null, again: [run.state] };
  const answer = useGet(`v1/runs/${run.id}/checkpoints`, { page_size: 200 }, when);
  const { best } = useBest(run, answer.data);
  const found = answer.data?.checkpoints ?? [];
  if (!found.length) return noneYet(answer);
  const marked = best?.score != null ? best.id : "";
  return html`<${CheckpointTable} checkpoints=${found} best=${marked} reload=${answer.reload} />`;
}

/** @param {{checkpoints: any[], best: string, reload: () => void}} props */
function CheckpointTable({ checkpoints, best, reload }) {
  const pin = async (/** @type {any} */ each) => {
    await change("POST", `v1/runs/${each.run_id}/checkpoints/${each.id}:${each.pinned_at ? "unpin" : "pin"}`);
    reload();
  };
  const saved = (/** @type {any} */ each) =>
    html`<span title=${moment(each.created_at)}>${ago(each.created_at)}</span><br />
      <small>${each.reason}${each.pinned_at ? " · pinned" : ""}</small>
      ${each.damage && html`<br /><small class="old">damaged: ${plain(each.damage, 200)}</small>`}`;
  const score = (/** @type {any} */ each) => html`<b>${number(each.score)}</b>${" "}
    ${each.id === best && html`<${Sign} sign="★" tone="good">best<//>`}<br />
    <small>${each.score !== null && scoreOf(each)}</small>`;
  const buttons = (/** @type {any} */ each) => {
    const title = "Retention leaves a pinned checkpoint alone";
    return html`<button onClick=${() => pin(each)} title=${title}>${each.pinned_at ? "Unpin" : "Pin"}</button>${" "}
      <button onClick=${() => setAlias(each.id, reload)}>Alias …</button>`;
  };
  return cardTable(checkpoints, [
    ["step", (each) => html`<span title=${each.id}>${count(each.step)}</span>`, "number"],
    ["saved", saved],
    ["score", score],
    ["models", modelLinks],
    ["size", (each) => bytes(each.size), "number"],
    ["", (each) => may("run") && buttons(each)],
  ]);
}
