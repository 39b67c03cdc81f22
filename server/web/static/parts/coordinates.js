// Parallel coordinates: an axis for each key that varies and one for the value; each trial is a line through them.
import { html } from "../html.js";
import { number, shown } from "../format.js";
import { names } from "../runs.js";

const [WIDTH, HEIGHT, TOP, SIDE] = [170, 240, 34, 70];
const MOST_TICKS = 8;

/** @typedef {{name: string, ticks: [number, string][], place: (trial: any) => number|null}} Axis places from 0 to 1 */

/** The axis of a key. @param {string} name @param {string} path @param {any} parameter @returns {Axis} */
function axisOf(name, path, { values, min, max, scale }) {
  if (values) {
    const at = (/** @type {number} */ index) => (values.length > 1 ? index / (values.length - 1) : 0.5);
    const step = Math.ceil(values.length / MOST_TICKS);
    const ticks = values.flatMap((/** @type {unknown} */ value, /** @type {number} */ i) =>
      (i % step ? [] : [[at(i), typeof value === "number" ? number(value) : shown(value)]]));
    const place = (/** @type {any} */ { parameters }) => {
      const found = values.indexOf(parameters[path]);
      return found < 0 ? null : at(found);
    };
    return { name, ticks, place };
  }
  const along = scale === "log" ? Math.log : Number;
  const at = (/** @type {number} */ value) => (along(value) - along(min)) / (along(max) - along(min) || 1);
  const middle = scale === "log" ? Math.sqrt(min * max) : (min + max) / 2;
  const place = (/** @type {any} */ { parameters: { [path]: value } }) =>
    (typeof value === "number" ? Math.min(1, Math.max(0, at(value))) : null);
  return { name, ticks: [min, middle, max].map((value) => [at(value), number(value)]), place };
}

/** The axis of the value. @param {any[]} trials @returns {Axis} */
function valueAxis(trials) {
  const values = trials.filter(({ value }) => value !== null).map(({ value }) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = (/** @type {number} */ value) => (high > low ? (value - low) / (high - low) : 0.5);
  const ticks = high > low ? [low, (low + high) / 2, high] : values.slice(0, 1);
  return { name: "value", ticks: ticks.map((value) => [at(value), number(value)]),
    place: ({ value }) => (value === null ? null : at(value)) };
}

/**
 * Trials that have a value, the best ones in front and in the strongest color.
 * @param {{trials: any[], parameters: Record<string, any>, maximizes: boolean}} props
 */
export function Coordinates({ trials, parameters, maximizes }) {
  const known = trials.filter(({ value }) => value !== null);
  if (!known.length) return html`<p class="empty">No trial has a value yet.</p>`;
  const last = valueAxis(known);
  const called = names(Object.keys(parameters));
  const axes = [...Object.entries(parameters).map(([path, parameter], i) => axisOf(called[i], path, parameter)), last];
  const x = (/** @type {number} */ axis) => SIDE + axis * WIDTH;
  const y = (/** @type {number} */ place) => TOP + (1 - place) * HEIGHT;
  const goodness = (/** @type {any} */ trial) => {
    const place = last.place(trial) ?? 0;
    return maximizes ? place : 1 - place;
  };
  const ordered = [...known].sort((one, other) => goodness(one) - goodness(other)); // the best one is drawn last
  const lines = ordered.map((trial) => {
    const points = axes.map((axis, i) => [i, axis.place(trial)]).filter(([, place]) => place !== null);
    const share = Math.round(100 * goodness(trial));
    const stroke = `color-mix(in oklab, var(--accent) ${share}%, var(--faint))`;
    const path = points.map(([i, place]) => `${x(Number(i))} ${y(Number(place)).toFixed(1)}`).join("L");
    return html`<path key=${trial.number} d=${`M${path}`} style=${{ stroke, opacity: 0.25 + 0.0075 * share }}>
      <title>trial ${trial.number}: ${number(trial.value)}</title></path>`;
  });
  const [width, height] = [2 * SIDE + WIDTH * (axes.length - 1), TOP + HEIGHT + 14];
  const words = `${known.length} trials: ${axes.map((axis) => axis.name).join(", ")}`;
  return html`<div class="scroll" tabindex="0"><svg class="coordinates" viewBox=${`0 0 ${width} ${height}`}
    style=${{ width: `${width}px` }} role="img" aria-label=${words}>
    ${lines}
    ${axes.map((axis, i) => html`<g key=${axis.name + i}>
      <line x1=${x(i)} x2=${x(i)} y1=${TOP} y2=${TOP + HEIGHT} />
      <text class="name" x=${x(i)} y="14">${axis.name}</text>
      ${axis.ticks.map(([place, label]) => html`<text key=${label} x=${x(i) + 5} y=${y(place) + 4}>${label}</text>`)}
    </g>`)}
  </svg></div>`;
}
