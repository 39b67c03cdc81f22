// The configuration of a run, and how it differs from where it came from.
import { get } from "../api.js";
import { plain, shown } from "../format.js";
import { html } from "../html.js";
import { useLive } from "../live.js";
import { differences, flat } from "../series.js";
import { Missing } from "./signs.js";
import { table } from "./table.js";

/** @param {{run: any}} props */
export function ConfigTab({ run }) {
  const stored = run.config_name && `v1/configs/${run.config_name}/versions/${run.config_version}`;
  const load = () => Promise.all([get(`v1/runs/${run.id}/amendments`), stored ? get(stored).catch(() => null) : null]);
  const answer = useLive(load, { seconds: null, again: [run.id, run.updated_at] });
  if (!answer.data) return html`<${Missing} ...${answer} />`;
  const [amendments, origin] = answer.data;
  const changed = differences([flat(amendments.original_config), flat(amendments.config)]);
  const origins = origin ? differences([flat(origin.resolved), flat(amendments.original_config)]) : [];
  const same = "The run was created with the stored configuration as it is.";
  return html`${run.config_name &&
    html`<section class="card"><h2>Against ${plain(run.config_name, 200)} version ${run.config_version}</h2>
      <${Differences} found=${origins} names=${["stored", "this run"]} none=${same} /></section>`}
    <section class="card"><h2>Changed since the run was created</h2>
      <${Differences} found=${changed} names=${["created with", "now"]} none="Nothing was changed." /></section>
    <section class="card"><h2>With every default filled in</h2>
      <pre class="log" tabindex="0" aria-label="Configuration">${yaml(amendments.config)}</pre></section>`;
}

/** @param {{found: [string, unknown[]][], names: string[], none: string}} props */
export function Differences({ found, names, none }) {
  if (!found.length) return html`<p class="small">${none}</p>`;
  return table(found, [
    ["key", ([key]) => html`<code>${key}</code>`],
    [names[0], ([, [old]]) => html`<span class="old">${shown(old)}</span>`],
    [names[1], ([, [, now]]) => html`<span class="new">${shown(now)}</span>`],
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
