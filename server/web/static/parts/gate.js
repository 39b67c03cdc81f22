// The result of a gate or an evaluation: one word, then the numbers behind it.
import { useState } from "preact/hooks";
import { change, get, may } from "../api.js";
import { count, number, percent, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { dialog, toast } from "./dialog.js";
import { Missing, Split, Verdict } from "./signs.js";

/** @param {{run: any, live: boolean}} props */
export function Gate({ run, live }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/result`), { seconds: live ? 3 : null, again: [run.id, run.state] });
  const result = answer.data?.result;
  if (!result) return html`<${Missing} data=${answer.data} problem=${answer.problem?.code === "assessment_not_found" ? null : answer.problem}>Nothing was played yet.<//>`;
  return result.kind === "match" ? html`<${Match} result=${result} />` : html`<${Evaluation} result=${result} />`;
}

/** @param {{result: any}} props */
function Match({ result }) {
  const { llr, llr_lower: low, llr_upper: high } = result;
  const place = (/** @type {number} */ value) => `${Math.min(100, Math.max(0, (100 * (value - low)) / (high - low)))}%`;
  const lead = result.elo === null ? "all or none of the games were won" : `${signed(result.elo)} [${signed(result.elo_low)}, ${signed(result.elo_high)}]`;
  return html`<section class="card">
      <div class="row" style=${{ fontSize: "18px" }}><${Verdict} verdict=${result.verdict} /> <b>${lead}</b> <small>Elo of the candidate above the champion, 95 % interval</small></div>
      <p class="sentence">${meaning(result)}</p>
      <h2>Log-likelihood ratio ${number(llr)} after ${count(result.games)} of at most ${count(result.max_games)} games</h2>
      <div role="img" aria-label=${`The ratio is ${number(llr)}, between ${number(low)}, fail, and ${number(high)}, pass`} style=${{ position: "relative", height: "34px", maxWidth: "640px" }}>
        <div class="bar-of" style=${{ position: "absolute", left: 0, right: 0, top: "8px", height: "10px" }}><i style=${{ width: place(llr) }}></i></div>
        <span class="small" style=${{ position: "absolute", left: 0, top: "18px" }}>fail ${number(low)}</span>
        <span class="small" style=${{ position: "absolute", right: 0, top: "18px" }}>pass ${number(high)}</span>
      </div>
      <div style=${{ maxWidth: "640px", marginTop: "14px" }}><${Split} parts=${[["won", result.wins, "var(--good)"], ["drawn", result.draws, "var(--idle)"], ["lost", result.losses, "var(--bad)"]]} /></div>
      <dl class="facts">
        <div><dt>score</dt><dd>${percent(result.score)}</dd></div>
        ${result.pairs && html`<div><dt>pairs with 0, ½, 1, 1½, 2 points</dt><dd>${result.pairs.join(" | ")}</dd></div>`}
        <div><dt>bounds</dt><dd>elo0 ${result.elo0}, elo1 ${result.elo1}, α ${result.alpha}, β ${result.beta}</dd></div>
        <div><dt>behavior</dt><dd>${plain(result.behavior, 100)}</dd></div>
      </dl>
    </section>
    <div class="columns">
      <section class="card"><h2>Candidate</h2><${Side} checkpoint=${result.candidate} promote=${result.verdict === "pass"} /></section>
      <section class="card"><h2>Champion</h2><${Side} checkpoint=${result.champion} promote=${false} /></section>
    </div>`;
}

/** @param {any} result */
function meaning(result) {
  if (result.verdict === "pass") return `The candidate is stronger: a lead of ${result.elo1} Elo explains these games better than one of ${result.elo0}.`;
  if (result.verdict === "fail") return `The candidate is not stronger by enough: a lead of ${result.elo0} Elo explains these games better than one of ${result.elo1}.`;
  if (result.verdict === "undecided") return "All games were played, and neither bound was reached. Allow more games, or choose bounds that are further apart.";
  return "The games go on until the ratio reaches one of its bounds.";
}

/** @param {number|null} value */
function signed(value) {
  if (value === null) return "∞";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Math.round(value))}`;
}

/** @param {{checkpoint: string, promote: boolean}} props */
function Side({ checkpoint, promote }) {
  return html`<p><code>${checkpoint}</code></p>${promote && may("run") && html`<button class="main" onClick=${() => setAlias(checkpoint)}>Promote …</button>`}`;
}

/** Let an alias stand for a checkpoint. @param {string} checkpoint @param {() => void} [done] */
export function setAlias(checkpoint, done = () => {}) {
  dialog("Set an alias", ({ close }) => {
    const { data } = useLive(() => get("v1/aliases"), { seconds: null });
    const [name, setName] = useState("champion");
    const [refusal, setRefusal] = useState("");
    const now = data?.aliases.find((/** @type {any} */ each) => each.name === name);
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      try {
        await change("PUT", `v1/aliases/${encodeURIComponent(name)}`, { checkpoint_id: checkpoint, expected: now?.checkpoint_id ?? null });
        toast(`${name} stands for ${checkpoint} now.`);
        done();
        close();
      } catch (/** @type {any} */ problem) {
        setRefusal(problem.message);
      }
    };
    return html`<form onSubmit=${submit}>
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${refusal}</p>`}
      <div class="field"><label for="alias">Alias</label><input id="alias" type="text" list="aliases" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" value=${name} onInput=${(/** @type {any} */ event) => setName(event.target.value)} />
        <datalist id="aliases">${(data?.aliases ?? []).map((/** @type {any} */ each) => html`<option key=${each.name} value=${each.name}></option>`)}</datalist></div>
      <p class="wrap">${now ? html`It stands for <code>${now.checkpoint_id}</code> now, and for <code>${checkpoint}</code> afterwards.` : html`There is no such alias yet. It will stand for <code>${checkpoint}</code>.`}</p>
      <div class="row"><button type="button" onClick=${close}>Leave it</button><button class="main" disabled=${!data}>Set it</button></div>
    </form>`;
  });
}

/** @param {{result: any}} props */
function Evaluation({ result }) {
  return html`<section class="card">
    <div class="row" style=${{ fontSize: "18px" }}><${Verdict} verdict=${result.verdict} /> <b>${number(result.mean)}</b> ${result.low !== null && html`<span>[${number(result.low)}, ${number(result.high)}]</span>`} <small>mean return, ${percent(result.confidence)} interval</small></div>
    <dl class="facts">
      <div><dt>episodes</dt><dd>${count(result.episodes)} of ${count(result.wanted)}</dd></div>
      <div><dt>threshold</dt><dd>${number(result.threshold)}</dd></div>
      <div><dt>lowest, highest</dt><dd>${number(result.least)}, ${number(result.most)}</dd></div>
      <div><dt>deviation</dt><dd>${number(result.deviation)}</dd></div>
      <div><dt>length</dt><dd>${number(result.mean_length)} decisions</dd></div>
      <div><dt>behavior</dt><dd>${plain(result.behavior, 100)}</dd></div>
      <div><dt>checkpoint</dt><dd><code>${result.checkpoint}</code></dd></div>
    </dl>
    ${result.seeded === false && html`<p class="note" style=${{ marginTop: "12px" }}>The simulators do not take the seeds of the run: another evaluation plays other episodes.</p>`}
  </section>`;
}

