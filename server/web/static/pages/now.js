// Now: what needs somebody, what runs, and the newest verdicts.
import { useState } from "preact/hooks";
import { get, may } from "../api.js";
import { ago, number, plain } from "../format.js";
import { html } from "../html.js";
import { useCalm, useEvents, useGet, useLive } from "../live.js";
import { LIVE, REWARD, needsSomebody, pace, runHref, why } from "../runs.js";
import { href } from "../url.js";
import { signed } from "../parts/gate.js";
import { Failure, Missing, Progress, Sparkline, State, Verdict } from "../parts/signs.js";

const MOST = 60;
const VERDICTS = 6;

export default function Now() {
  const [changes, setChanges] = useState(0);
  const changed = () => setChanges((old) => old + 1);
  useEvents("v1/events:stream", changed, changed);
  const calm = useCalm(changes);
  const lively = { filter: LIVE, order_by: "updated_at desc", page_size: MOST, metrics: [REWARD] };
  const live = useGet("v1/runs", lively, { seconds: 5, again: [calm] });
  const over = { filter: "state = FAILED", order_by: "finished_at desc", page_size: 10 };
  const failed = useGet("v1/runs", over, { seconds: 30, again: [calm] });
  const runs = /** @type {any[]} */ (live.data?.runs ?? []);
  const needy = [...runs, ...(failed.data?.runs ?? [])].filter(needsSomebody);
  const running = runs.filter((run) => !needy.includes(run) && run.state !== "QUEUED");
  const queued = runs.filter((run) => !needy.includes(run) && run.state === "QUEUED");
  const start = may("run")
    ? html`<a href=${href("ui/new")}>Start a run</a>, or type <code>ludus learn CONFIG</code>.`
    : "Somebody with a token that may start runs has to begin one.";
  return html`<div class="head"><h1>Now</h1></div>
    <${Failure} problem=${live.problem} />
    ${needy.length > 0 && html`<section class="card">
      <h2>Needs somebody (${needy.length})</h2>
      <table class="stack"><tbody>
        ${needy.map((run) => {
          const tab = run.state === "FAILED" ? "logs" : "simulators";
          return html`<tr key=${run.id}>
            <td><${State} state=${run.state} /></td>
            <td class="name"><a href=${runHref(run)}>${plain(run.name, 200)}</a></td>
            <td class="wrap">${plain(why(run))}</td>
            <td class="small" style=${{ whiteSpace: "nowrap" }}>${ago(run.updated_at)}</td>
            <td class="small" style=${{ whiteSpace: "nowrap" }}><a href=${runHref(run, tab)}>${tab}</a></td>
          </tr>`;
        })}
      </tbody></table></section>`}
    <div class="columns">
      <section class="card"><h2>Running (${running.length})</h2>
        ${running.length
          ? html`<${Running} runs=${running} />`
          : html`<${Missing} ...${live}>Nothing runs. ${start}<//>`}
      </section>
      <section class="card"><h2>Verdicts</h2><${Verdicts} again=${calm} /></section>
      ${queued.length > 0 && html`<section class="card"><h2>Waiting for a worker (${queued.length})</h2>
        <table class="stack"><tbody>
          ${queued.map((run) => html`<tr key=${run.id}>
            <td class="name"><a href=${runHref(run)}>${plain(run.name, 200)}</a><br />
              <small class="wrap">${plain(why(run))}</small></td>
            <td class="small number">${ago(run.queued_at)}</td>
          </tr>`)}
        </tbody></table></section>`}
    </div>`;
}

/** @param {{runs: any[]}} props */
function Running({ runs }) {
  const ids = runs.slice(0, 30).map((run) => run.id);
  const { data } = useGet("v1/series", { run: ids, key: REWARD, points: 40 }, { seconds: 10 });
  return html`<table class="stack"><tbody>
    ${runs.map((run) => {
      const series = data?.series.find((/** @type {any} */ each) => each.run_id === run.id);
      const reward = run.metrics?.[REWARD] ?? null;
      return html`<tr key=${run.id}>
        <td class="name">
          <a href=${runHref(run)}>${plain(run.name, 200)}</a>${" "}
          ${run.state !== "RUNNING" && html`<${State} state=${run.state} />`}
          <br /><small>${pace(run) || plain(why(run))}</small></td>
        <td>
          ${series && html`<${Sparkline} values=${series.values} label=${`Reward of ${run.name}`} />`}<br />
          <small>${reward === null ? "no episode yet" : `reward ${number(reward)}`}</small></td>
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
  const none = html`No gate or evaluation yet. <code>ludus gate CANDIDATE CHAMPION</code> plays one.`;
  if (!answer.data?.length) return html`<${Missing} ...${answer}>${none}<//>`;
  return html`<table class="stack"><tbody>
    ${answer.data.map(({ run, result }) => html`<tr key=${run.id}>
      <td><${Verdict} verdict=${result?.result?.verdict} run=${run} /></td>
      <td class="name"><a href=${runHref(run)}>${plain(run.name, 200)}</a><br />
        <small>${summary(result?.result, run)}</small></td>
      <td class="small number">${ago(run.finished_at ?? run.updated_at)}</td>
    </tr>`)}
  </tbody></table>`;
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
