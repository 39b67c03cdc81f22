// The result of a gate or an evaluation: one word, then the numbers behind it.
import { useState } from "preact/hooks";
import { change, may } from "../api.js";
import { count, number, percent, plain } from "../format.js";
import { html, withValue } from "../html.js";
import { useGet } from "../live.js";
import { hasEnded, runHref } from "../runs.js";
import { Form, dialog, toast } from "./dialog.js";
import { modelLinks } from "./models.js";
import { Fact, Missing, Outcomes, Verdict } from "./signs.js";

/** @param {{run: any, live: boolean}} props */
export function Gate({ run, live }) {
  const { data, problem } = useGet(`v1/runs/${run.id}/result`, {}, { seconds: live ? 3 : null, again: [run.state] });
  const result = data?.result;
  if (!result) {
    const failed = problem?.code === "assessment_not_found" ? null : problem;
    return html`<${Missing} data=${data} problem=${failed}>Nothing was played yet.<//>`;
  }
  const Shown = result.kind === "match" ? Match : Evaluation;
  return html`<${Shown} result=${result} run=${run} runs=${data.checkpoint_runs} />`;
}

/** @param {{result: any, run: any, runs: Record<string, string>}} props */
function Match({ result, run, runs }) {
  const { elo, elo_low: low, elo_high: high } = result;
  const interval = `${signed(elo)} [${signed(low, "−∞")}, ${signed(high)}]`;
  const lead = elo === null ? "all or none of the games were won" : interval;
  return html`<section class="card">
      <div class="row" style=${{ fontSize: "18px" }}>
        <${Verdict} verdict=${result.verdict} run=${run} /> <b>${lead}</b>${" "}
        <small>Elo of the candidate above the champion, 95 % interval</small>
      </div>
      <p class="sentence">${meaning(result, hasEnded(run))}</p>
      <${Ratio} result=${result} />
      <div style=${{ maxWidth: "640px", marginTop: "14px" }}>
        <${Outcomes} won=${result.wins} drawn=${result.draws} lost=${result.losses} /></div>
      <dl class="facts">
        <${Fact} name="score">${percent(result.score)}<//>
        ${result.pairs && html`<${Fact} name="pairs with 0, ½, 1, 1½, 2 points">${result.pairs.join(" | ")}<//>`}
        <${Fact} name="bounds">elo0 ${result.elo0}, elo1 ${result.elo1}, α ${result.alpha}, β ${result.beta}<//>
        <${Fact} name="behavior">${plain(result.behavior, 100)}<//>
      </dl></section>
    <div class="columns">
      <${Side} title="Candidate" checkpoint=${result.candidate} runs=${runs} promote=${result.verdict === "pass"} />
      <${Side} title="Champion" checkpoint=${result.champion} runs=${runs} />
    </div>`;
}

/** Where the log-likelihood ratio is between its bounds. @param {{result: any}} props */
function Ratio({ result }) {
  const { llr, llr_lower: low, llr_upper: high } = result;
  const width = `${Math.min(100, Math.max(0, (100 * (llr - low)) / (high - low)))}%`;
  const words = `The ratio is ${number(llr)}, between ${number(low)}, fail, and ${number(high)}, pass`;
  const below = { position: "absolute", top: "18px" };
  return html`<h2>
      Log-likelihood ratio ${number(llr)} after ${count(result.games)} of at most ${count(result.max_games)} games
    </h2>
    <div role="img" aria-label=${words} style=${{ position: "relative", height: "34px", maxWidth: "640px" }}>
      <div class="bar-of" style=${{ position: "absolute", left: 0, right: 0, top: "8px", height: "10px" }}>
        <i style=${{ width }}></i></div>
      <span class="small" style=${{ ...below, left: 0 }}>fail ${number(low)}</span>
      <span class="small" style=${{ ...below, right: 0 }}>pass ${number(high)}</span>
    </div>`;
}

/** @param {any} result @param {boolean} over whether the run has ended */
function meaning({ verdict, elo0, elo1 }, over) {
  const lead = (/** @type {number} */ one, /** @type {number} */ other) =>
    `a lead of ${one} Elo explains these games better than one of ${other}.`;
  if (verdict === "pass") return `The candidate is stronger: ${lead(elo1, elo0)}`;
  if (verdict === "fail") return `The candidate is not stronger by enough: ${lead(elo0, elo1)}`;
  const advice = "Allow more games, or choose bounds that are further apart.";
  if (verdict === "undecided") return `All games were played, and neither bound was reached. ${advice}`;
  return over ? "The run ended before a verdict." : "The games go on until the ratio reaches one of its bounds.";
}

/** A lead in Elo. @param {number|null} value @param {string} [otherwise] the sign of an end that has no bound */
export function signed(value, otherwise = "∞") {
  if (value === null) return otherwise;
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(Math.round(value))}`;
}

