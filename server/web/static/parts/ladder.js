// A ladder: ratings with intervals, their history, who beats whom, and the matches.
import { useState } from "preact/hooks";
import { get } from "../api.js";
import { Chart } from "../chart.js";
import { ago, count, number, percent, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { runHref } from "../runs.js";
import { align } from "../series.js";
import { colorOf } from "../theme.js";
import { set, text } from "../url.js";
import { Missing } from "./signs.js";

const ORDERS = [["ordinal desc", "surely strongest first"], ["mu desc", "strongest first"], ["elo desc", "highest Elo first"], ["games desc", "most games first"]];
/** Players in the history and in the heat map. */
const MOST = 12;

/** @param {{ladder: string, live: boolean, empty?: string}} props */
export function LadderView({ ladder, live, empty = "No player has joined this ladder yet." }) {
  const order = text("by", "ordinal desc");
  const path = `v1/ladders/${ladder}`;
  const answer = useLive(() => get(`${path}/ratings`, { page_size: 200, order_by: order }), { seconds: live ? 5 : null, again: [ladder, order] });
  const ratings = answer.data?.ratings ?? [];
  if (!ratings.length) return html`<${Missing} data=${answer.data} problem=${answer.problem?.code === "ladder_not_found" ? null : answer.problem}>${empty}<//>`;
  const players = ratings.slice(0, MOST).map((/** @type {any} */ each) => each.id);
  return html`
    <div class="row" style=${{ marginBottom: "10px" }}>
      <label>order <select value=${order} onChange=${(/** @type {any} */ event) => set({ by: event.target.value === "ordinal desc" ? null : event.target.value })}>${ORDERS.map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label>
      <small>rated through match ${count(answer.data.rated_through)} of ${count(answer.data.matches)}; bars are μ ± 2 σ</small>
    </div>
    <${Ratings} ratings=${ratings} />
    <div class="columns" style=${{ margin: "16px 0" }}>
      <${History} path=${path} players=${players} live=${live} />
      <${Payoffs} path=${path} players=${players} live=${live} />
    </div>
    <${Matches} path=${path} live=${live} />
  `;
}

/** @param {{ratings: any[]}} props */
function Ratings({ ratings }) {
  const low = Math.min(...ratings.map((each) => each.mu - 2 * each.sigma));
  const high = Math.max(...ratings.map((each) => each.mu + 2 * each.sigma));
  const at = (/** @type {number} */ value) => `${(100 * (value - low)) / (high - low || 1)}%`;
  return html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
    <thead><tr><th scope="col" class="number">#</th><th scope="col">player</th><th scope="col" style=${{ width: "40%" }}>strength</th><th scope="col" class="number">μ ± 2 σ</th><th scope="col" class="number">Elo</th><th scope="col" class="number">games</th></tr></thead>
    <tbody>${ratings.map((each, i) => html`<tr key=${each.id}>
      <td class="number">${i + 1}</td>
      <td class="name">${each.run_id ? html`<a href=${runHref({ id: each.run_id })}>${plain(each.name, 160)}</a>` : plain(each.name, 160)} <span class="tag">${each.kind}</span>${each.fixed ? html` <span class="tag">fixed</span>` : ""}${each.step !== null ? html`<br /><small>step ${count(each.step)}</small>` : ""}</td>
      <td><div aria-hidden="true" style=${{ position: "relative", height: "20px", minWidth: "140px" }}>
        <i style=${{ position: "absolute", top: "9px", height: "2px", left: at(each.mu - 2 * each.sigma), right: `calc(100% - ${at(each.mu + 2 * each.sigma)})`, background: "var(--faint)" }}></i>
        <i style=${{ position: "absolute", top: "5px", width: "10px", height: "10px", marginLeft: "-5px", borderRadius: "50%", left: at(each.mu), background: "var(--accent)" }}></i>
      </div></td>
      <td class="number">${number(Math.round(10 * each.mu) / 10)} ± ${number(Math.round(20 * each.sigma) / 10)}</td>
      <td class="number">${number(Math.round(each.elo))}</td>
      <td class="number">${count(each.games)}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

/** @param {{path: string, players: number[], live: boolean}} props */
function History({ path, players, live }) {
  const kind = text("over", "games");
  const { data } = useLive(() => get(`${path}/ratings/history`, { player: players, points: 200 }), { seconds: live ? 10 : null, again: [players.join()] });
  const series = data?.series ?? [];
  const axes = series.map((/** @type {any} */ each) => kind === "time" ? each.times.map((/** @type {string} */ time) => Date.parse(time) / 1000) : each.games);
  const column = (/** @type {(each: any, i: number) => number} */ of) => series.map((/** @type {any} */ each) => each.mu.map((/** @type {number} */ _, /** @type {number} */ i) => of(each, i)));
  const [x, values] = align(axes, column((each, i) => each.mu[i]));
  const low = align(axes, column((each, i) => each.mu[i] - 2 * each.sigma[i]))[1];
  const high = align(axes, column((each, i) => each.mu[i] + 2 * each.sigma[i]))[1];
  const curves = series.map((/** @type {any} */ each, /** @type {number} */ i) => ({ label: plain(each.name, 60), color: colorOf(i), values: values[i], low: low[i], high: high[i], smoothed: null, counts: values[i].map(() => 1), band: "band: μ ± 2 σ" }));
  const actions = html`<select aria-label="x axis" value=${kind} onChange=${(/** @type {any} */ event) => set({ over: event.target.value === "games" ? null : event.target.value })}><option value="games">by match</option><option value="time">by time</option></select>`;
  return html`<${Chart} title="Strength (μ)" x=${x} curves=${curves} kind=${kind === "time" ? "time" : "step"} actions=${actions} height=${300} empty="No rated match yet." />`;
}

/** @param {{path: string, players: number[], live: boolean}} props */
function Payoffs({ path, players, live }) {
  const { data } = useLive(() => get(`${path}/payoffs`, { player: players }), { seconds: live ? 10 : null, again: [players.join()] });
  if (!data?.players.length) return html`<section class="card"><h2>Who beats whom</h2><p class="empty">No rated match yet.</p></section>`;
  return html`<section class="card scroll" tabindex="0"><h2>Who beats whom</h2>
    <table class="heat">
      <thead><tr><th scope="col"><small>row against column</small></th>${data.players.map((/** @type {any} */ each, /** @type {number} */ i) => html`<th scope="col" key=${each.id} title=${plain(each.name, 200)}>${i + 1}</th>`)}</tr></thead>
      <tbody>${data.players.map((/** @type {any} */ each, /** @type {number} */ row) => html`<tr key=${each.id}>
        <th scope="row" title=${plain(each.name, 200)}>${row + 1} ${plain(each.name, 40)}</th>
        ${data.scores[row].map((/** @type {number|null} */ score, /** @type {number} */ column) => html`<td key=${column} title=${row === column ? "" : `${data.games[row][column]} games: ${data.wins[row][column]} won, ${data.draws[row][column]} drawn, ${data.losses[row][column]} lost`} style=${{ background: shade(score) }}>${score === null ? "" : percent(Math.round(100 * score) / 100).replace(" %", "")}</td>`)}
      </tr>`)}</tbody>
    </table>
    <small>Percent of the points that the row won against the column; hold the pointer over a field for its games.</small>
  </section>`;
}

/** Green for more than half of the points, red for less. @param {number|null} score */
function shade(score) {
  if (score === null) return "var(--grid)";
  const tone = score >= 0.5 ? "var(--good)" : "var(--bad)";
  return `color-mix(in srgb, ${tone} ${Math.round(70 * Math.abs(score - 0.5) * 2)}%, var(--surface))`;
}

/** @param {{path: string, live: boolean}} props */
function Matches({ path, live }) {
  const [filter, setFilter] = useState("");
  const answer = useLive(() => get(`${path}/matches`, { page_size: 50, filter }), { seconds: live ? 10 : null, again: [filter] });
  const matches = answer.data?.matches ?? [];
  return html`<section class="card"><h2>Matches</h2>
    <input type="search" size="40" placeholder="filter, as in: player = 3 AND outcome = win" aria-label="Filter of matches" value=${filter} onChange=${(/** @type {any} */ event) => setFilter(event.target.value)} />
    ${matches.length ? html`<div class="scroll" tabindex="0"><table>
      <thead><tr><th scope="col" class="number">match</th><th scope="col">participants</th><th scope="col">outcome</th><th scope="col">played</th></tr></thead>
      <tbody>${matches.map((/** @type {any} */ each) => html`<tr key=${each.seq}>
        <td class="number">${each.seq}</td>
        <td class="name">${each.participants.map((/** @type {any} */ side, /** @type {number} */ i) => html`${i ? " – " : ""}<span title=${`rank ${side.rank}${side.score === null ? "" : `, score ${side.score}`}`}>${plain(side.name, 80)}</span>`)}</td>
        <td>${each.outcome}${each.rated ? "" : html` <span class="tag">not rated</span>`}${each.truncated ? html` <span class="tag">interrupted</span>` : ""}</td>
        <td class="small">${ago(each.at)}</td>
      </tr>`)}</tbody>
    </table></div>` : html`<${Missing} ...${answer}>${filter ? "No match fits this filter." : "No match yet."}<//>`}
  </section>`;
}
