// The configuration of a run, and how it differs from where it came from.
import { get } from "../api.js";
import { plain, shown } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { Missing } from "./signs.js";
import { table } from "./table.js";

/** @param {{run: any}} props */
export function ConfigTab({ run }) {
  const { config_name: name, config_version: old } = run;
  const load = () => Promise.all([
    get(`v1/runs/${run.id}/amendments`),
    name && get(`v1/configs/${encodeURIComponent(name)}:diff`, { old, run: run.id }).catch(() => null),
  ]);
  const answer = useLive(load, { seconds: null, again: [run.id, run.updated_at] });
  if (!answer.data) return html`<${Missing} ...${answer} />`;
  const [amendments, origin] = answer.data;
  const changed = amendments.amendments.flatMap((/** @type {any} */ each) => each.changes);
  const same = "The run was created with the stored configuration as it is.";
  // A seed that was drawn is no difference.
  const origins = origin?.changes.filter((/** @type {any} */ each) => each.path !== "seed" || each.old !== null);
  return html`${origin &&
    html`<section class="card"><h2>Against ${plain(name, 200)} version ${old}</h2>
      <${Differences} found=${origins} names=${["stored", "this run"]} none=${same} /></section>`}
    <section class="card"><h2>Changed since the run was created</h2>
      <${Differences} found=${changed} names=${["before", "after"]} none="Nothing was changed." /></section>
    <section class="card"><h2>With every default filled in</h2>
      <pre class="log" tabindex="0" aria-label="Configuration">${yaml(amendments.config)}</pre></section>`;
}

/** @param {{found: {path: string, old: unknown, new: unknown}[], names: string[], none: string}} props */
function Differences({ found, names, none }) {
  if (!found.length) return html`<p class="small">${none}</p>`;
  return table(found, [
    ["key", ({ path }) => html`<code>${path}</code>`],
    [names[0], ({ old }) => html`<span class="old">${shown(old)}</span>`],
    [names[1], ({ new: now }) => html`<span class="new">${shown(now)}</span>`],
  ]);
}

/** Plain values as YAML. @param {any} value @param {string} [indent] @returns {string} */
export function yaml(value, indent = "") {
  if (value === null || typeof value !== "object") return scalar(value);
  const entries = Array.isArray(value)
    ? value.map((each) => ["-", each])
    : Object.entries(value).map(([key, each]) => [`${scalar(key)}:`, each]);
  if (!entries.length) return Array.isArray(value) ? "[]" : "{}";
  return entries
    .map(([head, each]) => {
      const nested = each !== null && typeof each === "object" && Object.keys(each).length > 0;
      return nested ? `${indent}${head}\n${yaml(each, `${indent}  `)}` : `${indent}${head} ${yaml(each)}`;
    })
    .join("\n");
}

/** @param {any} value */
function scalar(value) {
  if (typeof value !== "string") return String(value);
  const word = /^[A-Za-z_][\w ./-]*$/.test(value) && !value.endsWith(" ");
  const special = /^(true|false|null|yes|no|on|off|y|n|~)$/i.test(value);
  return word && !special ? value : JSON.stringify(value);
}
