// Simulators of a run: who plays, who left and why, and how to join.
import { get } from "../api.js";
import { ago, count, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Missing } from "./signs.js";

/** @param {{run: any, live: boolean}} props */
export function Simulators({ run, live }) {
  const answer = useLive(() => get(`v1/runs/${run.id}/simulators`, { page_size: 200 }), { seconds: live ? 5 : null, again: [run.id] });
  const found = answer.data?.simulators ?? [];
  const here = found.filter((/** @type {any} */ each) => each.state !== "left");
  const left = found.filter((/** @type {any} */ each) => each.state === "left");
  return html`
    ${live && html`<${HowToJoin} run=${run} open=${!here.length} />`}
    ${found.length ? html`
      <h2>Connected (${here.length})</h2>
      ${here.length ? html`<${SimulatorTable} simulators=${here} />` : html`<p class="sentence">Nobody plays at the moment.</p>`}
      ${left.length > 0 && html`<h2>Left (${left.length})</h2><${Reasons} simulators=${left} /><${SimulatorTable} simulators=${left} />`}`
    : html`<${Missing} ...${answer}>No simulator has joined this run.<//>`}
  `;
}

/** The command that connects a game. @param {{run: any, open: boolean}} props */
function HowToJoin({ run, open }) {
  return html`<details class="card" open=${open}>
    <summary>How a game joins this run</summary>
    <p>A Unity build: <code>ludus unity ${run.name} --env path/to/build</code></p>
    <p>A Python environment: <code>ludus simulate gymnasium:CartPole-v1 --run ${run.name}</code></p>
    <p class="small">With the address of this server in LUDUS_SERVER, and a token in LUDUS_TOKEN. The API is described at <a href="docs">docs</a>.</p>
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
  return html`<p class="sentence">${rows.map(([code, { n, reason }]) => html`<span key=${code} title=${plain(reason ?? "", 300)}><b>${code ?? "unknown"}</b> × ${n} </span>`)}</p>`;
}

/** @param {{simulators: any[], runs?: boolean}} props */
export function SimulatorTable({ simulators, runs = false }) {
  return html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
    <thead><tr>${runs && html`<th scope="col">run</th>`}<th scope="col">simulator</th><th scope="col">state</th><th scope="col">behaviors</th><th scope="col" class="number">agents</th><th scope="col" class="number">steps</th><th scope="col">why it left</th></tr></thead>
    <tbody>${simulators.slice(0, 200).map((each) => html`<tr key=${each.session_id}>
      ${runs && html`<td class="name"><a href=${`ui/runs/${each.run_id}/simulators`}>${plain(each.run_name ?? each.run_id, 80)}</a></td>`}
      <td class="name">${each.label ? plain(each.label, 80) : `number ${each.number}`}<br /><small>${plain(each.peer, 80)} · ${plain(each.client, 60)}${each.relayed ? " · relayed" : ""}</small></td>
      <td>${each.state}<br /><small>${ago(each.left_at ?? each.connected_at ?? each.joined_at)}</small></td>
      <td class="small">${each.behaviors.map((/** @type {string} */ name) => plain(name, 60)).join(", ")}</td>
      <td class="number">${each.agents}</td>
      <td class="number">${count(each.steps)}</td>
      <td class="wrap">${each.leave_code && html`<b>${each.leave_code}</b><br />`}<small>${plain(each.leave_reason ?? "", 300)}</small></td>
    </tr>`)}</tbody>
  </table></div>`;
}
