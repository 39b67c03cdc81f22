// Small signs: state of a run, progress, a sparkline, tags, problems, empty places.
import { useEffect, useState } from "preact/hooks";
import { html } from "../html.js";
import { count, number, percent, plain, stateLook } from "../format.js";

/** Seconds after which a place says that its answer takes long. */
const PATIENCE = 5;
const SLOW = "The server takes long to answer. The page waits for it; you can go on to another page meanwhile.";

/** State of a run: sign, word and color. @param {{state: string}} props */
export function State({ state }) {
  const { sign, tone } = stateLook(state);
  return html`<span class="state" data-tone=${tone}><span aria-hidden="true">${sign}</span>${state}</span>`;
}

/** A verdict as one word. @param {{verdict: string|null|undefined}} props */
export function Verdict({ verdict }) {
  const [sign, tone] = { pass: ["✔", "good"], fail: ["✖", "bad"], undecided: ["≈", "warn"] }[verdict ?? ""] ?? ["◔", "busy"];
  return html`<span class="state" data-tone=${tone}><span aria-hidden="true">${sign}</span>${(verdict ?? "playing").toUpperCase()}</span>`;
}

/** Steps of a run, and how far it is. @param {{step: number, most: number|null|undefined}} props */
export function Progress({ step, most }) {
  if (!most) return html`<span>${count(step)} steps</span>`;
  const share = Math.min(1, step / most);
  return html`<span title=${`${step} of ${most} agent steps`}>
    ${count(step)} / ${count(most)} <small>${percent(Math.floor(1000 * share) / 1000)}</small>
    <span class="bar-of" role="progressbar" aria-valuenow=${Math.round(100 * share)} aria-valuemin="0" aria-valuemax="100" aria-label="Progress" style=${{ display: "block" }}>
      <i style=${{ width: `${100 * share}%` }}></i>
    </span>
  </span>`;
}

/** A curve as large as a word. @param {{values: (number|null)[], label: string}} props */
export function Sparkline({ values, label }) {
  const known = /** @type {[number, number][]} */ (values.map((value, i) => [i, value]).filter(([, value]) => value !== null));
  if (known.length < 2) return html`<span class="spark"></span>`;
  const [low, high] = [Math.min(...known.map(([, value]) => value)), Math.max(...known.map(([, value]) => value))];
  const place = ([i, value]) =>
    `${((118 * i) / (values.length - 1) + 1).toFixed(1)} ${(24 - (22 * (value - low)) / (high - low || 1)).toFixed(1)}`;
  return html`<svg class="spark" viewBox="0 0 120 26" role="img" aria-label=${`${label} from ${number(known[0][1])} to ${number(known.at(-1)?.[1])}`}>
    <path d=${`M${known.map(place).join("L")}`} />
  </svg>`;
}

/** @param {{tags: string[]}} props */
export function Tags({ tags }) {
  return tags.map((tag) => html`<span class="tag" key=${tag} title=${tag}>${tag}</span> `);
}

/** Parts of a whole as a bar, with words below. @param {{parts: [string, number, string][]}} props name, number, color */
export function Split({ parts }) {
  const whole = parts.reduce((sum, [, each]) => sum + each, 0);
  if (!whole) return html`<small>nothing yet</small>`;
  return html`<div class="split" aria-hidden="true">
      ${parts.map(([name, each, color]) => html`<i key=${name} style=${{ width: `${(100 * each) / whole}%`, background: color }}></i>`)}
    </div>
    <small>${parts.map(([name, each]) => `${name} ${count(each)} (${percent(each / whole)})`).join(" · ")}</small>`;
}

/** What failed, and what to do. @param {{problem: import("../api.js").Problem|null}} props */
export function Failure({ problem }) {
  if (!problem) return null;
  return html`<p class="note" data-tone="bad" role="alert">${plain(problem.message)} ${problem.next}</p>`;
}

/**
 * A place for what is not there yet: loading, failed, or nothing. Show it instead of the content while `data` is missing.
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
