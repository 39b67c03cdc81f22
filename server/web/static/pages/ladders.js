// Ladders: the list, and one of them.
import { may } from "../api.js";
import { ago, count, plain } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";
import { runHref } from "../runs.js";
import { href } from "../url.js";
import { share } from "../parts/actions.js";
import { LadderView } from "../parts/ladder.js";
import { Missing } from "../parts/signs.js";
import { cardTable } from "../parts/table.js";
import { CopyLink } from "./compare.js";

/** @param {{parts: string[]}} props */
export default function Ladders({ parts: [name] }) {
  return name ? html`<${OneLadder} name=${name} />` : html`<${AllLadders} />`;
}

/** @param {{name: string}} props */
function OneLadder({ name }) {
  const answer = useGet(`v1/ladders/${encodeURIComponent(name)}`, {}, { seconds: 15 });
  const ladder = answer.data;
  if (!ladder) return html`<${Missing} ...${answer} />`;
  const run = html`<a href=${runHref({ id: ladder.run_id })}>${plain(ladder.name, 200)}</a>`;
  const button = may("admin") && html`<button onClick=${() => share({ ladder: ladder.id })}>Share …</button>`;
  return html`<div class="head"><h1>${plain(ladder.name, 200)}</h1>
      <small>${count(ladder.players)} players, ${count(ladder.matches)} matches</small>
      <span class="actions">${button}<${CopyLink} /></span></div>
    ${ladder.description && html`<p class="sentence">${plain(ladder.description)}</p>`}
    ${ladder.run_id && html`<p class="sentence">It belongs to the run ${run}.</p>`}
    <${LadderView} ladder=${ladder.id} live=${true} />`;
}

function AllLadders() {
  const answer = useGet("v1/ladders", { page_size: 200 }, { seconds: 15 });
  const ladders = answer.data?.ladders ?? [];
  const none = "There is no ladder yet. A run with";
  const shared = html`<code>ludus ladder create NAME</code> makes one that runs share.`;
  return html`<div class="head"><h1>Ladders</h1></div>
    ${ladders.length ? cardTable(ladders, [
      ["name", (each) => html`<a href=${href(`ui/ladders/${each.id}`)}>${plain(each.name, 200)}</a>
        <br /><small>${plain(each.description, 200)}</small>`, "name"],
      ["of", (each) => (each.run_id ? "a run" : "shared")],
      ["players", (each) => count(each.players), "number"],
      ["matches", (each) => count(each.matches), "number"],
      ["created", (each) => ago(each.created_at), "small"],
    ]) : html`<${Missing} ...${answer}>${none} <code>self_play</code> has one of its own; ${shared}<//>`}`;
}
