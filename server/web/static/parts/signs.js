// Small signs: state of a run, progress, a sparkline, tags, problems, empty places.
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";
import { count, number, percent, plain, stateLook, words } from "../format.js";

/** Seconds after which a place says that its answer takes long. */
const PATIENCE = 5;
const SLOW = "The server takes long to answer. The page waits for it; you can go on to another page meanwhile.";

/** A sign with words: nobody needs to see its color. @param {{sign: string, tone: string, children?: any}} props */
export function Sign({ sign, tone, children }) {
  return html`<span class="state" data-tone=${tone}><span aria-hidden="true">${sign}</span>${children}</span>`;
}

/** State of a run: sign, word and color; of one that goes on, how many warnings there are. @param {{run: any}} props */
export function State({ run }) {
  const { word, ...look } = stateLook(run);
  const found = run.findings ?? [];
  const title = found.map(words).join(", ");
  return html`<span title=${title}><${Sign} ...${look}>${word}<//>
    ${found.length > 0 && look.tone !== "warn" && html` <${Sign} sign="▲" tone="warn">${found.length}<//>`}</span>`;
}

const VERDICTS = /** @type {Record<string, [string, string]>} */ ({
  pass: ["✔", "good"],
  fail: ["✖", "bad"],
  undecided: ["≈", "warn"],
});

/** A verdict as one word; the state of its run where there is none. @param {{verdict?: string|null, run: any}} props */
export function Verdict({ verdict, run }) {
  if (!verdict) return html`<${State} run=${run} />`;
  const [sign, tone] = VERDICTS[verdict];
  return html`<${Sign} sign=${sign} tone=${tone}>${verdict.toUpperCase()}<//>`;
}

/** Steps of a run, and how far it is. @param {{step: number, most: number|null|undefined}} props */
export function Progress({ step, most }) {
  if (!most) return html`<span>${count(step)} steps</span>`;
  const share = Math.min(1, step / most);
  return html`<span title=${`${step} of ${most} agent steps`}>
    ${count(step)} / ${count(most)}${" "}<small class="line">${percent(Math.floor(1000 * share) / 1000)}</small>
    <span class="bar-of" role="progressbar" aria-label="Progress" aria-valuenow=${Math.round(100 * share)}
      aria-valuemin="0" aria-valuemax="100" style=${{ display: "block" }}>
      <i style=${{ width: `${100 * share}%` }}></i></span></span>`;
}

/** A curve as large as a word. @param {{values: (number|null)[], label: string}} props */
export function Sparkline({ values, label }) {
  const points = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const known = /** @type {[number, number][]} */ (points);
  if (known.length < 2) return html`<span class="spark"></span>`;
  const heights = known.map(([, value]) => value);
  const [low, high] = [Math.min(...heights), Math.max(...heights)];
  const place = (/** @type {[number, number]} */ [i, value]) => {
    const x = (118 * i) / (values.length - 1) + 1;
    const y = 24 - (22 * (value - low)) / (high - low || 1);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  };
  const words = `${label} from ${number(heights[0])} to ${number(heights.at(-1))}`;
  return html`<svg class="spark" viewBox="0 0 120 26" role="img" aria-label=${words}>
    <path d=${`M${known.map(place).join("L")}`} />
  </svg>`;
}

/** One line of a list of facts. @param {{name: string, children?: any}} props */
export function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

/** @param {{tags: string[]}} props */
export function Tags({ tags }) {
  return tags.map((tag) => html`<span class="tag" key=${tag} title=${tag}>${tag}</span> `);
}

/** How games ended: a bar, with words below. @param {{won: number, drawn: number, lost: number}} props */
export function Outcomes({ won, drawn, lost }) {
  const whole = won + drawn + lost;
  if (!whole) return html`<small>nothing yet</small>`;
  const parts = Object.entries({ won, drawn, lost });
  const tones = /** @type {Record<string, string>} */ ({ won: "good", drawn: "idle", lost: "bad" });
  return html`<div class="split" aria-hidden="true">
      ${parts.map(([name, each]) => {
        const style = { width: `${(100 * each) / whole}%`, background: `var(--${tones[name]})` };
        return html`<i key=${name} style=${style}></i>`;
      })}
    </div>
    <small>${parts.map(([name, each]) => `${name} ${count(each)} (${percent(each / whole)})`).join(" · ")}</small>`;
}

/** What failed, and what to do. @param {{problem: import("../api.js").Problem|null}} props */
export function Failure({ problem }) {
  if (!problem) return null;
  return html`<p class="note" data-tone="bad" role="alert">${plain(problem.message)} ${problem.next}</p>`;
}

/**
 * A place for what is not there yet: loading, failed, or nothing. Show it instead of the content while there is none.
 * @param {{data: unknown, problem: import("../api.js").Problem|null, children?: any}} props
 */
export function Missing({ data, problem, children }) {
  const [slow, setSlow] = useState(false);
  const waits = data === undefined && !problem;
  useEffect(() => {
    if (!waits) return undefined;
    const timer = setTimeout(() => setSlow(true), 1000 * PATIENCE);
    return () => clearTimeout(timer);
  }, [waits]);
  if (problem) return html`<${Failure} problem=${problem} />`;
  if (waits) return html`<p class="empty">${slow ? SLOW : "Loading …"}</p>`;
  return html`<p class="empty">${children}</p>`;
}
