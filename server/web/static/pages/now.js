// Now: what needs somebody, what runs, what has ended, what waits, and the newest verdicts.
import { useState } from "preact/hooks";
import { get, may } from "../api.js";
import { ago, number, plain } from "../format.js";
import { html } from "../html.js";
import { useCalm, useEvents, useGet, useLive } from "../live.js";
import { LIVE, REWARD, byReason, hasEnded, needsSomebody, pace, runHref, why } from "../runs.js";
import { href } from "../url.js";
import { signed } from "../parts/gate.js";
import { HealthLine } from "../parts/health.js";
import { Failure, Missing, Progress, Sparkline, State, Verdict } from "../parts/signs.js";

const MOST = 60;
const VERDICTS = 6;
/** Ended runs that are shown, and hours for which they are. */
const ENDED_RUNS = 10;
const HOURS = 24;

/** The runs that ended in the last hours, newest first. */
function justEnded() {
  const since = new Date(Date.now() - 3_600_000 * HOURS).toISOString();
  const order = { order_by: "finished_at desc", page_size: 200, metrics: [REWARD] };
  return get("v1/runs", { filter: `finished_at >= ${since}`, ...order });
}

export default function Now() {
  const [changes, setChanges] = useState(0);
  const changed = () => setChanges((old) => old + 1);
  useEvents("v1/events:stream", changed, changed);
  const calm = useCalm(changes);
  const lively = { filter: LIVE, order_by: "updated_at desc", page_size: MOST, metrics: [REWARD] };
  const live = useGet("v1/runs", lively, { seconds: 5, again: [calm] });
  const over = useLive(justEnded, { seconds: 30, again: [calm] });
  const runs = /** @type {any[]} */ (live.data?.runs ?? []);
  const ended = /** @type {any[]} */ (over.data?.runs ?? []);
  const needy = [...runs, ...ended].filter(needsSomebody);
  const running = runs.filter((run) => !needy.includes(run) && run.state !== "QUEUED");
  const queued = runs.filter((run) => !needy.includes(run) && run.state === "QUEUED");
  const start = may("run")
    ? html`<a href=${href("ui/new")}>Start a run</a>, or type <code>ludus learn CONFIG</code>.`
    : "Somebody with a token that may start runs has to begin one.";
  return html`<div class="head"><h1>Now</h1></div>
    <${Failure} problem=${live.problem} />
    ${needy.length > 0 && html`<section class="card"><h2>Needs you (${needy.length})</h2>
      <${Reasons} runs=${needy} />
    </section>`}
    <div class="columns">
      <section class="card"><h2>Running (${running.length})</h2>
        ${running.length
          ? html`<${Running} runs=${running} />`
          : html`<${Missing} ...${live}>Nothing runs. ${start}<//>`}
      </section>
      <section class="card"><h2>Ended in ${HOURS} hours (${ended.length})</h2>
        ${ended.length
          ? html`<${Ended} runs=${ended.slice(0, ENDED_RUNS)} />`
          : html`<${Missing} ...${over}>No run has ended.<//>`}
        ${ended.length > ENDED_RUNS && html`<a href=${href("ui/runs", { order: "finished_at desc" })}>All of them</a>`}
      </section>
      ${queued.length > 0 && html`<section class="card"><h2>Waiting for a worker (${queued.length})</h2>
        <${Reasons} runs=${queued} />
      </section>`}
      <${Verdicts} again=${calm} />
    </div>`;
}

/** Names that are shown of runs with the same reason. */
const NAMES = 4;

/** Why runs wait or need somebody: a line for each reason. @param {{runs: any[]}} props */
function Reasons({ runs }) {
  return html`<table class="stack"><tbody>
    ${byReason(runs).map(({ why: reason, runs: members }) => {
      const [first] = members;
      const tab = first.state === "FAILED" ? "logs" : first.findings?.length ? "" : "simulators";
      const names = members.slice(0, NAMES).map((run, i) =>
        html`${i ? ", " : ""}<a key=${run.id} href=${runHref(run)}>${plain(run.name, 120)}</a>`);
      const more = members.length > NAMES && ` and ${members.length - NAMES} more`;
      const sick = !hasEnded(first) && first.findings?.length > 0 && members.length === 1;
      return html`<tr key=${first.id}>
        <td class="wide"><${State} run=${first} /> ${members.length > 1 && html`<b>${members.length} runs:</b> `}
          ${names}${more}<br />
          <span class="wrap">${sick ? html`<${HealthLine} run=${first} />` : plain(reason)}</span></td>
        <td class="small" style=${{ whiteSpace: "nowrap" }}>${ago(first.queued_at ?? first.updated_at)}</td>
        <td class="small" style=${{ whiteSpace: "nowrap" }}>
          ${first.state !== "QUEUED" && tab && html`<a href=${runHref(first, tab)}>${tab}</a>`}</td>
      </tr>`;
    })}
  </tbody></table>`;
}

/** @param {{runs: any[]}} props */
function Ended({ runs }) {
  return html`<table class="stack"><tbody>
    ${runs.map((run) => html`<tr key=${run.id}>
      <td class="name"><a href=${runHref(run)}>${plain(run.name, 200)}</a> <${State} run=${run} /><br />
        <small class="wrap">${run.findings?.length ? html`<${HealthLine} run=${run} />` : plain(why(run))}</small></td>
      <td class="small number">${rewardOf(run)}<br />${ago(run.finished_at)}</td>
    </tr>`)}
  </tbody></table>`;
}

/** The newest reward of a run in words. @param {any} run */
function rewardOf({ metrics, kind }) {
  if (kind === "match" || kind === "evaluate") return "";
  const reward = metrics?.[REWARD] ?? null;
  return reward === null ? "no episode yet" : `reward ${number(reward)}`;
}

/** @param {{runs: any[]}} props */
function Running({ runs }) {
  const ids = runs.slice(0, 30).map((run) => run.id);
  const { data } = useGet("v1/series", { runs: ids, keys: REWARD, points: 40 }, { seconds: 10 });
  return html`<table class="stack"><tbody>
    ${runs.map((run) => {
      const series = data?.series.find((/** @type {any} */ each) => each.run_id === run.id);
      return html`<tr key=${run.id}>
        <td class="name">
          <a href=${runHref(run)}>${plain(run.name, 200)}</a>${" "}
          ${run.state !== "RUNNING" && html`<${State} run=${run} />`}
          <br /><small>${pace(run) || plain(why(run))}</small></td>
        <td>
          ${series && html`<${Sparkline} values=${series.values} label=${`Reward of ${run.name}`} />`}<br />
          <small>${rewardOf(run)}</small></td>
        <td><${Progress} step=${run.step} most=${run.max_steps} /></td>
      </tr>`;
    })}
  </tbody></table>`;
}

/** The newest gates and evaluations, with their results. */
async function newestVerdicts() {
  const queries = ["match", "evaluate"].map((kind) => `kind = ${kind}`);
  const pages = await Promise.all(
    queries.map((filter) => get("v1/runs", { filter, order_by: "created_at desc", page_size: VERDICTS })),
  );
  const runs = pages.flatMap((page) => page.runs);
  const newest = runs.sort((one, other) => other.created_at.localeCompare(one.created_at)).slice(0, VERDICTS);
  const resultOf = (/** @type {any} */ run) => get(`v1/runs/${run.id}/result`).catch(() => null);
  return Promise.all(newest.map(async (run) => ({ run, result: await resultOf(run) })));
}

/** @param {{again: number}} props */
function Verdicts({ again }) {
  const answer = useLive(newestVerdicts, { seconds: 15, again: [again] });
  if (!answer.data?.length) return html`<${Failure} problem=${answer.problem} />`;
  return html`<section class="card"><h2>Verdicts</h2><table class="stack"><tbody>
    ${answer.data.map(({ run, result }) => html`<tr key=${run.id}>
      <td><${Verdict} verdict=${result?.result?.verdict} run=${run} /></td>
      <td class="name"><a href=${runHref(run)}>${plain(run.name, 200)}</a><br />
        <small>${summary(result?.result, run)}</small></td>
      <td class="small number">${ago(run.finished_at ?? run.updated_at)}</td>
    </tr>`)}
  </tbody></table></section>`;
}

/** A result in a few words. @param {any} result @param {any} run */
function summary(result, run) {
  if (!result) return plain(why(run));
  if (result.kind === "match") {
    const { elo, elo_low: low, elo_high: high, games } = result;
    const lead = elo === null ? "" : `${signed(elo)} Elo [${signed(low, "−∞")}, ${signed(high)}] · `;
    return `${lead}${games} games`;
  }
  return `return ${number(result.mean)} · ${result.episodes} episodes`;
}
