// Runs: the table, filtered and ordered by the server; columns, metrics and differing keys of choice; a selection.
import { useEffect, useState } from "preact/hooks";
import { useKeys } from "../app.js";
import { may } from "../api.js";
import { STATES, STOPPED, ago, moment, number, plain, shown } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { useCalm, useEvents, useGet, useLive } from "../live.js";
import { curves, meaningOf } from "../metrics.js";
import { REWARD, lastKeys, pace, quoted, runHref, why } from "../runs.js";
import { flag, go, href, list, set, text } from "../url.js";
import { Bulk } from "../parts/actions.js";
import { Failure, Missing, Progress, Sparkline, State, Tags } from "../parts/signs.js";
import { Form, dialog } from "../parts/dialog.js";

/** Rows of a page: never more are in the document. */
const ROWS = 100;
/** Differing keys that the table has columns for. */
const MOST_KEYS = 8;
const NEWEST = "created_at desc";
const ORDERS = {
  [NEWEST]: "newest first",
  "updated_at desc": "last changed first",
  "name asc": "by name",
  "step desc": "most steps first",
};

/** The filter of the API that the address asks for. */
function filter() {
  const conditions = [];
  if (text("state") === STOPPED) conditions.push("state = SUCCEEDED AND stop_reason = user");
  else if (text("state")) conditions.push(`state = ${text("state")}`);
  if (text("tag")) conditions.push(`tags = ${quoted(text("tag"))}`);
  if (text("q")) conditions.push(`name = ${quoted(`${text("q")}*`)}`);
  if (text("filter")) conditions.push(text("filter"));
  return conditions.join(" AND ");
}

