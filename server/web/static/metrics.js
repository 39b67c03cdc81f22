// Charts of metrics: what is loaded for them, the tool bar that all charts of a page share, and its shortcuts.
import { useMemo, useState } from "preact/hooks";
import { Problem, get } from "./api.js";
import { Chart } from "./chart.js";
import { choices, html, withValue } from "./html.js";
import { useLive } from "./live.js";
import { MEANINGS } from "./meanings.js";
import { align, followed, group } from "./series.js";
import { colorOf } from "./theme.js";
import { flag, list, numeric, query, set, text } from "./url.js";

/** A run as charts know it. @typedef {{id: string, name: string, group: string, started: number}} ChartedRun */

/** Buckets for a chart of the usual width: half its pixels. */
const POINTS = 300;
/** Half of what one answer may have, as a run can have a metric for several behaviors. Less after one had too many. */
let seriesAtOnce = 100;

/** The part of the view that charts share, from the address. */
function view() {
  const [from, to] = [numeric("from"), numeric("to")];
  return {
    kind: /** @type {import("./chart.js").AxisKind} */ (text("x", "step")),
    smoothing: numeric("smooth") ?? 0,
    log: flag("log"),
    clip: flag("clip"),
    window: from === null || to === null ? null : /** @type {[number, number]} */ ([from, to]),
    /** The window in steps, where the axis has others. */
    steps: list("steps").map(Number),
    /** Whether the window showed the newest point when it was chosen: then it moves with it. */
    follow: flag("follow"),
  };
}

/** Requests that begin within so many milliseconds, and differ in the metric alone, go as one. */
const TOGETHER = 10;
const waiting = new Map();
/** The last request for series: one at a time, so that the first chart is there before the others are computed. */
let last = Promise.resolve();

/**
 * Load series that begin with those of predecessors. If these are too many for one answer, each half of the metrics is
 * loaded alone; if even one metric is too much, the series are the runs' own.
 * @param {string[]} runs ids @param {string[]} keys @param {Record<string, any>} parameters @returns {Promise<any[]>}
 */
export async function curves(runs, keys, parameters) {
  const query = { runs, keys, ...parameters };
  try {
    return (await get("v1/series", { ...query, with_predecessors: true })).series;
  } catch (problem) {
    if (!(problem instanceof Problem) || problem.code !== "invalid_query") throw problem;
    if (keys.length === 1) return (await get("v1/series", query)).series;
    const half = Math.ceil(keys.length / 2);
    seriesAtOnce = Math.min(seriesAtOnce, half * runs.length);
    const first = await curves(runs, keys.slice(0, half), parameters);
    return [...first, ...(await curves(runs, keys.slice(half), parameters))];
  }
}

/** Load one metric. @param {string[]} runs ids @param {string} key @param {Record<string, any>} parameters */
function load(runs, key, parameters) {
  const name = JSON.stringify([runs, parameters]);
  let batch = waiting.get(name);
  if (!batch || batch.keys.size >= Math.max(1, Math.floor(seriesAtOnce / runs.length))) {
    const keys = new Set();
    const turn = Promise.all([last, new Promise((done) => setTimeout(done, TOGETHER))]);
    const answer = turn.then(() => {
      if (waiting.get(name)?.keys === keys) waiting.delete(name);
      return curves(runs, [...keys], { points: POINTS, common_steps: true, ...parameters });
    });
    last = answer.then(() => {}, () => {});
    batch = { keys, answer };
    waiting.set(name, batch);
  }
  batch.keys.add(key);
  return batch.answer.then((/** @type {any[]} */ series) => series.filter((each) => each.key === key));
}

/** The names of `MEANINGS` whose words in capitals stand for any, as expressions. @type {[RegExp, string][]} */
const FAMILIES = Object.entries(MEANINGS).flatMap(([name, meaning]) => {
  const pattern = name.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&").replaceAll(/\b(SIGNAL|PARAMETER|N)\b/g, ".+");
  return pattern.includes(".+") ? [[new RegExp(`^${pattern}$`), meaning]] : [];
});

/**
 * The meaning of a metric, and how it looks in training that goes well; "" for one of a game's own.
 * @param {string} key
 */
export function meaningOf(key) {
  const known = /** @type {Record<string, string>} */ (MEANINGS);
  return known[key] ?? FAMILIES.find(([pattern]) => pattern.test(key))?.[1] ?? "";
}

