// A ladder: ratings with intervals, their history, who beats whom, and the matches.
import { Chart } from "../chart.js";
import { ago, count, number, plain } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { align } from "../series.js";
import { colorOf } from "../theme.js";
import { flag, list, set, text } from "../url.js";
import { Missing } from "./signs.js";
import { cardTable, table } from "./table.js";

const ORDERS = {
  "ordinal desc": "surely strongest first",
  "mu desc": "strongest first",
  "elo desc": "highest Elo first",
  "games desc": "most games first",
};
const AXES = { game: "by match", step: "by training step", time: "by time" };
/** Players in the history and in the heat map. */
const MOST = 12;

/** @param {{ladder: string, live: boolean, empty?: string}} props */
export function LadderView({ ladder, live, empty = "No player has joined this ladder yet." }) {
  const order = text("by", "ordinal desc");
  const path = `v1/ladders/${ladder}`;
  const seconds = live ? 5 : null;
  const { data, problem } = useGet(`${path}/ratings`, { page_size: 200, order_by: order }, { seconds });
  const ratings = /** @type {any[]} */ (data?.ratings ?? []);
  if (!ratings.length) {
    const failed = problem?.code === "ladder_not_found" ? null : problem;
    return html`<${Missing} data=${data} problem=${failed}>${empty}<//>`;
  }
  const players = ratings.slice(0, MOST).map((each) => each.id);
  const chosen = withValue((by) => set({ by: by === "ordinal desc" ? null : by }));
  return html`<div class="row" style=${{ marginBottom: "10px" }}>
      <label>order <select value=${order} onChange=${chosen}>${choices(ORDERS)}</select></label>
      <small>rated through match ${count(data.rated_through)} of ${count(data.matches)}; bars are μ ± 2 σ.
        Ladder Elo counts the rated matches between these players; the training Elo of a run's Overview is
        the trainer's own, against the
        snapshots of its window.</small>
    </div>
    <${Ratings} ratings=${ratings} />
    <div class="columns" style=${{ margin: "16px 0" }}>
      <${History} path=${path} players=${players} live=${live} />
      <${Payoffs} path=${path} players=${players} live=${live} />
    </div>
    <${Matches} path=${path} live=${live} />`;
}

const LINE = { position: "absolute", top: "9px", height: "2px", background: "var(--faint)" };
const DOT = { position: "absolute", top: "5px", width: "10px", height: "10px", borderRadius: "50%" };

/** @param {{ratings: any[]}} props */
function Ratings({ ratings }) {
  const low = Math.min(...ratings.map((each) => each.mu - 2 * each.sigma));
  const high = Math.max(...ratings.map((each) => each.mu + 2 * each.sigma));
  const at = (/** @type {number} */ value) => `${(100 * (value - low)) / (high - low || 1)}%`;
  const tenths = (/** @type {number} */ value) => number(Math.round(10 * value) / 10);
  const player = (/** @type {any} */ { name, run_id: id, kind, fixed, step }) => {
    const link = id ? html`<a href=${runHref({ id })}>${plain(name, 160)}</a>` : plain(name, 160);
    return html`${link} <span class="tag">${kind}</span>${fixed ? html` <span class="tag">fixed</span>` : ""}
      ${step !== null ? html`<br /><small>step ${count(step)}</small>` : ""}`;
  };
  const strength = (/** @type {any} */ { mu, sigma }) => {
    const line = { ...LINE, left: at(mu - 2 * sigma), right: `calc(100% - ${at(mu + 2 * sigma)})` };
    return html`<div aria-hidden="true" style=${{ position: "relative", height: "20px", minWidth: "140px" }}>
      <i style=${line}></i><i style=${{ ...DOT, left: at(mu), marginLeft: "-5px", background: "var(--accent)" }}></i>
    </div>`;
  };
  return cardTable(ratings, [
    ["#", (_, i) => i + 1, "number"],
    ["player", player, "name"],
    ["strength", strength, undefined, "40%"],
    ["μ ± 2 σ", (each) => `${tenths(each.mu)} ± ${tenths(2 * each.sigma)}`, "number"],
    ["Ladder Elo", (each) => number(Math.round(each.elo)), "number"],
    ["games", (each) => count(each.games), "number"],
  ]);
}