export default function Runs() {
  const metrics = list("metrics").length ? list("metrics") : [REWARD, `${REWARD}@max`];
  const order = text("order", NEWEST);
  const sorts = metrics.includes(text("sort")) ? text("sort") : metrics[0]; // the API sorts by the first metric
  const tokens = list("pages");
  const narrow = (/** @type {Record<string, unknown>} */ parameters) => set({ ...parameters, pages: null });
  const [current, setCurrent] = useState(""); // the id: rows move while new runs come
  const page = tokens.at(-1) ?? "";
  const asked = [sorts, ...metrics.filter((metric) => metric !== sorts)];
  const query = { filter: filter(), order_by: order, metrics: asked, page_size: ROWS, page_token: page };
  const [changes, setChanges] = useState(0);
  const answer = useGet("v1/runs", query, { seconds: 10, again: [useCalm(changes)] });
  const changed = () => setChanges((old) => old + 1);
  useEvents("v1/events:stream", changed, changed);
  const runs = answer.data?.runs ?? [];
  const selected = list("sel");
  const toggle = (/** @type {string} */ id) =>
    set({ sel: selected.includes(id) ? selected.filter((each) => each !== id) : [...selected, id] });
  const compare = () => selected.length > 1 && go(href("ui/compare", { runs: selected }));
  const walk = (/** @type {number} */ by) => {
    const row = runs.findIndex((/** @type {any} */ run) => run.id === current) + by;
    setCurrent(runs[Math.max(0, Math.min(runs.length - 1, row))]?.id ?? "");
  };
  useEffect(() => document.querySelector("tr.current")?.scrollIntoView({ block: "nearest" }), [current]);
  useKeys({
    j: ["next row", () => walk(1)],
    k: ["row before", () => walk(-1)],
    x: ["select the row", () => current && toggle(current)],
    Enter: ["open the row", () => current && go(runHref({ id: current }))],
    c: ["compare the selected ones", compare],
  });
  const chosen = selected.length;
  const orders = { ...ORDERS, "metric desc": `highest ${sorts} first`, "metric asc": `lowest ${sorts} first` };
  const known = order in orders ? orders : { ...orders, [order]: order };
  const all = runs.map((/** @type {any} */ run) => run.id);
  const whole = all.length > 0 && all.every((/** @type {string} */ id) => selected.includes(id));
  const toggleAll = () => set({ sel: whole ? null : [...new Set([...selected, ...all])] });
  const ended = () => (set({ sel: null }), changed());
  const first = may("run") ? html`<a href=${href("ui/new")}>Start the first one.</a>` : "";
  const next = answer.data?.next_page_token;
  return html`<div class="head"><h1>Runs</h1>
      <span class="actions">
        ${chosen > 0 && html`<button onClick=${() => set({ sel: null })}>Clear ${chosen} selected</button>`}
        <${Bulk} ids=${selected} reload=${ended} />
        <button class="main" disabled=${chosen < 2} onClick=${compare}>Compare ${chosen > 1 ? chosen : ""}</button>
      </span></div>
    <div class="row" role="search" style=${{ marginBottom: "12px" }}>
      <input type="search" placeholder="Name begins with" aria-label="Name begins with" value=${text("q")}
        onChange=${withValue((q) => narrow({ q }))} />
      <select aria-label="State" value=${text("state")} onChange=${withValue((state) => narrow({ state }))}>
        <option value="">all states</option>
        ${[...Object.keys(STATES), STOPPED].map((each) => html`<option key=${each}>${each}</option>`)}
      </select>
      <input type="text" placeholder="tag" aria-label="Tag" size="12" value=${text("tag")}
        onChange=${withValue((tag) => narrow({ tag }))} />
      <input type="text" class="grow" placeholder="filter, as in: kind = match AND step > 1000" aria-label="Filter"
        value=${text("filter")} onChange=${withValue((words) => narrow({ filter: words }))} />
      <select aria-label="Order" value=${order}
        onChange=${withValue((by) => narrow({ order: by === NEWEST ? null : by }))}>${choices(known)}</select>
      <button onClick=${() => chooseMetrics(metrics)}>Metrics …</button>
      <label><input type="checkbox" checked=${flag("diff")} onChange=${() => set({ diff: !flag("diff") })} />${" "}
        ${"differing keys"}</label>
    </div>
    <${Failure} problem=${answer.problem} />
    ${runs.length
      ? html`<${Table} ...${{ runs, metrics, selected, toggle, toggleAll, whole, current, order, sorts, narrow }} />`
      : html`<${Missing} ...${answer}>
          ${filter() ? "No run fits this filter." : html`There are no runs yet. ${first}`}<//>`}
    <div class="row" style=${{ marginTop: "12px" }}>
      ${page && html`<button onClick=${() => set({ pages: tokens.slice(0, -1) })}>← Newer page</button>`}
      ${next && html`<button onClick=${() => set({ pages: [...tokens, next] })}>Next page →</button>`}
    </div>`;
}

/**
 * The head of a column by which the table can be ordered: a press orders by it, another one the other way round.
 * @param {{field: string, name: string, order: string, narrow: (parameters: any) => void, metric?: string,
 *   active?: boolean, title?: string}} props `active`: for a metric, whether it is the one that orders
 */
function Head({ field, name, order, narrow, metric, active = true, title }) {
  const [by, way] = order.split(" ");
  const now = by === field && active ? way : "";
  const first = field === "name" || field === "state" ? "asc" : "desc";
  const next = `${field} ${now === "" ? first : now === "asc" ? "desc" : "asc"}`;
  const press = () => narrow({ order: next === NEWEST ? null : next, ...(metric && { sort: metric }) });
  const sorted = now === "asc" ? "ascending" : now === "desc" ? "descending" : undefined;
  return html`<th scope="col" class=${field === "metric" || field === "created_at" ? "number" : ""} title=${title}
    aria-sort=${sorted}><button onClick=${press}>${name}${now && (now === "asc" ? " ▴" : " ▾")}</button></th>`;
}

/** @param {any} props */
function Table({ runs, metrics, selected, toggle, toggleAll, whole, current, order, sorts, narrow }) {
  const differing = useDiffering(flag("diff") ? runs : []);
  const curves = useCurves(runs);
  const head = (/** @type {string} */ field, /** @type {string} */ name) =>
    html`<${Head} ...${{ field, name, order, narrow }} />`;
  return html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}>
    <table class="cards">
      <thead><tr>
        <th scope="col"><input type="checkbox" aria-label="Select all of this page" checked=${whole}
          onChange=${toggleAll} /></th>
        ${head("state", "state")}${head("name", "name")}<th scope="col">curve of the reward</th>
        ${head("step", "progress")}
        ${metrics.map((/** @type {string} */ each) => {
          const title = [each, meaningOf(each.split("@")[0])].filter(Boolean).join(": ");
          const column = { field: "metric", name: short(each), metric: each, active: each === sorts, title };
          return html`<${Head} key=${each} ...${{ ...column, order, narrow }} />`;
        })}
        ${differing.map(({ path }) => html`<th scope="col" key=${path} title=${path}>${lastKeys(path)}</th>`)}
        <th scope="col">tags</th>${head("created_at", "created")}
      </tr></thead>
      <tbody>
        ${runs.map((/** @type {any} */ run, /** @type {number} */ i) => html`<tr key=${run.id}
          aria-selected=${selected.includes(run.id)} class=${run.id === current ? "current" : ""}>
          <td><input type="checkbox" aria-label=${`Select ${run.name}`} checked=${selected.includes(run.id)}
            onChange=${() => toggle(run.id)} /></td>
          <td><${State} run=${run} /></td>
          <td class="name">
            <a href=${runHref(run)}>${plain(run.name, 200)}</a>${" "}
            ${run.kind !== "train" && html`<span class="tag">${run.kind}</span>`}<br />
            <small class="line" title=${plain(why(run), 600)}>${plain(pace(run) || why(run), 300)}</small></td>
          <td>${curves.has(run.id) &&
            html`<${Sparkline} values=${curves.get(run.id)} label=${`Reward of ${run.name}`} />`}</td>
          <td><${Progress} step=${run.step} most=${run.max_steps} /></td>
          ${metrics.map((/** @type {string} */ each) =>
            html`<td class="number" key=${each} data-name=${short(each)}>${number(run.metrics[each])}</td>`)}
          ${differing.map(({ path, values }) => html`<td key=${path} data-name=${lastKeys(path)}>${
            shown(values[i])}</td>`)}
          <td><${Tags} tags=${run.tags} /></td>
          <td class="number" data-name="created" title=${moment(run.created_at)}>${ago(run.created_at)}</td>
        </tr>`)}
      </tbody></table></div>`;
}

