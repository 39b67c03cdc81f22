// Lessons: where each environment parameter stands, what it waits for, and setting another one.
import { useState } from "preact/hooks";
import { change, get, may } from "../api.js";
import { ago, number, plain, shown } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { MetricChart } from "../metrics.js";
import { toast } from "./dialog.js";
import { Missing } from "./signs.js";

/** @param {{run: any, live: boolean, events: any[], tick: number}} props */
export function Lessons({ run, live, events, tick }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/environment_parameters`), { seconds: live ? 5 : null, again: [run.id] });
  const parameters = answer.data?.parameters ?? [];
  if (!parameters.length) return html`<${Missing} ...${answer}>The trainer has not said yet where its lessons stand.<//>`;
  const changes = events.filter((each) => each.type === "lesson_changed" || each.type === "parameter_changed");
  return html`
    ${answer.data.pending.map((/** @type {any} */ edit) => html`<p class="note" key=${edit.seq}>${plain(edit.parameter, 100)} was asked to change to ${shown(edit.change)}; the trainer has not done it yet.</p>`)}
    <div class="columns">
      ${parameters.map((/** @type {any} */ each) => html`<section class="card" key=${each.name}>
        <h2>${plain(each.name, 100)}</h2>
        <p>${plain(each.waits_for, 400)}</p>
        <ol class="row" style=${{ listStyle: "none", padding: 0, margin: "0 0 10px" }} aria-label="Lessons">
          ${Array.from({ length: Math.min(each.lessons, 40) }, (_, i) => html`<li key=${i} class="state" data-tone=${i + 1 < each.lesson ? "good" : i + 1 === each.lesson ? "busy" : "idle"} aria-current=${i + 1 === each.lesson ? "step" : undefined}>${i + 1 < each.lesson ? "✔" : i + 1 === each.lesson ? "▶" : "○"} ${i + 1}${i + 1 === each.lesson ? ` ${plain(each.lesson_name, 40)}` : ""}</li>`)}
        </ol>
        <dl class="facts">
          <div><dt>value</dt><dd>${shown(each.value)}</dd></div>
          ${each.measure && html`<div><dt>${plain(each.measure, 60)}</dt><dd>${number(each.measured)} of ${number(each.threshold)}</dd></div>
          <div><dt>episodes</dt><dd>${each.episodes} of ${each.min_lesson_length}</dd></div>`}
        </dl>
        ${live && may("run") && each.lessons > 1 && html`<${SetLesson} run=${run} parameter=${each} reload=${answer.reload} />`}
      </section>`)}
    </div>
    <div class="charts" style=${{ marginTop: "16px" }}>
      ${parameters.map((/** @type {any} */ each) => html`<${MetricChart} key=${each.name} metric=${`Environment/Lesson Number/${each.name}`} runs=${[{ id: run.id, name: run.name, group: "", started: 0 }]} tick=${tick} />`)}
    </div>
    <section class="card" style=${{ marginTop: "16px" }}><h2>Changes (${changes.length})</h2>
      <ol class="timeline">${changes.slice(-100).reverse().map((each) => html`<li key=${each.seq}><span class="small">${ago(each.at)}</span><span class="wrap">${plain(each.message, 400)}</span></li>`)}</ol>
    </section>
  `;
}

/** @param {{run: any, parameter: any, reload: () => void}} props */
function SetLesson({ run, parameter, reload }) {
  const [lesson, setLesson] = useState(String(parameter.lesson));
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    await change("PATCH", `v1/runs/${run.id}/environment_parameters`, { parameters: { [parameter.name]: { lesson: Number(lesson) } } });
    toast("The trainer changes it within seconds.");
    reload();
  };
  return html`<form class="row" style=${{ marginTop: "10px" }} onSubmit=${submit}>
    <label>lesson <input type="number" min="1" max=${parameter.lessons} value=${lesson} onInput=${(/** @type {any} */ event) => setLesson(event.target.value)} /></label>
    <button disabled=${Number(lesson) === parameter.lesson}>Set it</button>
  </form>`;
}
