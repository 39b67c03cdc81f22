// Experiments: the list, and one of them: its best setting, what matters, what was tried, how the best ones learned.
import { useKeys } from "../app.js";
import { change, may } from "../api.js";
import { ago, count, duration, number, percent, plain, shown, words } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";
import { CHART_KEYS, ChartTools, MetricChart } from "../metrics.js";
import { names } from "../runs.js";
import { colorOf } from "../theme.js";
import { flag, href, set } from "../url.js";
import { ask, toast } from "../parts/dialog.js";
import { Coordinates } from "../parts/coordinates.js";
import { Fact, Failure, Missing, Sign } from "../parts/signs.js";
import { cardTable } from "../parts/table.js";
import { CopyLink } from "./compare.js";

/** States of experiments and of trials. @type {Record<string, [string, string]>} */
const LOOKS = {
  RUNNING: ["▶", "busy"], PAUSED: ["❚❚", "warn"], FINISHED: ["✔", "good"], FAILED: ["✖", "bad"],
  COMPLETE: ["✔", "good"], PRUNED: ["⊘", "idle"], STOPPED: ["◼", "idle"],
};
/** Trials that the page shows: the best ones. */
const MOST = 200;
/** Trials whose curves are drawn. */
const CHARTED = 6;

/** @param {{parts: string[]}} props */
export default function Experiments({ parts: [name] }) {
  return name ? html`<${OneExperiment} name=${name} />` : html`<${AllExperiments} />`;
}

/** @param {{state: string}} props */
function State({ state }) {
  const [sign, tone] = LOOKS[state] ?? ["?", "idle"];
  return html`<${Sign} sign=${sign} tone=${tone}>${state}<//>`;
}

/** A setting in a line. @param {Record<string, unknown>} parameters */
function setting(parameters) {
  const called = names(Object.keys(parameters));
  return Object.values(parameters).map((value, i) => `${called[i]} = ${text(value)}`).join(", ");
}

/** A value of a setting. @param {unknown} value */
function text(value) {
  return typeof value === "number" ? number(value) : shown(value);
}

/** Trials by state, as words. @param {Record<string, number>} trials */
function counts(trials) {
  const known = Object.entries(trials).map(([state, many]) => `${count(many)} ${state.toLowerCase()}`);
  return known.join(", ") || "none yet";
}

function AllExperiments() {
  const answer = useGet("v1/experiments", { page_size: 200 }, { seconds: 10 });
  const experiments = answer.data?.experiments ?? [];
  return html`<div class="head"><h1>Experiments</h1></div>
    ${experiments.length ? cardTable(experiments, [
      ["state", (each) => html`<${State} state=${each.state} />`],
      ["name", (each) => html`<a href=${href(`ui/experiments/${each.id}`)}>${plain(each.name, 200)}</a>
        <br /><small>${plain(each.description, 200)}</small>`, "name"],
      ["trials", ({ trials }) => counts(trials)],
      ["best", ({ best }) => (best ? number(best.value) : "–"), "number"],
      ["with", ({ best }) => best && plain(setting(best.parameters), 300), "wrap"],
      ["created", (each) => ago(each.created_at), "small"],
    ]) : html`<${Missing} ...${answer}>There is no experiment yet. <code>ludus tune FILE.yaml --budget 1h</code>${" "}
        begins one, <code>ludus experiment create FILE</code> one of your own.<//>`}`;
}