/** The curves of the reward, by run. @param {any[]} runs @returns {Map<string, (number|null)[]>} */
function useCurves(runs) {
  const ids = runs.filter((run) => run.step > 0).map((run) => run.id);
  const when = { seconds: 30, again: [ids.join()], wanted: ids.length > 0 };
  const { data } = useLive(() => curves(ids, [REWARD], { points: 40 }), when);
  return new Map((data ?? []).map((/** @type {any} */ each) => [each.run_id, each.values]));
}

/** A metric in few words. @param {string} metric */
function short(metric) {
  const [name, which] = metric.split("@");
  return `${name.replace("Environment/", "").replace("Cumulative Reward", "Reward")}${which ? ` (${which})` : ""}`;
}

/**
 * Keys of the configuration in which runs differ, with the value of each run; first those that all of them have.
 * @param {any[]} runs @returns {{path: string, values: unknown[]}[]}
 */
function useDiffering(runs) {
  const ids = runs.map((run) => run.id).join();
  const query = { runs: runs.map((run) => run.id) };
  const { data } = useGet("v1/runs:compare", query, { seconds: null, wanted: runs.length > 1 });
  if (data?.runs.map((/** @type {any} */ run) => run.id).join() !== ids) return [];
  const differing = /** @type {{path: string, values: unknown[]}[]} */ (data.differing);
  const everywhere = differing.filter(({ path, values }) => path !== "seed" && !values.includes(null));
  return [...everywhere, ...differing.filter(({ values }) => values.includes(null))].slice(0, MOST_KEYS);
}

/** @param {string[]} metrics */
function chooseMetrics(metrics) {
  dialog("Metrics of the table", () => {
    const [lines, setLines] = useState(metrics.join("\n"));
    const chosen = lines.split("\n").map((each) => each.trim()).filter(Boolean);
    const save = async () => set({ metrics: chosen, order: null, sort: null, pages: null });
    const extremes = html`with <code>@max</code> or <code>@min</code> the highest or lowest one`;
    const order = "The heads of the columns order the table.";
    return html`<${Form} action="Show them" carryOut=${save}>
      <p>One for each line: <code>[BEHAVIOR:]KEY</code>, the newest value; ${extremes}. ${order}</p>
      <textarea class="code" style=${{ minHeight: "140px" }} aria-label="Metrics" value=${lines}
        onInput=${withValue(setLines)}></textarea>
    <//>`;
  });
}
