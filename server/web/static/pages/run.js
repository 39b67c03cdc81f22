// One run: its state and why, what can be done with it, and tabs.
import { useEffect } from "preact/hooks";
import { useKeys } from "../app.js";
import { ago, count, moment, number, plain } from "../format.js";
import { html } from "../html.js";
import { useCalm, useGet, useTick } from "../live.js";
import { CHART_KEYS, ChartTools, MetricChart, meaningOf } from "../metrics.js";
import { LENGTH, REWARD, charted, hasEnded, pace, runHref, sentence, why } from "../runs.js";
import { Actions } from "../parts/actions.js";
import { ConfigTab } from "../parts/config.js";
import { Gate } from "../parts/gate.js";
import { Health } from "../parts/health.js";
import { Logs } from "../parts/logs.js";
import { MetricFilter, usePins } from "../parts/metric_filter.js";
import { BestModel, Checkpoints } from "../parts/models.js";
import { Recordings } from "../parts/recordings.js";
import { Fact, Failure, Missing, Outcomes, Progress, State, Tags } from "../parts/signs.js";
import { HowToJoin, Simulators } from "../parts/simulators.js";
import { Timeline, useRunEvents } from "../parts/timeline.js";
import { Lessons } from "../parts/lessons.js";
import { LadderView } from "../parts/ladder.js";
import { CopyLink } from "./compare.js";

const TABS = [
  "overview", "charts", "timeline", "lessons", "opponents", "models", "simulators", "recordings", "logs", "config",
];
/** Seconds between two looks at a run that is live: while it is young, and later, when a curve changes slowly. */
const YOUNG = 120;
const OFTEN = 4;
const SELDOM = 15;
/** Matches of self-play that the overview counts. */
const NEWEST_MATCHES = 500;

