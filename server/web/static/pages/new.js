// New run: choose or paste a configuration; the server checks it as you type, and its problems stand at their lines.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Problem, change, get, send } from "../api.js";
import { ago, plain } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { runHref } from "../runs.js";
import { go, text } from "../url.js";
import { yaml } from "../parts/config.js";
import { ask } from "../parts/dialog.js";

/** Milliseconds after the last key until the server is asked. */
const CALM = 400;
/** What one can begin with, and how many of it. */
const LISTS = { presets: 200, configs: 200, runs: 20 };
const NAME = /^[\p{L}\p{N}][\p{L}\p{M}\p{N}._-]*$/u;
const NAME_RULE =
  "A name has letters and digits of any alphabet, dots, underscores and hyphens, no spaces, and no sign in front.";
/** Height of a line of the editor, in pixels; the style sheet says the same. */
const LINE = 19;

/** The text that this tab keeps over a reload and a way back, until the run is started. */
const DRAFT = "new-run";

/** @returns {{source?: string, name?: string, tags?: string, from?: string}} */
function draft() {
  return JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}");
}

export default function NewRun() {
  const kept = text("from") && draft().from !== text("from") ? {} : draft();
  const [source, setSource] = useState(kept.source ?? "");
  const [name, setName] = useState(kept.name ?? "");
  const [tags, setTags] = useState(kept.tags ?? "");
  const [parent, setParent] = useState("");
  const [problems, setProblems] = useState(/** @type {any[]} */ ([]));
  const [warnings, setWarnings] = useState(/** @type {any[]} */ ([]));
  const [refusal, setRefusal] = useState("");
  const [busy, setBusy] = useState(false);
  const [checked, setChecked] = useState("");
  const [known, setKnown] = useState(/** @type {Record<string, any[]>} */ ({ presets: [], configs: [], runs: [] }));
  const [origin, setOrigin] = useState(/** @type {{source: string, stored?: object}} */ ({ source: "" }));
  const newest = useRef(0);
  const begin = (/** @type {string} */ source, /** @type {object|undefined} */ stored = undefined) => {
    setSource(source);
    setOrigin({ source, stored });
  };
  const branch = async (/** @type {string} */ id) => {
    const run = await get(`v1/runs/${encodeURIComponent(id)}`);
    setParent(run.name);
    if (kept.source && kept.from === id) return;
    begin(`${yaml(run.config)}\n`);
    setTags(run.tags.join(", "));
  };
  useLayoutEffect(() => { // before the next paint: a reload may come at once
    sessionStorage.setItem(DRAFT, JSON.stringify({ source, name, tags, from: text("from") }));
  }, [source, name, tags]);

  useEffect(() => {
    const none = () => {}; // who may not list them can paste a configuration
    for (const [name, page_size] of Object.entries(LISTS)) {
      const keep = (/** @type {any} */ answer) => setKnown((old) => ({ ...old, [name]: answer[name] }));
      get(`v1/${name}`, { page_size }).then(keep, none);
    }
    if (text("from")) branch(text("from")).catch((problem) => setRefusal(problem.message));
  }, []);

  useEffect(() => {
    if (!source.trim()) return undefined;
    const mine = (newest.current += 1);
    const timer = setTimeout(async () => {
      try {
        const answer = await (await send("POST", "v1/runs", { yaml: source, query: { validate_only: true } })).json();
        if (mine !== newest.current) return;
        setProblems([]);
        setRefusal("");
        setWarnings(answer.warnings ?? []);
        setChecked(source);
      } catch (problem) {
        if (!(problem instanceof Problem) || mine !== newest.current) return;
        setWarnings([]);
        setChecked("");
        setProblems(problem.errors);
        setRefusal(problem.errors.length ? "" : problem.message);
      }
    }, CALM);
    return () => clearTimeout(timer);
  }, [source]);

  const choose = async (/** @type {string} */ value) => {
    if (!value) return;
    const [kind, chosen, version] = value.split("\n");
    const name = encodeURIComponent(chosen);
    const load = async () => {
      if (kind === "run") return branch(chosen);
      if (kind === "preset") return begin((await get(`v1/presets/${name}`)).source);
      const stored = await send("GET", `v1/configs/${name}/versions/${version}/source`);
      return begin(await stored.text(), { config_name: chosen, config_version: Number(version) });
    };
    if (!source.trim() || source === origin.source) await load();
    else ask({ title: "Replace the text?", text: "What you typed is lost.", action: "Replace it", carryOut: load });
  };
  const create = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const what = source === origin.source && origin.stored ? origin.stored : { config: source };
      const body = { ...what, ...(name && { name }), tags: tags.split(/[\s,]+/).filter(Boolean) };
      const run = await change("POST", "v1/runs", body);
      sessionStorage.removeItem(DRAFT);
      go(runHref(run));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setProblems(problem.errors);
      setRefusal(problem.message);
      setBusy(false);
    }
  };
  const upload = async (/** @type {any} */ event) => {
    const [file] = event.target.files;
    if (file) setSource(await file.text());
  };
  const sources = {
    Presets: known.presets.map(({ name }) => [`preset\n${name}`, name]),
    "Stored configurations": known.configs.map(({ name, version }) => [`config\n${name}\n${version}`, name]),
    "Earlier runs": known.runs.map((run) => [`run\n${run.id}`, `${plain(run.name, 80)}, ${ago(run.created_at)}`]),
  };
  const doubt = (/** @type {any} */ { path, code, message }, place = "") =>
    html`<li key=${path + code}>${place}<code>${plain(path, 200)}</code> ${plain(message)}</li>`;
  const mistake = (/** @type {any} */ each) => doubt(each, each.line ? `line ${each.line}: ` : "");
  const mistakes = problems.length === 1 ? "One mistake" : `${problems.length} mistakes`;
  const misnamed = Boolean(name) && !NAME.test(name);
  const joined = name.trim().normalize("NFC").replaceAll(/[^\p{L}\p{M}\p{N}._-]+/gu, "-");
  const suggested = joined.replace(/^[^\p{L}\p{N}]+/u, "") || "run";
  const valid = checked === source && source.trim() && !problems.length;
  const weights = "Its weights do not come along: the run begins with untrained networks, unless";
  return html`<div class="head"><h1>${parent ? `New run like ${plain(parent, 120)}` : "New run"}</h1></div>
    ${parent && html`<p class="sentence">The configuration of ${plain(parent, 120)}, every default filled in.
      ${" "}${weights}${" "}
      <code>checkpoint_settings.resume_from</code> names a checkpoint (all of it, at its step), or
      ${" "}<code>initialize_from</code> of a behavior (the networks alone, at step 0).</p>`}
    <form onSubmit=${create}>
      <div class="row" style=${{ marginBottom: "12px" }}>
        <label>Begin with <select onChange=${withValue(choose)}>
          <option value="">
            ${parent ? `the run ${plain(parent, 80)}` : "a configuration of mine: paste it below"}
          </option>
          ${Object.entries(sources).map(([label, found]) => found.length > 0 &&
          html`<optgroup key=${label} label=${label}>${choices(Object.fromEntries(found))}</optgroup>`)}
        </select></label>
        <label class="button">
          ${"Open a file "}<input type="file" accept=".yaml,.yml,.json" class="unseen" onChange=${upload} /></label>
      </div>
      <${Editor} source=${source} setSource=${setSource} problems=${problems} warnings=${warnings} />
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${plain(refusal)}</p>`}
      ${problems.length > 0 &&
      html`<div class="note" data-tone="bad" role="alert"><b>${mistakes}</b><ul>${problems.map(mistake)}</ul></div>`}
      ${warnings.length > 0 &&
      html`<div class="note"><b>The server has doubts</b><ul>${warnings.map((each) => doubt(each))}</ul></div>`}
      ${valid && html`<p class="note" data-tone="good" role="status">The configuration is valid.</p>`}
      <div class="row">
        <label title=${NAME_RULE}>Name <input type="text" value=${name} placeholder="the run's id"
          onInput=${withValue(setName)} aria-describedby="name-rule" /></label>
        <label>Tags <input type="text" value=${tags} placeholder="nightly, ci" onInput=${withValue(setTags)} /></label>
        <button class="main" disabled=${busy || !source.trim() || problems.length > 0 || misnamed}>
          Start the run
        </button>
      </div>
      <small id="name-rule">${misnamed
        ? html`<b>${NAME_RULE}</b> <button type="button" class="quiet" onClick=${() => setName(suggested)}>
            Call it ${suggested}</button>`
        : NAME_RULE}</small></form>`;
}

/** A text with line numbers; lines with problems are marked. @param {any} props */
function Editor({ source, setSource, problems, warnings }) {
  const gutter = useRef(/** @type {HTMLDivElement|null} */ (null));
  const lines = source.split("\n").length;
  const byLine = (/** @type {any[]} */ found) =>
    new Map(found.filter((each) => each.line).map((each) => [each.line, each.message]));
  const [bad, doubted] = [byLine(problems), byLine(warnings)];
  const onKey = (/** @type {any} */ event) => {
    if (event.key !== "Tab" || event.shiftKey) return;
    event.preventDefault();
    const { selectionStart: at, selectionEnd: end } = event.target;
    const next = `${source.slice(0, at)}  ${source.slice(end)}`;
    setSource(next);
    requestAnimationFrame(() => event.target.setSelectionRange(at + 2, at + 2));
  };
  const onScroll = (/** @type {any} */ event) => {
    if (gutter.current) gutter.current.scrollTop = event.target.scrollTop;
  };
  return html`<div class="editor" style=${{ "--line": `${LINE}px` }}>
    <div class="gutter" ref=${gutter} aria-hidden="true">${Array.from({ length: lines }, (_, i) => {
      const [line, title] = [i + 1, bad.get(i + 1) ?? doubted.get(i + 1) ?? ""];
      const sign = bad.has(line) ? "bad" : doubted.has(line) ? "doubted" : "";
      return html`<span key=${i} class=${sign} title=${title}>${sign ? "● " : ""}${line}</span>`;
    })}</div>
    <textarea class="code" spellcheck="false" aria-label="Configuration (YAML)"
      title="Tab indents; Shift+Tab leaves the field" value=${source}
      onInput=${withValue(setSource)} onKeyDown=${onKey} onScroll=${onScroll}
      placeholder="Paste a configuration: the YAML file of mlagents-learn works as it is."></textarea>
  </div>`;
}
