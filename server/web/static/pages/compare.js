// Compare: the same charts for several runs, or for groups of them as mean with band; differing keys; final numbers.
import { useEffect, useState } from "preact/hooks";
import { useKeys } from "../app.js";
import { get } from "../api.js";
import { number, plain, shown } from "../format.js";
import { html } from "../html.js";
import { useLive, useTick } from "../live.js";
import { CHART_KEYS, ChartTools, MetricChart } from "../metrics.js";
import { LENGTH, REWARD, hasEnded, runHref } from "../runs.js";
import { differences, flat, interval } from "../series.js";
import { href, list, set, text } from "../url.js";
import { colorOf } from "../theme.js";
import { Missing, State } from "../parts/signs.js";
import { MetricFilter, usePins } from "../parts/metric_filter.js";

/** Metrics that are there in every run, first. */
const FIRST = [REWARD, LENGTH, "Policy/Entropy", "Losses/Value Loss"];
/** So many runs, and no more, are named in the legend of the table. */
const MOST = 200;

export default function Compare() {
  const ids = list("runs").slice(0, MOST);
  const by = text("by");
  useKeys(CHART_KEYS);
  const answer = useLive(() => Promise.all(ids.map((id) => get(`v1/runs/${id}`))), { seconds: 15, again: [ids.join()] });
  const runs = answer.data ?? [];
  const [keys, setKeys] = useState(/** @type {string[]} */ (FIRST));
  useEffect(() => {
    if (!ids.length) return;
    Promise.all(ids.slice(0, 5).map((id) => get(`v1/runs/${id}/metrics`))).then((answers) => {
      const found = new Set(answers.flatMap((each) => each.metrics.map((/** @type {any} */ metric) => metric.key)));
      setKeys([...FIRST.filter((each) => found.has(each)), ...[...found].filter((each) => !FIRST.includes(each)).sort()]);
    }, () => {});
  }, [ids.join()]);
  const tick = useTick(runs.some((run) => !hasEnded(run)) ? 10 : null);
  const charted = ids.map((id, i) => ({
    id: runs[i]?.id ?? id,
    name: plain(runs[i]?.name ?? id, 60),
    group: runs[i] ? groupOf(runs[i], by) : "",
    started: Date.parse(runs[i]?.started_at ?? runs[i]?.created_at) / 1000 || 0,
  }));
  const [pinned, pin] = usePins();
  const shownKeys = MetricFilter.chosen(keys, pinned);
  if (!ids.length) return html`<div class="head"><h1>Compare</h1></div><p class="empty">Choose two or more runs in <a href=${href("ui/runs")}>the table of runs</a> (key x), then Compare (key c).</p>`;
  const groups = [...new Set(charted.map((run) => run.group))];
  return html`
    <div class="head">
      <h1>Compare ${ids.length} runs${by && runs.length ? ` in ${groups.length} groups` : ""}</h1>
      <span class="actions">
        <label>group by <select value=${by} onChange=${(/** @type {any} */ event) => set({ by: event.target.value, x: null })}>
          <option value="">nothing</option><option value="seed">all but the seed</option><option value="tag">tag</option><option value="name">name</option>
        </select></label>
        <${CopyLink} />
      </span>
    </div>
    <${ChartTools} />
    <${MetricFilter} keys=${keys} />
    <div class="charts">
      ${shownKeys.map((key) => html`<${MetricChart} key=${key} metric=${key} runs=${charted} tick=${tick} grouped=${Boolean(by)} actions=${pin(key)} />`)}
    </div>
    ${runs.length ? html`<${Numbers} runs=${runs} charted=${charted} by=${by} />` : html`<${Missing} ...${answer} />`}
  `;
}

/** The name of a run's group. @param {any} run @param {string} by */
function groupOf(run, by) {
  if (by === "tag") return run.tags.join(" + ") || "no tag";
  if (by === "name") return run.name.replace(/[-_.]?\d+$/, "");
  if (by === "seed") {
    const { seed: _seed, ...others } = flat(run.config);
    return Object.entries(others).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(" ");
  }
  return run.id;
}

export function CopyLink() {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(location.href);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return html`<button onClick=${copy} title="The address of this page shows the same view">${done ? "Copied" : "Copy link"}</button>`;
}

/** Final numbers with intervals, and the keys in which groups differ. @param {{runs: any[], charted: any[], by: string}} props */
function Numbers({ runs, charted, by }) {
  const { data } = useLive(() => Promise.all(runs.map((run) => get(`v1/runs/${run.id}/metrics`))), { seconds: 30, again: [runs.map((run) => run.id).join()] });
  const groups = [...new Set(charted.map((run) => run.group))];
  const members = groups.map((name) => runs.map((_, i) => i).filter((i) => charted[i].group === name));
  const differing = differences(members.map(([first]) => flat(runs[first].config))).filter(([key]) => key !== "seed");
  const reward = (/** @type {number} */ i) => data?.[i]?.metrics.find((/** @type {any} */ each) => each.key === REWARD)?.value ?? null;
  return html`<section class="card scroll" tabindex="0" style=${{ marginTop: "16px" }}>
    <h2>Final numbers, and what differs</h2>
    <table>
      <thead><tr><th scope="col">${by ? "group" : "run"}</th><th scope="col">runs</th><th scope="col" class="number">reward</th>
        ${differing.map(([key]) => html`<th scope="col" key=${key} title=${key}>${key.split(".").slice(-2).join(".")}</th>`)}
      </tr></thead>
      <tbody>
        ${groups.map((name, g) => {
          const { n, mean, half } = interval(members[g].map(reward));
          const first = runs[members[g][0]];
          return html`<tr key=${name}>
            <td class="name"><i class="tag" style=${{ background: colorOf(by ? g : members[g][0]), width: "12px", height: "12px", padding: 0 }}></i> ${by && by !== "seed" ? plain(name, 200) : html`<a href=${runHref(first)}>${plain(first.name, 200)}</a>`}</td>
            <td>${members[g].length > 1 ? members[g].length : html`<${State} state=${first.state} />`}</td>
            <td class="number">${number(mean)}${half === null ? "" : ` ± ${number(half)} (n = ${n})`}</td>
            ${differing.map(([key, values]) => html`<td key=${key}>${shown(values[g])}</td>`)}
          </tr>`;
        })}
      </tbody>
    </table>
    <small>± is half of the 95 % interval of the mean (Student's t) over the runs of a group.</small>
  </section>`;
}