/** @param {{parts: string[]}} props id or name of the run, tab */
export default function RunPage({ parts: [name, tab = "overview"] }) {
  const answer = useGet(`v1/runs/${encodeURIComponent(name)}`, {}, { seconds: SELDOM });
  const run = answer.data;
  const live = run ? !hasEnded(run) : false;
  const events = useRunEvents(run?.id);
  const newest = useCalm(events.at(-1)?.seq ?? 0, OFTEN);
  useEffect(() => {
    if (newest) answer.reload();
  }, [newest]);
  const young = run !== undefined && Date.now() - Date.parse(run.started_at ?? run.created_at) < 1000 * YOUNG;
  const tick = useTick(live ? (young ? OFTEN : SELDOM) : null);
  const taken = `v1/runs/${run?.continues}/checkpoints/${run?.config.checkpoint_settings?.resume_from}`;
  const { data: takeover } = useGet(taken, {}, { seconds: null, wanted: Boolean(run?.continues) });
  const charts = ["charts", "overview", "lessons"].includes(tab);
  useKeys(charts ? CHART_KEYS : {});
  if (!run) return html`<${Missing} ...${answer} />`;
  const assessed = run.kind === "match" || run.kind === "evaluate";
  const { behaviors, environment_parameters: parameters } = run.config;
  const opponents = run.self_play || run.kind === "match" || JSON.stringify(behaviors ?? {}).includes('"self_play":{');
  const taught = Object.keys(parameters ?? {}).length > 0;
  const played = run.kind === "clone" ? ["simulators", "recordings"] : [];
  const hidden = [!taught && "lessons", !opponents && "opponents", ...played];
  const shown = TABS.filter((each) => !hidden.includes(each));
  const { created_at: created, started_at: began, finished_at: ended } = run;
  const since = ended ? `ended ${ago(ended)}` : began ? `began ${ago(began)}` : `created ${ago(created)}`;
  return html`<div class="head"><h1>${plain(run.name, 200)}</h1>
      <${State} run=${run} />
      <small title=${moment(ended ?? began ?? created)}>${since}${run.attempt > 1 && `, attempt ${run.attempt}`}</small>
      <${Tags} tags=${run.tags} />
      <${Lineage} run=${run} step=${takeover?.step} />
      <span class="actions"><${Actions} run=${run} reload=${answer.reload} /><${CopyLink} /></span>
    </div>
    <p class="sentence">${plain(why(run))} ${pace(run) && html`<b>${pace(run)}</b>`}</p>
    <${Failure} problem=${answer.problem} />
    ${tab === "overview" && html`<${Health} run=${run} />`}
    <nav class="tabs" aria-label="Parts of the run">
      ${shown.map((each) => {
        const [to, current] = [runHref(run, each === "overview" ? "" : each), each === tab ? "page" : undefined];
        const label = each[0].toUpperCase() + each.slice(1);
        return html`<a key=${each} href=${to} aria-current=${current} ref=${current && intoView}>${label}</a>`;
      })}
    </nav>
    ${tab === "overview" && assessed && html`<${Gate} run=${run} live=${live} />`}
    ${tab === "overview" && !assessed && html`<${Overview} ...${{ run, events, tick, takeover }} duels=${opponents} />`}
    ${tab === "charts" && html`<${Charts} ...${{ run, events, tick, live, takeover }} />`}
    ${tab === "timeline" && html`<${Timeline} events=${events} />`}
    ${tab === "lessons" && html`<${Lessons} run=${run} live=${live} events=${events} tick=${tick} />`}
    ${tab === "opponents" && html`<${LadderView} ladder=${run.id} live=${live} empty="No match was played yet." />`}
    ${tab === "models" && html`<${Checkpoints} run=${run} live=${live} />`}
    ${tab === "simulators" && html`<${Simulators} run=${run} live=${live} />`}
    ${tab === "recordings" && html`<${Recordings} run=${run} live=${live}>
      <${MetricChart} metric=${REWARD} runs=${charted(run)} tick=${tick} marks=${marksOf(events, takeover)} /><//>`}
    ${tab === "logs" && html`<${Logs} run=${run.id} live=${live} />`}
    ${tab === "config" && html`<${ConfigTab} run=${run} />`}
    ${!shown.includes(tab) &&
    html`<p class="empty">This run has no part "${plain(tab, 40)}". <a href=${runHref(run)}>To its overview.</a></p>`}`;
}

/**
 * The runs before and after one, whose curves are one.
 * @param {{run: any, step: number|undefined}} props where it went on
 */
function Lineage({ run, step }) {
  const link = (/** @type {string} */ id) => html` <a key=${id} href=${runHref({ id })}><code>${id}</code></a>`;
  const from = step ? ` from step ${count(step)}` : "";
  const later = run.continued_by ?? []; // an api of the previous release says nothing
  return html`${run.continues && html`<small>continues${link(run.continues)}${from}</small>`}
    ${later.length > 0 && html`<small>continued by${later.map(link)}</small>`}`;
}

/**
 * Vertical lines of the charts.
 * @param {any[]} events @param {any} takeover the checkpoint of another run where it began, or undefined
 * @returns {import("../chart.js").Mark[]}
 */
function marksOf(events, takeover) {
  const found = [];
  const last = (/** @type {number[]} */ steps) => (steps.length ? Math.max(...steps) : undefined);
  const taken = last(Object.values(takeover?.steps ?? {}));
  if (taken !== undefined) found.push({ x: taken, label: "continued", kind: "resume" });
  for (const { type, data } of events) {
    const step = data?.step ?? last(Object.values(data?.steps ?? {}));
    if (type === "lesson_changed" && step !== undefined) {
      const label = plain(String(data.new?.name ?? data.new?.lesson ?? "lesson"), 24);
      found.push({ x: step, label, kind: "lesson" });
    }
    if (type === "run_claimed" && data?.resumed_from) found.push({ x: step, label: "resumed", kind: "resume" });
    if (type === "checkpoint_saved") {
      found.push({ x: step, label: data.reason === "requested" ? "saved" : "", kind: "checkpoint" });
    }
  }
  return found;
}

/** @param {{run: any, events: any[], tick: number, takeover: any, duels: boolean}} props */
function Overview({ run, events, tick, takeover, duels }) {
  const { data } = useGet(`v1/runs/${run.id}/metrics`, {}, { seconds: 2 * SELDOM, again: [run.state] });
  const metrics = /** @type {any[]} */ (data?.metrics ?? []);
  const value = (/** @type {string} */ key) => metrics.find((each) => each.key === key)?.value;
  const elo = Object.entries(run.self_play?.elo ?? {});
  const live = !hasEnded(run);
  const alone = live && run.kind === "train" && !run.step && !run.simulators && !metrics.length;
  const fact = (/** @type {string} */ name, /** @type {string} */ key) =>
    html`<${Fact} name=${html`<span title=${meaningOf(key)}>${name}</span>`}>${number(value(key))}<//>`;
  const opponents = number(value("Self-play/Opponent ELO Mean"));
  const chart = { runs: charted(run), tick, marks: marksOf(events, takeover) };
  const saved = useCalm(events.filter((each) => each.type === "checkpoint_saved").length, SELDOM);
  const first = run.kind === "clone" ? "Losses/Pretraining Loss" : REWARD;
  return html`${alone
      ? html`<${HowToJoin} run=${run} open />`
      : html`<${ChartTools} /><${MetricChart} metric=${first} ...${chart} height=${300} />`}
    <dl class="facts card" style=${{ marginTop: "16px" }}>
      <${Fact} name="progress"><${Progress} step=${run.step} most=${run.max_steps} /><//>
      ${fact("reward", REWARD)}
      ${fact("decisions in an episode", LENGTH)}
      ${fact("entropy", "Policy/Entropy")}
      ${elo.map(([behavior, own]) => html`<${Fact} key=${behavior}
        name=${html`<span title=${meaningOf("Self-play/ELO")}>training Elo of ${behavior}, now</span>`}>
        ${number(own)} <small>snapshots that it meets: ${opponents}</small><//>`)}
      ${run.restarts_without_progress > 0 &&
      html`<${Fact} name="restarts without progress">${run.restarts_without_progress}<//>`}
      <${Fact} name="seed">${run.seed}<//>
      <${Fact} name="id"><code>${run.id}</code><//>
    </dl>
    ${run.state === "RUNNING" && html`<${Bottleneck} run=${run} />`}
    ${duels && html`<${LastMatches} run=${run} tick=${tick} />`}
    <div class="columns">
      <section class="card"><h2>Take this one: the best model</h2><${BestModel} run=${run} again=${saved} /></section>
      <section class="card"><h2>Last events</h2>
        <ol class="timeline">
          ${events.slice(-6).reverse().map((each) => html`<li key=${each.seq} data-level=${each.level}>
            <span class="small" title=${moment(each.at)}>${ago(each.at)}</span>
            <span class="wrap">${plain(each.message, 300)}</span></li>`)}
        </ol>
        <a href=${runHref(run, "timeline")}>All events (${count(events.length)})</a>
      </section></div>
    ${!alone && html`<div class="charts">
      <${MetricChart} metric=${LENGTH} ...${chart} />
      <${MetricChart} metric="Policy/Entropy" ...${chart} />
    </div>`}`;
}

/** Scroll the tabs, of which a phone shows a part, to the current one. @param {HTMLElement|null} tab */
function intoView(tab) {
  const bar = tab?.parentElement;
  if (tab && bar) bar.scrollLeft = tab.offsetLeft + tab.offsetWidth - bar.clientWidth;
}

/** What limits the speed of a run. @param {{run: any}} props */
function Bottleneck({ run }) {
  const { data } = useGet(`v1/runs/${run.id}/bottleneck`, {}, { seconds: SELDOM });
  if (!data?.cause) return null;
  const { message, advice, steps_per_second: now, steps_per_second_without: without } = data;
  const gain = now && without > now ? ` ${count(now)} steps/s could be ${count(without)} without that.` : "";
  return html`<p class="sentence"><b>Speed:</b> ${plain(message)}.${gain} ${advice && plain(sentence(advice))}</p>`;
}

/** How the newest matches of self-play ended. @param {{run: any, tick: number}} props */
function LastMatches({ run, tick }) {
  const when = { seconds: null, again: [tick] };
  const { data } = useGet(`v1/ladders/${run.id}/matches`, { page_size: NEWEST_MATCHES }, when);
  const matches = /** @type {any[]} */ (data?.matches ?? []);
  if (!matches.length) return null;
  const ended = (/** @type {string} */ outcome) => matches.filter((each) => each.outcome === outcome).length;
  return html`<section class="card"><h2>The last ${matches.length} matches of the learning team</h2>
    <${Outcomes} won=${ended("win")} drawn=${ended("draw")} lost=${ended("loss")} /></section>`;
}

/** @param {{run: any, events: any[], tick: number, live: boolean, takeover: any}} props */
function Charts({ run, events, tick, live, takeover }) {
  const answer = useGet(`v1/runs/${run.id}/metrics`, {}, { seconds: live ? 15 : null });
  const metrics = /** @type {{key: string}[]} */ (answer.data?.metrics ?? []);
  const keys = [...new Set(metrics.map((each) => each.key))];
  const first = [REWARD, LENGTH].filter((key) => keys.includes(key));
  const ordered = [...first, ...keys.filter((key) => !first.includes(key)).sort()];
  const [pinned, pin] = usePins();
  const shown = MetricFilter.chosen(ordered, pinned);
  const none = html`No summary yet: the first one comes after <code>summary_freq</code> steps.`;
  if (!keys.length) return html`<${Missing} ...${answer}>${none}<//>`;
  const chart = { runs: charted(run), tick, marks: marksOf(events, takeover) };
  return html`<${ChartTools} />
    <${MetricFilter} keys=${ordered} />
    <div class="charts">
      ${shown.map((key) => html`<${MetricChart} key=${key} metric=${key} ...${chart} actions=${pin(key)} />`)}
    </div>
    ${!shown.length && html`<p class="empty">No metric fits this filter.</p>`}`;
}
