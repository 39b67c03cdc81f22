// Numbers, times and states as texts for people. Pure functions; times are in seconds, `now` can be given for tests.

/** A size in three digits, with a unit. @param {number} size 0 or more @param {number} base @param {string[]} units */
function scaled(size, base, units) {
  let unit = 0;
  while (size >= base - 0.5 && unit < units.length - 1) {
    size /= base;
    unit += 1;
  }
  return trimmed(size.toFixed(unit === 0 || size >= 99.95 ? 0 : 1)) + units[unit];
}

/** A count in three digits: 950, 1.2 k, 4.1 M. @param {number|null|undefined} value */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return (value < 0 ? "−" : "") + scaled(Math.abs(value), 1000, ["", " k", " M", " G", " T"]);
}

/** A measured value in four significant digits. @param {number|null|undefined} value */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(2) : trimmed(value.toPrecision(size >= 1000 ? 6 : 4));
  return text.replace("-", "−");
}

/** @param {string} text */
function trimmed(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

/** Bytes with a binary unit. @param {number|null|undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
}

/** A share as percent. @param {number|null|undefined} value 0 to 1 */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${trimmed((100 * value).toFixed(1))} %`;
}

/** A duration in its two largest units. @param {number|null|undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const parts = [
    [Math.floor(whole / 86400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "min"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([size]) => size !== 0);
  if (first < 0) return "0 s";
  const text = parts.slice(first, first + 2).filter(([size]) => size !== 0);
  return text.map(([size, unit]) => `${size} ${unit}`).join(" ");
}

/**
 * How long ago, or in what time, something is. @param {string|null|undefined} time RFC 3339 @param {number} [now] ms
 */
export function ago(time, now = Date.now()) {
  if (!time) return "never";
  const seconds = (now - Date.parse(time)) / 1000;
  if (Math.abs(seconds) < 1.5) return "now";
  const text = duration(Math.abs(seconds)).split(" ").slice(0, 2).join(" ");
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** Date and time in the reader's zone. @param {string|null|undefined} time RFC 3339 */
export function moment(time) {
  if (!time) return "–";
  return new Date(time).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
}

/** Time of the day in the reader's zone. @param {string|number} time */
export function clock(time) {
  return new Date(time).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** Each state has a sign beside its word, so that nobody needs to see its color. */
export const STATES = {
  CREATED: ["○", "idle"], QUEUED: ["◷", "idle"], STARTING: ["◔", "busy"], RUNNING: ["▶", "busy"],
  RECOVERING: ["↻", "warn"], PAUSING: ["❚❚", "warn"], PAUSED: ["❚❚", "warn"], STOPPING: ["◼", "busy"],
  SUCCEEDED: ["✔", "good"], FAILED: ["✖", "bad"], CANCELLED: ["⊘", "idle"],
};

/** Sign and tone of a state. @param {string} state @returns {{sign: string, tone: string}} */
export function stateLook(state) {
  const [sign, tone] = STATES[/** @type {keyof typeof STATES} */ (state)] ?? ["?", "idle"];
  return { sign, tone };
}

/** A value of a configuration as one line. @param {unknown} value */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  return plain(typeof value === "object" ? JSON.stringify(value) : String(value));
}

/** Control characters, and those that reorder or hide what follows. */
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A text without characters that reorder or hide what follows, at most `limit` long. @param {string} text */
export function plain(text, limit = 2000) {
  const safe = text.replace(UNSAFE, "\ufffd");
  return safe.length > limit ? `${safe.slice(0, limit)}…` : safe;
}
