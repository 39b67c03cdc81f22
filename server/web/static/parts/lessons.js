// Lessons: where each environment parameter stands, what it waits for, and setting another one.
import { useState } from "preact/hooks";
import { change, may } from "../api.js";
import { ago, number, plain, shown } from "../format.js";
import { html, withValue } from "../html.js";
import { useGet } from "../live.js";
import { ChartTools, MetricChart } from "../metrics.js";
import { charted } from "../runs.js";
import { toast } from "./dialog.js";
import { Fact, Missing } from "./signs.js";

/** @param {{run: any, live: boolean, events: any[], tick: number}} props */
export function Lessons({ run, live, events, tick }) {
  const answer = useGet(`v1/runs/${run.id}/environment_parameters`, {}, { seconds: live ? 5 : null });
  const parameters = /** @type {any[]} */ (answer.data?.parameters ?? []);
  if (!parameters.length) {
    return html`<${Missing} ...${answer}>The trainer has not said yet where its lessons stand.<//>`;
  }
  const pending = /** @type {any[]} */ (answer.data.pending);
  const changes = events.filter((each) => each.type === "lesson_changed" || each.type === "parameter_changed");
  return html`${pending.map((edit) => {
      const what = `${plain(edit.parameter, 100)} was asked to change to ${shown(edit.change)}`;
      return html`<p class="note" key=${edit.seq}>${what}; the trainer has not done it yet.</p>`;
    })}
    <div class="columns">
      ${parameters.map((each) => html`<section class="card" key=${each.name}>
        <h2>${plain(each.name, 100)}</h2>
        <p>${plain(each.waits_for, 400)}</p>
        <ol class="row" style=${{ listStyle: "none", padding: 0, margin: "0 0 10px" }} aria-label="Lessons">
          ${Array.from({ length: Math.min(each.lessons, 40) }, (_, i) => step(i + 1, each, namesOf(run, each)))}
        </ol>
        <dl class="facts">
          <${Fact} name="value">${shown(each.value)}<//>
          ${each.measure &&
          html`<${Fact} name=${plain(each.measure, 60)}>${number(each.measured)} of ${number(each.threshold)}<//>
            <${Fact} name="episodes">${each.episodes} of ${each.min_lesson_length}<//>`}
        </dl>
        ${live && may("run") && each.lessons > 1 &&
        html`<${SetLesson} run=${run} parameter=${each} reload=${answer.reload} />`}
      </section>`)}
    </div>
    <${ChartTools} />
    <div class="charts">
      ${parameters.map(({ name }) => {
        const metric = `Environment/Lesson Number/${name}`;
        return html`<${MetricChart} key=${name} metric=${metric} runs=${charted(run)} tick=${tick} />`;
      })}
    </div>
    <section class="card" style=${{ marginTop: "16px" }}><h2>Changes (${changes.length})</h2>
      <ol class="timeline">
        ${changes.slice(-100).reverse().map((each) => html`<li key=${each.seq}>
          <span class="small">${ago(each.at)}</span><span class="wrap">${plain(each.message, 400)}</span>
        </li>`)}
      </ol></section>`;
}

/** The names of a parameter's lessons, as the configuration has them. @param {any} run @param {any} parameter */
function namesOf(run, { name }) {
  const curriculum = run.config.environment_parameters?.[name]?.curriculum ?? [];
  return curriculum.map((/** @type {any} */ lesson) => lesson.name);
}

/** One lesson: done, present or to come. @param {number} number @param {any} parameter @param {string[]} names */
function step(number, { lesson, lesson_name: now }, names) {
  const present = number === lesson;
  const [sign, tone] = number < lesson ? ["✔", "good"] : present ? ["▶", "busy"] : ["○", "idle"];
  return html`<li key=${number - 1} class="state" data-tone=${tone} aria-current=${present ? "step" : undefined}>
    ${sign} ${number} ${plain(names[number - 1] ?? (present ? now : ""), 40)}
  </li>`;
}

/** @param {{run: any, parameter: any, reload: () => void}} props */
function SetLesson({ run, parameter: { name, lesson: now, lessons }, reload }) {
  const [lesson, setLesson] = useState(String(now));
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const parameters = { [name]: { lesson: Number(lesson) } };
    await change("PATCH", `v1/runs/${run.id}/environment_parameters`, { parameters });
    toast("The trainer changes it within seconds.");
    reload();
  };
  return html`<form class="row" style=${{ marginTop: "10px" }} onSubmit=${submit}>
    <label>lesson <input type="number" min="1" max=${lessons} value=${lesson} onInput=${withValue(setLesson)} /></label>
    <button disabled=${Number(lesson) === now}>Set it</button>
  </form>`;
}