/** @param {{path: string, players: number[], live: boolean}} props */
function History({ path, players, live }) {
  const kind = text("over", "game");
  const { data } = useGet(`${path}/ratings/history`, { players, points: 200 }, { seconds: live ? 10 : null });
  const colored = /** @type {any[]} */ (data?.series ?? []).map((each, i) => ({ ...each, color: colorOf(i) }));
  const series = colored.filter(({ steps }) => kind !== "step" || !steps.includes(null)); // not those from outside
  const seconds = (/** @type {string} */ time) => Date.parse(time) / 1000;
  const axes = series.map((each) => (kind === "time" ? each.times.map(seconds) : each[`${kind}s`]));
  const edge = (/** @type {number} */ sigmas) => {
    const columns = series.map(({ mu, sigma }) =>
      mu.map((/** @type {number} */ each, /** @type {number} */ i) => each + sigmas * sigma[i]),
    );
    return align(axes, columns);
  };
  const [x, values] = edge(0);
  const [low, high] = [edge(-2)[1], edge(2)[1]];
  const curves = series.map(({ name, color }, i) => {
    const edges = { values: values[i], low: low[i], high: high[i], smoothed: null, counts: values[i].map(() => 1) };
    return { label: plain(name, 60), color, ...edges, band: "band: μ ± 2 σ" };
  });
  const chosen = withValue((over) => set({ over: over === "game" ? null : over, range: null }));
  const range = list("range").map(Number);
  const actions = html`<select aria-label="x axis" value=${kind} onChange=${chosen}>${choices(AXES)}</select>`;
  return html`<${Chart} title="Strength (μ)" x=${x} curves=${curves} kind=${kind === "time" ? "time" : "step"}
    window=${range.length === 2 ? range : null} onWindow=${(/** @type {any} */ range) => set({ range })}
    actions=${actions} height=${300} empty="No rated match yet." />`;
}

/** @param {{path: string, players: number[], live: boolean}} props */
function Payoffs({ path, players, live }) {
  const { data } = useGet(`${path}/payoffs`, { players }, { seconds: live ? 10 : null });
  const found = /** @type {any[]} */ (data?.players ?? []);
  const heading = html`<h2>Who beats whom</h2>`;
  if (!found.length) return html`<section class="card">${heading}<p class="empty">No rated match yet.</p></section>`;
  const { scores, games, wins, draws, losses } = data;
  const order = players.map((id) => found.findIndex((each) => each.id === id)).filter((i) => i >= 0); // as above
  const words = (/** @type {number} */ i, /** @type {number} */ j) =>
    `${games[i][j]} games: ${wins[i][j]} won, ${draws[i][j]} drawn, ${losses[i][j]} lost`;
  return html`<section class="card scroll" tabindex="0">${heading}
    <table class="heat">
      <thead><tr>
        <th scope="col"><small>row against column</small></th>
        ${order.map((j, rank) => html`<th scope="col" key=${j} title=${plain(found[j].name, 200)}>${rank + 1}</th>`)}
      </tr></thead>
      <tbody>${order.map((i, rank) => html`<tr key=${i}>
        <th scope="row" title=${plain(found[i].name, 200)}>${rank + 1} ${plain(found[i].name, 40)}</th>
        ${order.map((j) => {
          const score = /** @type {number|null} */ (scores[i][j]);
          return html`<td key=${j} title=${i === j ? "" : words(i, j)} style=${{ background: shade(score) }}>
            ${score !== null && html`${Math.round(100 * score)}<br /><small>${count(games[i][j])}</small>`}
          </td>`;
        })}
      </tr>`)}</tbody>
    </table>
    <small>Percent of the points that the row won against the column, and the games below.</small></section>`;
}

/** Green for more than half of the points, red for less. @param {number|null} score */
function shade(score) {
  if (score === null) return "var(--grid)";
  const tone = score >= 0.5 ? "var(--good)" : "var(--bad)";
  return `color-mix(in srgb, ${tone} ${Math.round(70 * Math.abs(score - 0.5) * 2)}%, var(--surface))`;
}

/** @param {{path: string, live: boolean}} props */
function Matches({ path, live }) {
  const [words, unrated] = [text("matches"), flag("unrated")];
  const filter = [words, !unrated && "rated = true"].filter(Boolean).join(" AND ");
  const answer = useGet(`${path}/matches`, { page_size: 50, filter }, { seconds: live ? 10 : null });
  const matches = /** @type {any[]} */ (answer.data?.matches ?? []);
  const side = (/** @type {any} */ { name, rank, score }, /** @type {number} */ i) => {
    const title = `rank ${rank}${score === null ? "" : `, score ${score}`}`;
    return html`${i ? " – " : ""}<span title=${title}>${plain(name, 80)}</span>`;
  };
  const tag = (/** @type {string} */ word) => html` <span class="tag">${word}</span>`;
  const outcome = (/** @type {any} */ { outcome: word, rated, truncated }) =>
    html`${word}${!rated && tag("not rated")}${truncated && tag("interrupted")}`;
  return html`<section class="card"><h2>Matches</h2>
    <input type="search" size="40" placeholder="filter, as in: player = 3 AND outcome = win"
      aria-label="Filter of matches" value=${words} onChange=${withValue((matches) => set({ matches }))} />
    <label title="Games against itself, interrupted ones, and those whose opponents changed in the middle">
      ${" "}<input type="checkbox" checked=${unrated} onChange=${() => set({ unrated: !unrated })} />${" "}
      ${"those that are not rated, too"}</label>
    ${matches.length ? table(matches, [
      ["match", (each) => each.seq, "number"],
      ["participants", (each) => each.participants.map(side), "name"],
      ["outcome", outcome],
      ["played", (each) => ago(each.at), "small"],
    ]) : html`<${Missing} ...${answer}>
      ${words ? "No match fits this filter." : unrated ? "No match yet." : "No rated match yet."}<//>`}</section>`;
}
