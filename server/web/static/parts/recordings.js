// Recordings of simulators' sessions: the list, and one played back: rewards, actions and chosen observations.
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api.js";
import { href, set, text } from "../url.js";
import { ago, bytes, count, duration, number, plain, words } from "../format.js";
import { html, withValue } from "../html.js";
import { useGet } from "../live.js";
import { Failure, Missing } from "./signs.js";
import { cardTable } from "./table.js";

/** Messages of a request, and most of a recording that are loaded. */
const PART = 500;
const MOST = 6000;
/** Milliseconds between two messages while it plays. */
const PACE = 60;
const [WIDTH, HEIGHT] = [600, 90];

/** @typedef {{behavior: string, agents: number[], ended: boolean, rewards: number[], truncated: boolean[],
 *   observations: number[][][], continuous: number[][], discrete: number[][]}} Part */
/** @typedef {{number: number, seconds: number, received: boolean, before: boolean, kind: string, sentence: string,
 *   problem: string|null, behaviors: Part[]}} Frame */

/** @param {{run: any, live: boolean, children: any}} props `children`: the curve beside it */
export function Recordings({ run, live, children }) {
  const answer = useGet(`v1/runs/${run.id}/recordings`, { page_size: 200 }, { seconds: live ? 5 : null });
  const found = /** @type {any[]} */ (answer.data?.recordings ?? []);
  const chosen = found.find((each) => each.id === text("recording"));
  const columns = [
    ["simulator", (/** @type {any} */ one) => count(one.simulator), "number"],
    ["why it ends", (/** @type {any} */ one) => html`<span title=${plain(one.reason, 500)}>${ending(one)}</span>`],
    ["behaviors", (/** @type {any} */ one) => plain(one.behaviors.join(", "), 100)],
    ["messages", (/** @type {any} */ one) => count(one.frames), "number"],
    ["length", (/** @type {any} */ one) => duration(one.seconds), "number"],
    ["size", (/** @type {any} */ one) => bytes(one.size), "number"],
    ["stored", (/** @type {any} */ one) => ago(one.created_at)],
    ["", (/** @type {any} */ one) => html`<span class="row">
      <button onClick=${() => set({ recording: one.id })}>Play back</button>
      <a class="button" href=${href(`v1/runs/${run.id}/recordings/${one.id}/file`)}
        download=${`${one.id}.ludusrec`}>Download</a></span>`],
  ];
  return html`<p class="sentence">${said(run)}</p>
    ${chosen && html`<div class="columns">
      <section class="card"><${Playback} key=${chosen.id} run=${run.id} recording=${chosen} /></section>
      <div>${children}</div></div>`}
    ${found.length
      ? cardTable(found, /** @type {any} */ (columns))
      : html`<${Missing} ...${answer}>Nothing is recorded of this run.<//>`}`;
}

/** What is recorded. @param {any} run */
function said(run) {
  const { share = 0, errors = true } = run.config.simulators?.record ?? {};
  const kept = errors ? "The last 30 s before a session ends in an error are kept." : "Nothing of errors is kept.";
  const turn = html`<code>ludus run set ${run.name} simulators.record=${share ? "false" : "true"}</code>`;
  const now = share ? `${number(100 * share)} % of the sessions are recorded.` : "Recording is off.";
  return html`${now} ${kept} A recording holds what players did and saw; it is deleted with the run. ${turn}
    ${" turns it "}${share ? "off" : "on"}.`;
}

/** @param {any} one */
function ending(one) {
  const causes = { error: "error", session: "session ended", limit: "as long as it may be", torn: "collector killed" };
  const cause = causes[/** @type {keyof causes} */ (one.cause)] ?? words(one.cause);
  return one.code ? `${cause}: ${words(one.code)}` : cause;
}