/**
 * A metric of one or several runs over time.
 * @param {object} props
 * @param {string} props.metric
 * @param {ChartedRun[]} props.runs
 * @param {string} [props.behavior] only of this one
 * @param {number} [props.tick] load again when it grows
 * @param {boolean} [props.grouped] one curve for each group of runs
 * @param {import("./chart.js").Mark[]} [props.marks] by step
 * @param {any} [props.actions]
 * @param {number} [props.height]
 */
export function MetricChart({ metric, runs, behavior, tick = 0, grouped = false, marks = [], actions, height }) {
  const { kind, smoothing, log, clip, window, steps, follow } = view();
  const [from, to] = kind === "step" ? (window ?? []) : steps;
  const parameters = {
    behavior,
    smoothing: smoothing || undefined,
    from_step: from && Math.floor(from),
    to_step: follow ? undefined : to && Math.ceil(to),
  };
  const ids = runs.map((run) => run.id);
  // Charts far from the screen ask for nothing: a run has hundreds of metrics.
  const [near, setNear] = useState(false);
  const again = [JSON.stringify([ids, metric, parameters]), tick];
  const { data, problem } = useLive(() => load(ids, metric, parameters), { seconds: null, again, wanted: near });
  const names = JSON.stringify(runs);
  const { x, curves } = useMemo(
    () => drawn(data ?? [], runs, grouped && kind === "step", kind),
    [data, names, grouped, kind],
  );
  const newest = x.at(-1) ?? 0;
  const choose = (/** @type {[number, number]|null} */ part) => {
    if (!part) return set(EVERYTHING);
    const [first, last] = [Math.floor(part[0]), Math.ceil(part[1])];
    const steps = kind === "step" ? null : stepsWithin([first, last], data ?? [], runs, kind);
    return set({ from: first, to: last, steps, follow: last >= newest });
  };
  const loaded = data ? "This metric has no values here." : near && "Loading …";
  const title = behavior ? `${metric} · ${behavior}` : metric;
  return html`<${Chart} title=${title} meaning=${meaningOf(metric)} x=${x} curves=${curves} kind=${kind}
    log=${log} clip=${clip} window=${follow ? followed(window, newest) : window} onWindow=${choose}
    marks=${kind === "step" ? marks : []} cursor="page" actions=${actions} height=${height} onNear=${setNear}
    empty=${problem ? `${problem.message} ${problem.next}` : loaded} />`;
}

/**
 * Curves of series with common steps.
 * @param {any[]} series @param {ChartedRun[]} runs @param {boolean} grouped @param {import("./chart.js").AxisKind} kind
 * @returns {{x: number[], curves: import("./chart.js").ColoredCurve[]}}
 */
export function drawn(series, runs, grouped, kind) {
  if (!series.length) return { x: [], curves: [] };
  const byId = new Map(runs.map((run, i) => [run.id, { run, i }]));
  const several = new Set(series.map((each) => each.behavior)).size > 1;
  if (grouped) {
    const groups = new Map();
    for (const each of series) {
      const name = [byId.get(each.run_id)?.run.group, several ? each.behavior : ""].filter(Boolean).join(" · ");
      groups.set(name, [...(groups.get(name) ?? []), each]);
    }
    const curves = [...groups].map(([name, members], i) => ({ ...group(name, members), color: colorOf(i) }));
    return { x: series[0].steps, curves };
  }
  const most = Math.max(...series.flatMap((each) => each.counts));
  const curves = series.map((each, number) => {
    const known = byId.get(each.run_id);
    const names = [runs.length > 1 ? known?.run.name : "", several || runs.length === 1 ? each.behavior || "run" : ""];
    return {
      label: names.filter(Boolean).join(" · "),
      color: colorOf(runs.length > 1 && !several ? (known?.i ?? number) : number),
      values: each.values,
      low: each.minima,
      high: each.maxima,
      smoothed: each.smoothed,
      counts: each.counts,
      band: most > 1 ? `each point: mean of up to ${most} summaries, band: lowest to highest` : "",
    };
  });
  if (kind === "step") return { x: series[0].steps, curves };
  // Every run has times of its own: join them on all times together.
  const timings = series.map((each) => timed(each, runs, kind));
  const columns = /** @type {const} */ (["values", "low", "high", "smoothed", "counts"]);
  const joined = (/** @type {typeof columns[number]} */ name) =>
    align(timings.map(({ at }) => at),
      curves.map((curve, which) => timings[which].filled.map((i) => curve[name]?.[i] ?? null)));
  const aligned = Object.fromEntries(columns.map((name) => [name, joined(name)]));
  return {
    x: aligned.values[0],
    curves: curves.map((curve, which) => ({
      ...curve,
      ...Object.fromEntries(columns.map((name) => [name, curve[name] && aligned[name][1][which]])),
    })),
  };
}