/** @param {{name: string}} props */
function OneExperiment({ name }) {
  useKeys(CHART_KEYS);
  const path = `v1/experiments/${encodeURIComponent(name)}`;
  const answer = useGet(path);
  const experiment = answer.data;
  const maximizes = experiment?.spec.objective.mode !== "min";
  const query = { order_by: `value ${maximizes ? "desc" : "asc"}`, page_size: MOST };
  const found = useGet(`${path}/trials`, query, { seconds: 10, wanted: Boolean(experiment) });
  if (!experiment) return html`<${Missing} ...${answer} />`;
  const trials = /** @type {any[]} */ (found.data?.trials ?? []);
  const { spec, best, used } = experiment;
  const failed = experiment.state === "FAILED";
  const called = names(Object.keys(spec.parameters));
  const hours = used.hours + (used.since ? (Date.now() - Date.parse(used.since)) / 3.6e6 : 0);
  return html`<div class="head">
      <h1>${plain(experiment.name, 200)}</h1> <${State} state=${experiment.state} />
      <span class="actions"><${Actions} ...${{ path, experiment, reload: answer.reload }} /><${CopyLink} /></span></div>
    <${Failure} problem=${answer.problem} />
    ${experiment.description && html`<p class="sentence">${plain(experiment.description)}</p>`}
    ${experiment.detail && html`<p class=${failed ? "note" : "sentence"} data-tone=${failed ? "bad" : ""}>${
      plain(experiment.detail)}</p>`}
    <dl class="facts card">
      <${Fact} name="best">${best ? `trial ${best.number}: ${number(best.value)}` : "none yet"}<//>
      ${best && Object.keys(spec.parameters).map(
        (key, i) => html`<${Fact} key=${key} name=${called[i]}>${text(best.parameters[key])}<//>`)}
      <${Fact} name="trials">${counts(experiment.trials)}<//>
      <${Fact} name="used">${count(used.runs)} runs, ${count(used.steps)} steps, ${duration(3600 * hours)}<//>
      <${Fact} name="of">${budget(spec.budget)}<//>
      <${Fact} name="compares">${objective(spec)}<//>
    </dl>
    ${trials.length ? html`
      <section class="card"><h2>What was tried: one line is one trial</h2>
        <${Coordinates} trials=${trials} parameters=${spec.parameters} maximizes=${maximizes} /></section>
      <${Importance} path=${path} trials=${experiment.trials.COMPLETE ?? 0} />
      <${Curves} trials=${trials} spec=${spec} />
      <${Table} trials=${trials} paths=${Object.keys(spec.parameters)} />
      <p class="small">${trials.length === MOST ? `The best ${MOST}. ` : ""}<a
        href=${href("ui/runs", { tag: `experiment:${experiment.name}` })}>All of its runs</a></p>`
      : html`<${Missing} ...${found}>No trial has begun.<//>`}`;
}

/** @param {Record<string, number|null>} limits */
function budget(limits) {
  const known = Object.entries(limits).filter(([, limit]) => limit !== null);
  return known.map(([name, limit]) => `${count(limit)} ${words(name)}`).join(", ") || "no limit";
}

/** What trials are compared by. @param {any} spec */
function objective({ objective: { metric, behavior, last, mode, evaluate, match, rating }, seeds }) {
  const what = evaluate ? "mean return of an evaluation" : match ? "score against a champion" : `${
    rating ? `${rating} on the ladder` : metric}${behavior ? ` of ${behavior}` : ""}, mean of the last ${last}`;
  return `${what}, ${mode === "max" ? "higher" : "lower"} is better; ${seeds} ${seeds === 1 ? "seed" : "seeds"} each`;
}

/** @param {{path: string, experiment: any, reload: () => void}} props */
function Actions({ path, experiment: { state, name, trials, spec }, reload }) {
  if (!may("run")) return null;
  const act = (/** @type {string} */ verb, /** @type {string} */ said) => async () => {
    await change("POST", `${path}:${verb}`);
    toast(said);
    reload();
  };
  const text = `Runs of ${plain(name, 80)} save a checkpoint and end. Trials under way have no value then.`;
  const stop = () =>
    ask({ title: "Stop the experiment?", action: "Stop it", text, carryOut: act("stop", "Its runs end.") });
  return html`${state === "RUNNING" && html`<button onClick=${act("pause", "Its runs pause.")}>Pause</button>`}
    ${state !== "RUNNING" && html`<button class="main" onClick=${act("resume", "It goes on.")}>Resume</button>`}
    ${trials.STOPPED > 0 && !spec.population && html`<button onClick=${
      act("retry", "What was stopped is tried again.")}>Retry stopped trials</button>`}
    ${state !== "FINISHED" && html`<button onClick=${stop}>Stop …</button>`}`;
}

/** How much each key explains. @param {{path: string, trials: number}} props `trials`: complete ones */
function Importance({ path, trials }) {
  const { data, problem } = useGet(`${path}/importance`, {}, { seconds: null, again: [trials] });
  const shares = /** @type {[string, number][]} */ (Object.entries(data?.shares ?? {}));
  const called = names(shares.map(([key]) => key));
  return html`<section class="card"><h2>What matters</h2>
    <${Failure} problem=${problem} />
    ${shares.map(([key, share], i) => html`<div class="row" key=${key}>
      <span class="wrap" style=${{ width: "40%" }} title=${key}>${called[i]}</span>
      <span class="bar-of grow"><i style=${{ width: `${100 * share}%` }}></i></span>
      <span class="number" style=${{ width: "60px" }}>${percent(share)}</span></div>`)}
    <small>${shares.length
      ? "Share of the differences between complete trials that each key explains (PED-ANOVA)."
      : "A few more complete trials tell which keys matter."}</small></section>`;
}

/** Curves of the best trials. @param {{trials: any[], spec: any}} props */
function Curves({ trials, spec: { objective: { metric, behavior } } }) {
  const shown = trials.filter((each) => each.runs.length).slice(0, CHARTED);
  const runs = shown.flatMap((trial) => trial.runs.map((/** @type {any} */ run) => (
    { id: run.run_id, name: `${trial.number}, seed ${run.seed}`, group: `trial ${trial.number}`, started: 0 })));
  const ended = trials.filter((each) => each.state !== "RUNNING").length;
  if (!runs.length) return null;
  return html`<section><h2>How the best ${shown.length} learned</h2>
    <${ChartTools} grouped />
    <${MetricChart} ...${{ metric, behavior: behavior ?? undefined, runs, tick: ended, grouped: true, height: 280 }} />
  </section>`;
}

/** @param {{trials: any[], paths: string[]}} props */
function Table({ trials, paths }) {
  const byNumber = flag("by-number");
  const called = names(paths);
  const charted = trials.filter((each) => each.runs.length).slice(0, CHARTED);
  const colors = new Map(charted.map((trial, i) => [trial, colorOf(i)]));
  const rows = byNumber ? [...trials].sort((one, other) => one.number - other.number) : trials;
  const compare = (/** @type {any} */ { runs }) =>
    href("ui/compare", { runs: runs.map((/** @type {any} */ run) => run.run_id), by: "seed" });
  return html`<div class="row"><h2>Trials</h2>
      <label><input type="checkbox" checked=${byNumber} onChange=${() => set({ "by-number": !byNumber })} />${" "}
        in the order in which they began</label></div>
    ${cardTable(rows, [
      ["trial", (each) => html`<i class="key" style=${{ background: colors.get(each) }}></i> ${each.number}`, "number"],
      ["state", (each) => html`<${State} state=${each.state} />`],
      ["value", (each) => (each.value === null ? "–" : number(each.value)), "number"],
      ...paths.map((path, i) => /** @type {[string, any, string]} */ (
        [called[i], (/** @type {any} */ { parameters }) => text(parameters[path]), "number"])),
      ["runs", (each) => html`<a href=${compare(each)}>${each.runs.length}</a>`, "number"],
      ["why", (each) => plain(each.detail, 300), "wrap"],
    ])}`;
}
