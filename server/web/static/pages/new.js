// New run: choose or paste a configuration; the server checks it as you type, and its problems stand at their lines.
import { useEffect, useRef, useState } from "preact/hooks";
import { Problem, change, get, getText, send } from "../api.js";
import { plain } from "../format.js";
import { html } from "../html.js";
import { runHref } from "../runs.js";
import { go, text } from "../url.js";
import { yaml } from "../parts/config.js";

/** Milliseconds after the last key until the server is asked. */
const CALM = 400;
/** Height of a line of the editor, in pixels; the style sheet says the same. */
const LINE = 19;

export default function NewRun() {
  const [source, setSource] = useState("");
  const [name, setName] = useState("");
  const [tags, setTags] = useState("");
  const [problems, setProblems] = useState(/** @type {any[]} */ ([]));
  const [warnings, setWarnings] = useState(/** @type {any[]} */ ([]));
  const [refusal, setRefusal] = useState("");
  const [checked, setChecked] = useState("");
  const [choices, setChoices] = useState(/** @type {{presets: any[], configs: any[]}} */ ({ presets: [], configs: [] }));
  const newest = useRef(0);

  useEffect(() => {
    Promise.all([get("v1/presets").catch(() => ({ presets: [] })), get("v1/configs", { page_size: 200 }).catch(() => ({ configs: [] }))]).then(
      ([{ presets }, { configs }]) => setChoices({ presets, configs }),
    );
    const from = text("from");
    if (from) get(`v1/runs/${encodeURIComponent(from)}`).then((run) => (setSource(`${yaml(run.config)}\n`), setTags(run.tags.join(", "))), (problem) => setRefusal(problem.message));
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
    const [kind, chosen, version] = value.split("\n");
    if (kind === "preset") {
      const found = await get(`v1/presets/${encodeURIComponent(chosen)}`);
      setSource(found.source);
    } else if (kind === "config") setSource(await getText(`v1/configs/${encodeURIComponent(chosen)}/versions/${version}/source`));
  };
  const create = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      const body = { config: source, ...(name && { name }), tags: tags.split(/[\s,]+/).filter(Boolean) };
      const run = await change("POST", "v1/runs", body);
      go(runHref(run));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setProblems(problem.errors);
      setRefusal(problem.message);
    }
  };
  const upload = async (/** @type {any} */ event) => {
    const [file] = event.target.files;
    if (file) setSource(await file.text());
  };
  return html`
    <div class="head"><h1>New run</h1></div>
    <form onSubmit=${create}>
      <div class="row" style=${{ marginBottom: "12px" }}>
        <label>Begin with <select onChange=${(/** @type {any} */ event) => choose(event.target.value)}>
          <option value="">a configuration of mine: paste it below</option>
          ${choices.presets.length > 0 && html`<optgroup label="Presets">${choices.presets.map((each) => html`<option key=${each.name} value=${`preset\n${each.name}`}>${each.name}</option>`)}</optgroup>`}
          ${choices.configs.length > 0 && html`<optgroup label="Stored configurations">${choices.configs.map((each) => html`<option key=${each.name} value=${`config\n${each.name}\n${each.version ?? each.latest ?? 1}`}>${each.name}</option>`)}</optgroup>`}
        </select></label>
        <label class="button">Open a file <input type="file" accept=".yaml,.yml,.json" hidden onChange=${upload} /></label>
      </div>
      <${Editor} source=${source} setSource=${setSource} problems=${problems} warnings=${warnings} />
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${plain(refusal)}</p>`}
      ${problems.length > 0 && html`<div class="note" data-tone="bad" role="alert"><b>${problems.length === 1 ? "One mistake" : `${problems.length} mistakes`}</b>
        <ul>${problems.map((each) => html`<li key=${each.path + each.code}>${each.line ? html`line ${each.line}: ` : ""}<code>${plain(each.path, 200)}</code> ${plain(each.message)}</li>`)}</ul></div>`}
      ${warnings.length > 0 && html`<div class="note"><b>The server has doubts</b>
        <ul>${warnings.map((each) => html`<li key=${each.path + each.code}><code>${plain(each.path, 200)}</code> ${plain(each.message)}</li>`)}</ul></div>`}
      ${checked === source && source.trim() && !problems.length && html`<p class="note" data-tone="good" role="status">The configuration is valid.</p>`}
      <div class="row">
        <label>Name <input type="text" value=${name} placeholder="the run's id" onInput=${(/** @type {any} */ event) => setName(event.target.value)} pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" /></label>
        <label>Tags <input type="text" value=${tags} placeholder="nightly, ci" onInput=${(/** @type {any} */ event) => setTags(event.target.value)} /></label>
        <button class="main" disabled=${!source.trim() || problems.length > 0}>Start the run</button>
      </div>
    </form>
  `;
}

/** A text with line numbers; lines with problems are marked. @param {any} props */
function Editor({ source, setSource, problems, warnings }) {
  const gutter = useRef(/** @type {HTMLDivElement|null} */ (null));
  const lines = source.split("\n").length;
  const bad = new Map(problems.filter((/** @type {any} */ each) => each.line).map((/** @type {any} */ each) => [each.line, each.message]));
  const doubted = new Map(warnings.filter((/** @type {any} */ each) => each.line).map((/** @type {any} */ each) => [each.line, each.message]));
  const onKey = (/** @type {any} */ event) => {
    if (event.key !== "Tab" || event.shiftKey) return;
    event.preventDefault(); // Tab indents here; Shift+Tab leaves the field
    const { selectionStart: at, selectionEnd: end } = event.target;
    const next = `${source.slice(0, at)}  ${source.slice(end)}`;
    setSource(next);
    requestAnimationFrame(() => event.target.setSelectionRange(at + 2, at + 2));
  };
  return html`<div class="editor" style=${{ "--line": `${LINE}px` }}>
    <div class="gutter" ref=${gutter} aria-hidden="true">${Array.from({ length: lines }, (_, i) => {
      const sign = bad.has(i + 1) ? "bad" : doubted.has(i + 1) ? "doubted" : "";
      return html`<span key=${i} class=${sign} title=${bad.get(i + 1) ?? doubted.get(i + 1) ?? ""}>${sign ? "● " : ""}${i + 1}</span>`;
    })}</div>
    <textarea class="code" spellcheck="false" aria-label="Configuration (YAML)" value=${source} onInput=${(/** @type {any} */ event) => setSource(event.target.value)} onKeyDown=${onKey} onScroll=${(/** @type {any} */ event) => gutter.current && (gutter.current.scrollTop = event.target.scrollTop)} placeholder="Paste a configuration: the YAML file of mlagents-learn works as it is."></textarea>
  </div>`;
}
