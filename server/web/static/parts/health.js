// The health of a run: facts about its learning, each with its remedy.
import { ago, count, plain } from "../format.js";
import { html } from "../html.js";
import { useGet } from "../live.js";

/** All findings of a run. @param {{run: any}} props */
export function Health({ run }) {
  const findings = useFindings(run);
  return findings.map((each) => html`<div class="note" key=${each.code + each.behavior} role="status">
    <p><b>${plain(each.message)}</b></p>
    <p>${plain(each.remedy)}</p>
    <small title=${each.code}>Since ${ago(each.since)}, step ${count(each.since_step)}${each.behavior &&
    ` of ${plain(each.behavior, 80)}`}.</small></div>`);
}

/** The first finding of a run and its remedy, and how many more there are. @param {{run: any}} props */
export function HealthLine({ run }) {
  const [first, ...others] = useFindings(run);
  if (!first) return null;
  return html`${plain(first.message)} <b>${plain(first.remedy)}</b>
    ${others.length > 0 && html` <small>and ${others.length} more</small>`}`;
}

/** @param {any} run @returns {any[]} */
function useFindings({ id, findings = [] }) {
  const when = { seconds: null, again: [findings.join()], wanted: findings.length > 0 };
  const { data } = useGet(`v1/runs/${id}/health`, {}, when);
  return findings.length ? (data?.findings ?? []) : [];
}
