// One run: its state and why, what can be done with it, and tabs.
import { useEffect } from "preact/hooks";
import { useKeys } from "../app.js";
import { get } from "../api.js";
import { ago, count, moment, number, plain } from "../format.js";
import { html } from "../html.js";
import { useCalm, useLive, useTick } from "../live.js";
import { CHART_KEYS, ChartTools, MetricChart } from "../metrics.js";
import { LENGTH, REWARD, hasEnded, pace, runHref, why } from "../runs.js";
import { Actions } from "../parts/actions.js";
import { ConfigTab } from "../parts/config.js";
import { Gate } from "../parts/gate.js";
import { Logs } from "../parts/logs.js";
import { MetricFilter, usePins } from "../parts/metric_filter.js";
import { Checkpoints, NewestModel } from "../parts/models.js";
import { Failure, Missing, Progress, Split, State, Tags } from "../parts/signs.js";
import { Simulators } from "../parts/simulators.js";
import { Timeline, useRunEvents } from "../parts/timeline.js";
import { Lessons } from "../parts/lessons.js";
import { LadderView } from "../parts/ladder.js";
import { CopyLink } from "./compare.js";

const TABS = ["overview", "charts", "timeline", "lessons", "opponents", "models", "simulators", "logs", "config"];
/** Seconds between two looks at a run that is live: while it is young, and later, when a curve changes slowly. */
const YOUNG = 120;
const OFTEN = 4;
const SELDOM = 10;
/** Matches of self-play that the overview counts. */
const NEWEST_MATCHES = 500;

/** @param {{parts: string[]}} props id or name of the run, tab */
export default function RunPage({ parts: [name, tab = "overview"] }) {
  const answer = useLive(() => get(`v1/runs/${encodeURIComponent(name)}`), { seconds: 10, again: [name] });
  const run = answer.data;
  const live = run ? !hasEnded(run) : false;
  const events = useRunEvents(run?.id);
  const newest = useCalm(events.at(-1)?.seq ?? 0, OFTEN);
  useEffect(() => {
    if (newest) answer.reload();
  }, [newest]);
  const young = run !== undefined && Date.now() - Date.parse(run.started_at ?? run.created_at) < 1000 * YOUNG;
  const tick = useTick(live ? (young ? OFTEN : SELDOM) : null);
  const charts = tab === "charts" || tab === "overview";
  useKeys(charts ? CHART_KEYS : {});
  if (!run) return html`<${Missing} ...${answer} />`;
  const assessed = run.kind === "match" || run.kind === "evaluate";
  const config = run.config;
  const shown = TABS.filter((each) => {
    if (each === "lessons") return Object.keys(config.environment_parameters ?? {}).length > 0;
    if (each === "opponents") return run.self_play || run.kind === "match" || JSON.stringify(config.behaviors ?? {}).includes('"self_play":{');
    return !(each === "simulators" && run.kind === "clone");
  });
  const attempt = run.attempt > 1 ? `, attempt ${run.attempt}` : "";
  return html`
    <div class="head">
      <h1>${plain(run.name, 200)}</h1>
      <${State} state=${run.state} />
      <small title=${moment(run.finished_at ?? run.started_at ?? run.created_at)}>${run.finished_at ? `ended ${ago(run.finished_at)}` : run.started_at ? `began ${ago(run.started_at)}` : `created ${ago(run.created_at)}`}${attempt}</small>
      <${Tags} tags=${run.tags} />
      <span class="actions"><${Actions} run=${run} reload=${answer.reload} /><${CopyLink} /></span>
    </div>
    <p class="sentence">${plain(why(run))} ${pace(run) && html`<b>${pace(run)}</b>`}</p>
    <${Failure} problem=${answer.problem} />
    <nav class="tabs" aria-label="Parts of the run">
      ${shown.map((each) => html`<a key=${each} href=${runHref(run, each === "overview" ? "" : each)} aria-current=${each === tab ? "page" : undefined}>${each[0].toUpperCase() + each.slice(1)}</a>`)}
    </nav>
    ${tab === "overview" && (assessed ? html`<${Gate} run=${run} live=${live} />` : html`<${Overview} run=${run} events=${events} tick=${tick} />`)}
    ${tab === "charts" && html`<${Charts} run=${run} events=${events} tick=${tick} live=${live} />`}
    ${tab === "timeline" && html`<${Timeline} events=${events} />`}
    ${tab === "lessons" && html`<${Lessons} run=${run} live=${live} events=${events} tick=${tick} />`}
    ${tab === "opponents" && html`<${LadderView} ladder=${run.id} live=${live} empty="No match has been played yet." />`}
    ${tab === "models" && html`<${Checkpoints} run=${run} live=${live} />`}
    ${tab === "simulators" && html`<${Simulators} run=${run} live=${live} />`}
    ${tab === "logs" && html`<${Logs} run=${run.id} live=${live} />`}
    ${tab === "config" && html`<${ConfigTab} run=${run} />`}
    ${!shown.includes(tab) && html`<p class="empty">This run has no part "${plain(tab, 40)}". <a href=${runHref(run)}>To its overview.</a></p>`}
  `;
}

/** The run as charts know it. @param {any} run */
function charted(run) {
  return [{ id: run.id, name: run.name, group: "", started: Date.parse(run.started_at ?? run.created_at) / 1000 }];
}