/**
 * The filled buckets of a series, and where they lie on an axis of time, in seconds.
 * @param {any} series @param {ChartedRun[]} runs @param {string} kind
 */
function timed({ run_id: id, counts, times }, runs, kind) {
  const filled = /** @type {number[]} */ ([...counts.keys()].filter((i) => counts[i]));
  const seconds = filled.map((i) => Date.parse(times[i]) / 1000);
  // The curve of a run that continues another one begins before the run.
  const start = kind === "relative" ? Math.min(runs.find((run) => run.id === id)?.started ?? 0, seconds[0]) : 0;
  return { filled, at: seconds.map((at) => at - start) };
}

/**
 * First and last step of all series within a window of time, and a bucket more at both ends; null: there is none.
 * @param {[number, number]} window @param {any[]} series @param {ChartedRun[]} runs @param {string} kind
 */
export function stepsWithin([first, last], series, runs, kind) {
  const found = series.flatMap((each) => {
    const { filled, at } = timed(each, runs, kind);
    const inside = filled.filter((_, i) => (at[i + 1] ?? Infinity) >= first && (at[i - 1] ?? -Infinity) <= last);
    return inside.map((i) => each.steps[i]);
  });
  return found.length ? [Math.min(...found), Math.max(...found)] : null;
}

const SMOOTHINGS = [0, 0.6, 0.9, 0.97, 0.99];
const KINDS = { step: "step", time: "wall clock", relative: "since the start" };
/** What shows all of the x axis again. */
const EVERYTHING = { from: null, to: null, steps: null, follow: null };

/** What all charts of a page obey. Groups have common steps only. @param {{grouped?: boolean}} props */
export function ChartTools({ grouped = false }) {
  const { kind, smoothing, log, clip, window, follow } = view();
  return html`<div class="chart-tools" role="group" aria-label="Charts">
    <label>x <select value=${grouped ? "step" : kind} disabled=${grouped}
      onChange=${withValue((x) => set({ x: x === "step" ? null : x, ...EVERYTHING }))}>
      ${choices(KINDS)}
    </select></label>
    <label title="Exponential moving average of the whole history, without its bias to the start">
      smoothing
      <input type="range" min="0" max="0.99" step="0.01" value=${smoothing}
        onChange=${withValue((share) => set({ smooth: Number(share) || null }))} />
      <output>${smoothing || "off"}</output>
    </label>
    <label><input type="checkbox" checked=${log} onChange=${() => set({ log: !log })} /> log</label>
    <label title="The y axis leaves out the highest and lowest 2 %">
      <input type="checkbox" checked=${clip} onChange=${() => set({ clip: !clip })} /> clip outliers
    </label>
    ${window && html`<label title="The window moves with the newest point">
      <input type="checkbox" checked=${follow} onChange=${() => set({ follow: !follow })} /> follow
    </label>`}
    ${window && html`<button onClick=${() => set(EVERYTHING)}>Show everything</button>`}
  </div>`;
}

function nextSmoothing() {
  const now = SMOOTHINGS.findIndex((each) => each >= view().smoothing);
  set({ smooth: SMOOTHINGS[(now + 1) % SMOOTHINGS.length] || null });
}

function nextKind() {
  const kinds = Object.keys(KINDS);
  const next = kinds[(kinds.indexOf(view().kind) + 1) % kinds.length];
  set({ x: next === "step" ? null : next, ...EVERYTHING });
}

/** Shortcuts of pages with charts, for the list of `?`. */
export const CHART_KEYS = /** @type {import("./app.js").Keys} */ ({
  s: ["smoothing", nextSmoothing],
  l: ["logarithmic axis", () => set({ log: !view().log })],
  t: ["x axis: step, wall clock, since the start", nextKind],
  f: ["let the zoomed part follow the newest point", () => view().window && set({ follow: !view().follow })],
  Escape: ["show everything again", () => query.value.has("from") && set(EVERYTHING)],
});