/** @param {{run: string, recording: any}} props */
function Playback({ run, recording }) {
  const [frames, setFrames] = useState(/** @type {Frame[]} */ ([]));
  const [problem, setProblem] = useState(/** @type {any} */ (undefined));
  const [at, setAt] = useState(0);
  const [plays, setPlays] = useState(false);
  useEffect(() => {
    let gone = false;
    const load = async () => {
      let start = /** @type {number|null} */ (1);
      while (start !== null && start <= MOST && !gone) {
        const query = { start, limit: PART };
        const part = await get(`v1/runs/${run}/recordings/${recording.id}/frames`, query);
        if (!gone) setFrames((old) => [...old, ...part.frames]);
        start = part.next_start ?? null;
      }
    };
    load().catch((error) => gone || setProblem(error));
    return () => {
      gone = true;
    };
  }, []);
  useEffect(() => {
    if (!plays) return undefined;
    const timer = setInterval(() => setAt((old) => (old + 1 < frames.length ? old + 1 : old)), PACE);
    return () => clearInterval(timer);
  }, [plays, frames.length]);
  const lives = useMemo(() => livesOf(frames), [frames]);
  const names = [...lives.keys()];
  const chosen = names.includes(text("agent")) ? text("agent") : names[0];
  const life = lives.get(chosen ?? "");
  const element = Number(text("element", "0"));
  const width = life?.observations.at(-1)?.values.length ?? 0;
  const frame = frames[at];
  return html`<h2>Simulator ${recording.simulator}</h2>
    <${Failure} problem=${problem} />
    <div class="row">
      <button onClick=${() => setPlays(!plays)}>${plays ? "Pause" : "Play"}</button>
      <input type="range" aria-label="Message" min="0" max=${Math.max(frames.length - 1, 0)} value=${at}
        style=${{ flex: 1 }} onInput=${withValue((value) => setAt(Number(value)))} />
      <small>message ${frame?.number ?? 0} of ${count(recording.frames)}, ${number(frame?.seconds ?? 0)} s</small>
    </div>
    ${recording.frames > MOST && html`<p class="small">The first ${count(MOST)} messages are shown.</p>`}
    ${life && html`<div class="row" style=${{ marginTop: "8px" }}>
        <select aria-label="Agent" value=${chosen} onChange=${withValue((agent) => set({ agent }))}>
          ${names.map((name) => html`<option key=${name} value=${name}>${plain(name, 100)}</option>`)}
        </select>
        <select aria-label="Observation" value=${element} onChange=${withValue((value) => set({ element: value }))}>
          ${[...Array(width).keys()].map((i) => html`<option key=${i} value=${i}>observation ${i}</option>`)}
        </select>
      </div>
      <${Line} name="reward" points=${life.rewards} at=${at} />
      <${Line} name=${`observation ${element}`} points=${picked(life.observations, element)} at=${at} />
      ${[...Array(life.actions.at(-1)?.values.length ?? 0).keys()].slice(0, 4).map((i) => html`<${Line} key=${i}
        name=${`action ${i}`} points=${picked(life.actions, i)} at=${at} />`)}`}
    ${frame && html`<p class="sentence wrap">${frame.received ? "The game sent: " : "The server answered: "}
      ${plain(frame.sentence, 600)}</p>`}`;
}

/** @typedef {{x: number, y: number}} Point */
/** @typedef {{rewards: Point[], observations: {x: number, values: number[]}[],
 *   actions: {x: number, values: number[]}[]}} Life */

/** What each agent saw, got and did, by the numbers of the messages. @param {Frame[]} frames */
export function livesOf(frames) {
  const lives = /** @type {Map<string, Life>} */ (new Map());
  const asking = /** @type {Map<string, number[]>} */ (new Map());
  const of = (/** @type {string} */ name) => {
    if (!lives.has(name)) lives.set(name, { rewards: [], observations: [], actions: [] });
    return /** @type {Life} */ (lives.get(name));
  };
  frames.forEach((frame, x) => {
    for (const part of frame.behaviors) {
      const ids = frame.received || part.agents.length ? part.agents : (asking.get(part.behavior) ?? []);
      if (frame.received && !part.ended) asking.set(part.behavior, part.agents);
      ids.forEach((id, row) => {
        const life = of(`${part.behavior}, agent ${id}`);
        if (frame.received) {
          life.rewards.push({ x, y: part.rewards[row] ?? 0 });
          life.observations.push({ x, values: part.observations.flatMap((each) => each[row] ?? []) });
        } else {
          life.actions.push({ x, values: [...(part.continuous[row] ?? []), ...(part.discrete[row] ?? [])] });
        }
      });
    }
  });
  return lives;
}

/** @param {{x: number, values: number[]}[]} rows @param {number} element @returns {Point[]} */
function picked(rows, element) {
  return rows.filter((row) => row.values.length > element).map((row) => ({ x: row.x, y: row.values[element] }));
}

/** @param {{name: string, points: Point[], at: number}} props */
function Line({ name, points, at }) {
  if (!points.length) return null;
  const [low, high] = [Math.min(...points.map(({ y }) => y)), Math.max(...points.map(({ y }) => y))];
  const [first, last] = [points[0].x, Math.max(points[points.length - 1].x, points[0].x + 1)];
  const across = (/** @type {number} */ x) => (WIDTH * (x - first)) / (last - first);
  const up = (/** @type {number} */ y) =>
    high > low ? HEIGHT - 4 - ((HEIGHT - 8) * (y - low)) / (high - low) : HEIGHT / 2;
  const line = points.map(({ x, y }) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ");
  const now = points.findLast(({ x }) => x <= at);
  return html`<figure class="playback"><figcaption class="small">${name}: <b>${now ? number(now.y) : "–"}</b>
      <small> (${number(low)} to ${number(high)})</small></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${name}>
      <polyline points=${line} />
      <line x1=${across(at)} x2=${across(at)} y1="0" y2=${HEIGHT} /></svg></figure>`;
}