/** Vertical lines of the charts: lessons, resumes and checkpoints. @param {any[]} events @returns {import("../chart.js").Mark[]} */
function marksOf(events) {
  const found = [];
  for (const { type, data } of events) {
    const step = data?.step ?? (data?.steps ? Math.max(...Object.values(data.steps)) : undefined);
    if (type === "lesson_changed" && step !== undefined) found.push({ x: step, label: plain(String(data.new?.name ?? data.new?.lesson ?? "lesson"), 24), kind: "lesson" });
    if (type === "trainer_listening" && data?.resume_step) found.push({ x: data.resume_step, label: "resumed", kind: "resume" });
    if (type === "checkpoint_saved" && data?.reason === "requested") found.push({ x: step, label: "saved", kind: "checkpoint" });
  }
  return found;
}

/** @param {{run: any, events: any[], tick: number}} props */
function Overview({ run, events, tick }) {
  const { data } = useLive(() => get(`v1/runs/${run.id}/metrics`), { seconds: SELDOM, again: [run.id, run.state] });
  const saved = useCalm(events.filter((each) => each.type === "checkpoint_saved").length, 10);
  const metrics = data?.metrics ?? [];
  const value = (/** @type {string} */ key) => metrics.find((/** @type {any} */ each) => each.key === key)?.value;
  const elo = metrics.filter((/** @type {any} */ each) => each.key === "Self-play/ELO");
  return html`
    <${ChartTools} />
    <${MetricChart} metric=${run.kind === "clone" ? "Losses/Pretraining Loss" : REWARD} runs=${charted(run)} tick=${tick} marks=${marksOf(events)} height=${300} />
    <dl class="facts card" style=${{ marginTop: "16px" }}>
      <div><dt>progress</dt><dd><${Progress} step=${run.step} most=${run.max_steps} /></dd></div>
      <div><dt>reward</dt><dd>${number(value(REWARD))}</dd></div>
      <div><dt>episode length</dt><dd>${number(value(LENGTH))} decisions</dd></div>
      <div><dt>entropy</dt><dd>${number(value("Policy/Entropy"))}</dd></div>
      ${elo.map((/** @type {any} */ each) => html`<div key=${each.behavior}><dt>Elo of ${each.behavior}</dt><dd>${number(each.value)} <small>opponents ${number(value("Self-play/Opponent ELO Mean"))}</small></dd></div>`)}
      ${run.restarts_without_progress > 0 && html`<div><dt>restarts without progress</dt><dd>${run.restarts_without_progress}</dd></div>`}
      <div><dt>seed</dt><dd>${run.seed}</dd></div>
      <div><dt>id</dt><dd><code>${run.id}</code></dd></div>
    </dl>
    ${run.self_play && html`<${Outcomes} run=${run} tick=${tick} />`}
    <div class="columns">
      <section class="card"><h2>Newest model</h2><${NewestModel} run=${run} again=${saved} /></section>
      <section class="card">
        <h2>Last events</h2>
        <ol class="timeline">${events.slice(-6).reverse().map((each) => html`<li key=${each.seq} data-level=${each.level}><span class="small" title=${moment(each.at)}>${ago(each.at)}</span><span class="wrap">${plain(each.message, 300)}</span></li>`)}</ol>
        <a href=${runHref(run, "timeline")}>All ${count(events.length)} events</a>
      </section>
    </div>
    <div class="charts">
      <${MetricChart} metric=${LENGTH} runs=${charted(run)} tick=${tick} marks=${marksOf(events)} />
      <${MetricChart} metric="Policy/Entropy" runs=${charted(run)} tick=${tick} marks=${marksOf(events)} />
    </div>
  `;
}

/** How the newest matches of self-play ended. @param {{run: any, tick: number}} props */
function Outcomes({ run, tick }) {
  const answer = useLive(() => get(`v1/ladders/${run.id}/matches`, { page_size: NEWEST_MATCHES }), {
    seconds: null,
    again: [run.id, tick],
  });
  const matches = answer.data?.matches ?? [];
  if (!matches.length) return null;
  const ended = (/** @type {string} */ outcome) =>
    matches.filter((/** @type {any} */ each) => each.outcome === outcome).length;
  return html`<section class="card">
    <h2>The last ${matches.length} matches of the learning team</h2>
    <${Split}
      parts=${[
        ["won", ended("win"), "var(--good)"],
        ["drawn", ended("draw"), "var(--idle)"],
        ["lost", ended("loss"), "var(--bad)"],
      ]}
    />
  </section>`;
}

/** @param {{run: any, events: any[], tick: number, live: boolean}} props */
function Charts({ run, events, tick, live }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/metrics`), { seconds: live ? 15 : null, again: [run.id] });
  const keys = [...new Set(/** @type {string[]} */ ((answer.data?.metrics ?? []).map((/** @type {any} */ each) => each.key)))];
  const first = [REWARD, LENGTH].filter((key) => keys.includes(key));
  const ordered = [...first, ...keys.filter((key) => !first.includes(key)).sort()];
  const [pinned, pin] = usePins();
  const shown = MetricFilter.chosen(ordered, pinned);
  if (!keys.length) return html`<${Missing} ...${answer}>No summary yet: the first one comes after <code>summary_freq</code> steps.<//>`;
  return html`
    <${ChartTools} />
    <${MetricFilter} keys=${ordered} />
    <div class="charts">${shown.map((key) => html`<${MetricChart} key=${key} metric=${key} runs=${charted(run)} tick=${tick} marks=${marksOf(events)} actions=${pin(key)} />`)}</div>
    ${!shown.length && html`<p class="empty">No metric fits this filter.</p>`}
  `;
}
