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

/**
 * The ticks of an axis, each as short as it can be while none reads as its neighbour: with more digits, and where these
 * would be too many, as the distance from the first.
 * @param {(number|null)[]} values null: without a text @param {(value: number) => string} [usually]
 */
export function ticks(values, usually = number) {
  const known = /** @type {number[]} */ (values.filter((value) => value !== null));
  const texts = (/** @type {(value: number) => string} */ show) =>
    values.map((value) => (value === null ? "" : show(value)));
  const distinct = (/** @type {string[]} */ all) => new Set(all.filter(Boolean)).size === known.length;
  const usual = texts(usually);
  if (distinct(usual)) return usual;
  for (const digits of [5, 6, 7]) {
    const longer = texts((value) => trimmed(value.toPrecision(digits)).replace("-", "−"));
    if (distinct(longer) && longer.every((text) => text.length <= MOST_OF_TICK)) return longer;
  }
  return texts((value) => (value === known[0] ? usually(value) : `+${number(value - known[0])}`));
}

/** Characters for which an axis has room. */
const MOST_OF_TICK = 8;

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

/** Word for the state of a run that was stopped on request, and keeps what it has learned. */
export const STOPPED = "STOPPED";

/**
 * Sign, tone and word of a run's state. One that ended well shows if it learned nothing, or was stopped before its end.
 * @param {{state: string, stop_reason?: string|null, findings?: string[]}} run
 * @returns {{sign: string, tone: string, word: string}}
 */
export function stateLook({ state, stop_reason: reason, findings = [] }) {
  if (state === "SUCCEEDED" && findings.length) return { sign: "▲", tone: "warn", word: "ended, with warnings" };
  if (state === "SUCCEEDED" && reason === "user") return { sign: "◼", tone: "idle", word: STOPPED };
  const [sign, tone] = STATES[/** @type {keyof typeof STATES} */ (state)] ?? ["?", "idle"];
  return { sign, tone, word: state };
}

/** A code of the API as words: `simulator_gone` is "simulator gone". @param {string} code */
export function words(code) {
  return code.replaceAll("_", " ");
}

/** Fields of a log that are the same in all of its lines. */
const OF_THE_FILE = ["run_id", "attempt", "worker_id", "process"];

/** A line of a log, which is a JSON object, as time, level, words and the rest. @param {string} line */
export function logLine(line) {
  if (!line.startsWith("{")) return line;
  try {
    const { timestamp, level, event, message, exception, ...rest } = JSON.parse(line);
    const own = Object.entries(rest).filter(([key]) => !OF_THE_FILE.includes(key));
    const facts = own.map(([key, value]) => `${key}=${shown(value)}`).join(" ");
    const told = message ?? words(String(event));
    const head = [timestamp && clock(timestamp), (level ?? "").padEnd(7), told].filter(Boolean).join("  ");
    return `${head}${facts && `  ${facts}`}${exception ? `\n${exception}` : ""}`;
  } catch {
    return line; // the first or last one of a part may be cut
  }
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
