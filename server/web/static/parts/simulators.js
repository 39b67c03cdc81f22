// Simulators of a run: who plays, who left and why, and how to join.
import { ago, count, plain, words } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { Missing } from "./signs.js";
import { cardTable } from "./table.js";

/** @param {{run: any, live: boolean}} props */
export function Simulators({ run, live }) {
  const answer = useGet(`v1/runs/${run.id}/simulators`, { page_size: 200 }, { seconds: live ? 5 : null });
  const found = /** @type {any[]} */ (answer.data?.simulators ?? []);
  const here = found.filter((each) => each.state !== "left");
  const left = found.filter((each) => each.state === "left");
  const none = html`<p class="sentence">Nobody plays at the moment.</p>`;
  return html`${live && html`<${HowToJoin} run=${run} open=${!here.length} />`}
    ${found.length
      ? html`<h2>Connected (${here.length})</h2>${here.length ? html`<${SimulatorTable} simulators=${here} />` : none}`
      : html`<${Missing} ...${answer}>No simulator has joined this run.<//>`}
    ${left.length > 0 && html`<h2>Left (${left.length})</h2>
      <${Reasons} simulators=${left} /><${SimulatorTable} simulators=${left} />`}`;
}

/** The command that connects a game. @param {{run: any, open: boolean}} props */
export function HowToJoin({ run, open }) {
  const behaviors = Object.keys(run.config.behaviors ?? {});
  const behavior = behaviors.length === 1 ? ` --behavior ${argument(behaviors[0])}` : "";
  const named = plain(behaviors.join(", "), 200);
  const noun = behaviors.length === 1 ? "the behavior" : "the behaviors";
  const needed = behaviors.length ? `It has to play ${noun} ${named}. ` : "";
  const settings =
    "From another machine, set LUDUS_SIMULATOR_SERVER to the gateway's address, and LUDUS_SIMULATOR_TOKEN.";
  return html`<details class="card" open=${open}>
    <summary>How a game joins this run</summary>
    <p>A Unity build, or without <code>--env</code> the Editor:${" "}
      <code>ludus unity ${run.name} --env path/to/build</code></p>
    <p>A game in Python: <code>ludus simulate python:game.py --run ${run.name}${behavior}</code></p>
    <p>One of Gymnasium: <code>ludus simulate gymnasium:NAME --run ${run.name}${behavior}</code></p>
    <p class="small">${needed}${settings}</p>
  </details>`;
}

/** A word of a command line. @param {string} word */
function argument(word) {
  return /^[\w./:-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** How many left for which reason. @param {{simulators: any[]}} props */
export function Reasons({ simulators }) {
  const counts = new Map();
  for (const { leave_code: code, leave_reason: reason } of simulators) {
    const known = counts.get(code) ?? { n: 0, reason };
    counts.set(code, { n: known.n + 1, reason: known.reason });
  }
  const rows = [...counts].sort(([, one], [, other]) => other.n - one.n);
  return html`<p class="sentence">
    ${rows.map(([code, { n, reason }], index) => {
      const title = plain(reason ?? "", 300);
      return html`<span key=${code} title=${title}>${index > 0 && " · "}${n} × ${words(code ?? "unknown")}</span>`;
    })}
  </p>`;
}

/** @param {{simulators: any[], runs?: boolean}} props */
export function SimulatorTable({ simulators, runs = false }) {
  const run = (/** @type {any} */ { run_id: id, run_name: name }) =>
    html`<a href=${runHref({ id }, "simulators")}>${plain(name ?? id, 80)}</a>`;
  const player = (/** @type {any} */ { label, number, peer, client, relayed }) =>
    html`${label ? plain(label, 80) : `number ${number}`}<br />
      <small class="cut" title=${plain(client, 200)}>${plain(peer, 80)} · ${plain(client, 60)}${
        relayed ? " · relayed" : ""}</small>`;
  const since = (/** @type {any} */ each) => ago(each.left_at ?? each.connected_at ?? each.joined_at);
  const leaving = (/** @type {any} */ { leave_code: code, leave_reason: reason }) =>
    html`<small title=${code}>${plain(reason ?? "", 300) || (code && words(code))}</small>`;
  return cardTable(simulators.slice(0, 200), [
    runs && ["run", run, "name"],
    ["simulator", player, "name"],
    ["state", (each) => html`${each.state}<br /><small class="line">${since(each)}</small>`],
    ["behaviors", (each) => each.behaviors.map((/** @type {string} */ name) => plain(name, 60)).join(", "), "small"],
    ["agents", (each) => each.agents, "number"],
    ["steps", (each) => count(each.steps), "number"],
    ["why it left", leaving, "wrap"],
  ]);
}