/** @param {{title: string, checkpoint: string, runs: Record<string, string>, promote?: boolean}} props */
function Side({ title, checkpoint, runs, promote = false }) {
  const id = runs[checkpoint]; // a deleted one has none
  const when = { seconds: null, wanted: Boolean(id) };
  const { data } = useGet(`v1/runs/${id}/checkpoints/${checkpoint}`, {}, when);
  return html`<section class="card"><h2>${title}</h2>
    <p><code>${checkpoint}</code>${id && html` of <a href=${runHref({ id }, "models")}>${id}</a>`}</p>
    ${data && html`<p>${modelLinks(data)}</p>`}
    ${promote && may("run") && html`<button class="main" onClick=${() => setAlias(checkpoint)}>Promote …</button>`}
  </section>`;
}

/** Let an alias stand for a checkpoint. @param {string} checkpoint @param {() => void} [done] */
export function setAlias(checkpoint, done = () => {}) {
  dialog("Set an alias", () => {
    const { data } = useGet("v1/aliases", {}, { seconds: null });
    const [name, setName] = useState("champion");
    const aliases = /** @type {any[]} */ (data?.aliases ?? []);
    const now = aliases.find((each) => each.name === name);
    const carryOut = async () => {
      const expected = now?.checkpoint_id ?? null;
      await change("PUT", `v1/aliases/${encodeURIComponent(name)}`, { checkpoint_id: checkpoint, expected });
      toast(`${name} stands for ${checkpoint} now.`);
      done();
    };
    const what = html`<code>${checkpoint}</code>`;
    return html`<${Form} action="Set it" disabled=${!data} carryOut=${carryOut}>
      <div class="field"><label for="alias">Alias</label>
        <input id="alias" type="text" list="aliases" required pattern="[\\p{L}\\p{N}][\\p{L}\\p{M}\\p{N}._\\-]*"
          value=${name} onInput=${withValue(setName)} />
        <datalist id="aliases">
          ${aliases.map((each) => html`<option key=${each.name} value=${each.name}></option>`)}
        </datalist></div>
      <p class="wrap">${now
        ? html`It stands for <code>${now.checkpoint_id}</code> now, and for ${what} afterwards.`
        : html`There is no such alias yet. It will stand for ${what}.`}</p>
    <//>`;
  });
}

/** @param {{result: any, run: any}} props */
function Evaluation({ result, run }) {
  const { low, high } = result;
  return html`<section class="card">
    <div class="row" style=${{ fontSize: "18px" }}>
      <${Verdict} verdict=${result.verdict} run=${run} /> <b>${number(result.mean)}</b>${" "}
      ${low !== null && html`<span>[${number(low)}, ${number(high)}]</span>`}${" "}
      <small>mean return, ${percent(result.confidence)} interval</small>
    </div>
    <dl class="facts">
      <${Fact} name="episodes">${count(result.episodes)} of ${count(result.wanted)}<//>
      <${Fact} name="threshold">${number(result.threshold)}<//>
      <${Fact} name="lowest, highest">${number(result.least)}, ${number(result.most)}<//>
      <${Fact} name="deviation">${number(result.deviation)}<//>
      <${Fact} name="length">${number(result.mean_length)} decisions<//>
      <${Fact} name="behavior">${plain(result.behavior, 100)}<//>
      <${Fact} name="checkpoint"><code>${result.checkpoint}</code><//>
    </dl>
    ${result.seeded === false && html`<p class="note" style=${{ marginTop: "12px" }}>
      The simulators do not take the seeds of the run: another evaluation plays other episodes.
    </p>`}
  </section>`;
}
