// Compare: final numbers and differing keys of several runs, or of groups of them; the same charts, as mean with band.
import { useState } from "preact/hooks";
import { useKeys } from "../app.js";
import { number, plain, shown } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { useGet, useTick } from "../live.js";
import { CHART_KEYS, ChartTools, MetricChart } from "../metrics.js";
import { LENGTH, REWARD, hasEnded, lastKeys, runHref } from "../runs.js";
import { interval } from "../series.js";
import { href, list, set, text } from "../url.js";
import { colorOf } from "../theme.js";
import { BestLinks } from "../parts/models.js";
import { Missing, Sign, State } from "../parts/signs.js";
import { copied } from "../parts/dialog.js";
import { MetricFilter, usePins } from "../parts/metric_filter.js";
import { table } from "../parts/table.js";

/** Metrics that come first. While the server compares, a page shows these: most runs have them. */
const FIRST = [REWARD, LENGTH, "Policy/Entropy", "Losses/Value Loss"];
const MOST = 200; // runs that the server compares at once
const MOST_MODELS = 12; // rows for which their models are asked for
const GROUPINGS = { "": "nothing", seed: "all but the seed", tag: "tag", name: "name" };

export default function Compare() {
  const ids = list("runs").slice(0, MOST);
  const by = text("by");
  useKeys(CHART_KEYS);
  const query = { runs: ids, metrics: [REWARD] };
  const answer = useGet("v1/runs:compare", query, { seconds: 15, wanted: ids.length > 0 });
  const comparison = answer.data;
  const runs = /** @type {any[]} */ (comparison?.runs ?? []);
  const tick = useTick(runs.some((run) => !hasEnded(run)) ? 10 : null);
  const [pinned, pin] = usePins();
  if (!ids.length) {
    return html`<div class="head"><h1>Compare</h1></div>
      <p class="empty">Choose runs in <a href=${href("ui/runs")}>the table</a> (key x), then Compare (key c).</p>`;
  }
  const recorded = comparison?.metric_keys ?? FIRST;
  const first = FIRST.filter((key) => recorded.includes(key));
  const keys = [...first, ...recorded.filter((/** @type {string} */ key) => !first.includes(key))];
  const charted = ids.map((id, i) => {
    const run = runs[i];
    return {
      id: run?.id ?? id,
      name: plain(run?.name ?? id, 60),
      group: run ? groupOf(comparison, i, by) : "",
      started: Date.parse(run?.started_at ?? run?.created_at) / 1000 || 0,
    };
  });
  const groups = [...new Set(charted.map((run) => run.group))];
  return html`<div class="head">
      <h1>Compare ${ids.length} runs${by && comparison ? `, groups: ${groups.length}` : ""}</h1>
      <span class="actions">
        <label>group by <select value=${by} onChange=${withValue((value) => set({ by: value, x: null }))}>
          ${choices(GROUPINGS)}
        </select></label>
        <${CopyLink} />
      </span></div>
    ${comparison
      ? html`<${Numbers} comparison=${comparison} charted=${charted} by=${by} />`
      : html`<${Missing} ...${answer} />`}
    <${ChartTools} grouped=${Boolean(by)} />
    <${MetricFilter} keys=${keys} />
    <div class="charts">
      ${MetricFilter.chosen(keys, pinned).map((key) => html`<${MetricChart} key=${key} metric=${key} runs=${charted}
        tick=${tick} grouped=${Boolean(by)} actions=${pin(key)} />`)}
    </div>`;
}

/** The name of a run's group. @param {any} comparison @param {number} i which run @param {string} by */
function groupOf({ runs, differing }, i, by) {
  const run = runs[i];
  if (by === "tag") return run.tags.join(" + ") || "no tag";
  if (by === "name") return run.name.replace(/[-_.]?\d+$/, "");
  if (by !== "seed") return run.id;
  const others = differing.filter((/** @type {any} */ each) => each.path !== "seed");
  return others.map((/** @type {any} */ each) => `${lastKeys(each.path)}=${shown(each.values[i])}`).join(" ") || "all";
}

export function CopyLink() {
  const [done, setDone] = useState(false);
  const copy = async () => {
    setDone(await copied(location.href));
    setTimeout(() => setDone(false), 2000);
  };
  const title = "The address of this page shows the same view";
  return html`<button onClick=${copy} title=${title}>${done ? "Copied" : "Copy link"}</button>`;
}

/** Final numbers with intervals, and what differs. @param {{comparison: any, charted: any[], by: string}} props */
function Numbers({ comparison: { runs, differing }, charted, by }) {
  const rows = [...new Set(charted.map((run) => run.group))].map((name, g) => {
    const members = charted.map((_, i) => i).filter((i) => charted[i].group === name);
    const final = interval(members.map((i) => runs[i].metrics[REWARD]));
    return { id: name, members, final, first: runs[members[0]], color: colorOf(by ? g : members[0]) };
  });
  const differs = /** @type {{path: string, values: unknown[]}[]} */ (differing).filter(({ path }) => path !== "seed");
  const name = (/** @type {any} */ { id, first, color }) => {
    const words = by ? plain(id, 200) : html`<a href=${runHref(first)}>${plain(first.name, 200)}</a>`;
    return html`<i class="key" style=${{ background: color }}></i> ${words}`;
  };
  const unique = (/** @type {unknown[]} */ values) => (/** @type {any} */ row) =>
    plain([...new Set(row.members.map((/** @type {number} */ i) => shown(values[i])))].join(", "), 60);
  const best = Math.max(...rows.map(({ final }) => final.mean ?? -Infinity));
  const reward = (/** @type {any} */ { final: { mean, low, high } }) => html`${rows.length > 1 && mean === best &&
    html`<${Sign} sign="★" tone="good">best<//>${" "}`}${number(mean)}${
      low === null ? "" : ` [${number(low)}, ${number(high)}]`}`;
  return html`<section class="card"><h2>Final numbers, and what differs</h2>
    ${table(rows, [
      [by ? "group" : "run", name, "name"],
      [by ? "runs" : "state", ({ members, first }) => (members[1] ? members.length : html`<${State} run=${first} />`)],
      ["reward", reward, "number"],
      !by && rows.length <= MOST_MODELS && ["best model", ({ first }) => html`<${BestLinks} run=${first} />`],
      ...differs.map(({ path, values }) => /** @type {[string, any]} */ ([lastKeys(path), unique(values)])),
    ], { style: { maxHeight: "min(420px, 50vh)" } })}
    ${by && html`<small>Interquartile mean [its 95 % interval by bootstrap] of the runs of a group;
      <code>ludus compare</code> says whether one is better.</small>`}
  </section>`;
}
