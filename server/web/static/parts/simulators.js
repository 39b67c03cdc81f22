// Simulators of a run: who plays, who left and why, and how to join.
import { ago, count, plain } from "../format.js";
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
function HowToJoin({ run, open }) {
  const settings = "With the address of this server in LUDUS_SERVER, and a token in LUDUS_TOKEN. ";
  return html`<details class="card" open=${open}>
    <summary>How a game joins this run</summary>
    <p>A Unity build: <code>ludus unity ${run.name} --env path/to/build</code></p>
    <p>A Python environment: <code>ludus simulate gymnasium:CartPole-v1 --run ${run.name}</code></p>
    <p class="small">${settings}The API is described at <a href="docs">docs</a>.</p>
  </details>`;
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
    ${rows.map(([code, { n, reason }]) => {
      const title = plain(reason ?? "", 300);
      return html`<span key=${code} title=${title}><b>${code ?? "unknown"}</b> × ${n} </span>`;
    })}
  </p>`;
}

/** @param {{simulators: any[], runs?: boolean}} props */
export function SimulatorTable({ simulators, runs = false }) {
  const run = (/** @type {any} */ { run_id: id, run_name: name }) =>
    html`<a href=${runHref({ id }, "simulators")}>${plain(name ?? id, 80)}</a>`;
  const player = (/** @type {any} */ { label, number, peer, client, relayed }) =>
    html`${label ? plain(label, 80) : `number ${number}`}<br />
      <small>${plain(peer, 80)} · ${plain(client, 60)}${relayed ? " · relayed" : ""}</small>`;
  const since = (/** @type {any} */ each) => ago(each.left_at ?? each.connected_at ?? each.joined_at);
  const leaving = (/** @type {any} */ { leave_code: code, leave_reason: reason }) =>
    html`${code && html`<b>${code}</b><br />`}<small>${plain(reason ?? "", 300)}</small>`;
  return cardTable(simulators.slice(0, 200), [
    runs && ["run", run, "name"],
    ["simulator", player, "name"],
    ["state", (each) => html`${each.state}<br /><small>${since(each)}</small>`],
    ["behaviors", (each) => each.behaviors.map((/** @type {string} */ name) => plain(name, 60)).join(", "), "small"],
    ["agents", (each) => each.agents, "number"],
    ["steps", (each) => count(each.steps), "number"],
    ["why it left", leaving, "wrap"],
  ]);
}
