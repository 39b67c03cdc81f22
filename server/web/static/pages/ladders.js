// Ladders: the list, and one of them.
import { get, may } from "../api.js";
import { ago, count, plain } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { runHref } from "../runs.js";
import { href } from "../url.js";
import { share } from "../parts/actions.js";
import { LadderView } from "../parts/ladder.js";
import { Missing } from "../parts/signs.js";
import { CopyLink } from "./compare.js";

/** @param {{parts: string[]}} props */
export default function Ladders({ parts: [name] }) {
  return name ? html`<${OneLadder} name=${name} />` : html`<${AllLadders} />`;
}

/** @param {{name: string}} props */
function OneLadder({ name }) {
  const answer = useLive(() => get(`v1/ladders/${encodeURIComponent(name)}`), { seconds: 15, again: [name] });
  const ladder = answer.data;
  if (!ladder) return html`<${Missing} ...${answer} />`;
  return html`<div class="head"><h1>${plain(ladder.name, 200)}</h1><small>${count(ladder.players)} players, ${count(ladder.matches)} matches</small>
      <span class="actions">${may("admin") && html`<button onClick=${() => share({ ladder: ladder.id })}>Share …</button>`}<${CopyLink} /></span></div>
    ${ladder.description && html`<p class="sentence">${plain(ladder.description)}</p>`}
    ${ladder.run_id && html`<p class="sentence">It belongs to the run <a href=${runHref({ id: ladder.run_id })}>${plain(ladder.name, 200)}</a>.</p>`}
    <${LadderView} ladder=${ladder.id} live=${true} />`;
}

function AllLadders() {
  const answer = useLive(() => get("v1/ladders", { page_size: 200 }), { seconds: 15 });
  const ladders = answer.data?.ladders ?? [];
  return html`<div class="head"><h1>Ladders</h1></div>
    ${ladders.length ? html`<div class="scroll card" tabindex="0" style=${{ padding: 0 }}><table>
      <thead><tr><th scope="col">name</th><th scope="col">of</th><th scope="col" class="number">players</th><th scope="col" class="number">matches</th><th scope="col">created</th></tr></thead>
      <tbody>${ladders.map((/** @type {any} */ each) => html`<tr key=${each.id}>
        <td class="name"><a href=${href(`ui/ladders/${each.id}`)}>${plain(each.name, 200)}</a><br /><small>${plain(each.description, 200)}</small></td>
        <td>${each.run_id ? "a run" : "shared"}</td>
        <td class="number">${count(each.players)}</td><td class="number">${count(each.matches)}</td><td class="small">${ago(each.created_at)}</td>
      </tr>`)}</tbody>
    </table></div>` : html`<${Missing} ...${answer}>There is no ladder yet. A run with <code>self_play</code> has one of its own; <code>ludus ladder create NAME</code> makes one that runs share.<//>`}`;
}
