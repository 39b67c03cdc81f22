// What pages say about a run, from its fields in the API.
import { ago, count, duration, words } from "./format.js";
import { href } from "./url.js";

export const REWARD = "Environment/Cumulative Reward";
export const LENGTH = "Environment/Episode Length";
export const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
/** The filter of lists for runs that have not ended. */
export const LIVE = ENDED.map((state) => `state != ${state}`).join(" AND ");

/** A text of a filter. @param {string} words */
export function quoted(words) {
  return `"${words.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;
}

/** The address of a run's page. @param {{id: string}} run @param {string} [tab] */
export function runHref(run, tab = "") {
  return href(`ui/runs/${run.id}${tab && `/${tab}`}`);
}

/** The run as charts know it. @param {any} run @returns {import("./metrics.js").ChartedRun[]} */
export function charted(run) {
  return [{ id: run.id, name: run.name, group: "", started: Date.parse(run.started_at ?? run.created_at) / 1000 }];
}

/** @param {any} run */
export function hasEnded(run) {
  return ENDED.includes(run.state);
}

/** The last two keys of a dotted path: what a column is called. @param {string} path */
export function lastKeys(path) {
  return path.split(".").slice(-2).join(".");
}

/** What keys are called beside each other: their last part where it is theirs alone. @param {string[]} paths */
export function names(paths) {
  const ends = paths.map((path) => path.slice(path.lastIndexOf(".") + 1));
  return paths.map((path, i) => (ends.indexOf(ends[i]) === ends.lastIndexOf(ends[i]) ? ends[i] : lastKeys(path)));
}

/** Why a run is in its state, as a sentence: what it waits for, or why it stopped. @param {any} run */
export function why(run) {
  if (run.waits_for) return sentence(run.waits_for);
  if (run.stop_detail) return sentence(run.stop_detail) + (run.stop_reason ? ` (${words(run.stop_reason)})` : "");
  if (run.intent) return `Asked to ${run.intent}; it does so soon.`;
  switch (run.state) {
    case "QUEUED":
      return "It waits for its turn on a worker.";
    case "RUNNING":
      return `Running since ${ago(run.started_at)}${run.attempt > 1 ? `, attempt ${run.attempt}` : ""}.`;
    case "RECOVERING":
      return "Its worker was lost; another one continues from the newest checkpoint.";
    case "SUCCEEDED":
      return `Done after ${duration(seconds(run.started_at ?? run.created_at, run.finished_at))}.`;
    default:
      return "";
  }
}

/** @param {string} from RFC 3339 @param {string} to */
function seconds(from, to) {
  return (Date.parse(to) - Date.parse(from)) / 1000;
}

/** A text with a capital and a full stop. @param {string} text */
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/**
 * Runs that are in their state for the same reason, together: sixteen that wait for one slot are one line.
 * @param {any[]} runs @returns {{why: string, runs: any[]}[]} in the order of their first ones
 */
export function byReason(runs) {
  const groups = new Map();
  for (const run of runs) {
    const reason = why(run).replaceAll(/\d+/g, "#"); // they have waited for different times
    groups.set(reason, [...(groups.get(reason) ?? []), run]);
  }
  return [...groups.values()].map((members) => ({ why: why(members[0]), runs: members }));
}

/** Speed and end of a running run as words. @param {any} run */
export function pace(run) {
  const parts = [];
  if (run.steps_per_second) parts.push(`${count(run.steps_per_second)} steps/s`);
  if (run.finishes_at) parts.push(`done ${ago(run.finishes_at)}`);
  if (run.state === "RUNNING" && run.simulators !== undefined && run.simulators !== null) {
    parts.push(run.simulators === 1 ? "1 simulator" : `${run.simulators} simulators`);
  }
  return parts.join(" · ");
}

/** Milliseconds for which a run may wait until a person is asked for: games take a while to start. */
const PATIENCE = 60_000;

/** Whether a person has to act. Failures count for a day. @param {any} run */
export function needsSomebody(run) {
  if (!hasEnded(run) && run.findings?.length) return true;
  if (run.state === "FAILED") return Date.now() - Date.parse(run.finished_at) < 86_400_000;
  const alone = Boolean(run.waits_for) && run.state !== "QUEUED"; // a queued one waits for its turn
  return run.needs_action || (alone && Date.now() - Date.parse(run.updated_at) > PATIENCE);
}
