// What can be done with a run. A button is there if the token may press it and the state allows it.
import { useState } from "preact/hooks";
import { change, may } from "../api.js";
import { plain } from "../format.js";
import { html } from "../html.js";
import { hasEnded } from "../runs.js";
import { go, href } from "../url.js";
import { ask, dialog, toast } from "./dialog.js";

/** @param {{run: any, reload: () => void}} props */
export function Actions({ run, reload }) {
  if (!may("run")) return null;
  const path = `v1/runs/${run.id}`;
  const act = async (/** @type {string} */ verb, /** @type {string} */ said) => {
    await change("POST", `${path}:${verb}`);
    toast(said);
    reload();
  };
  const name = plain(run.name, 80);
  const running = ["RUNNING", "STARTING", "RECOVERING", "QUEUED"].includes(run.state) && !run.intent;
  return html`
    ${running && html`<button onClick=${() => act("pause", "It saves a checkpoint, then pauses.")}>Pause</button>`}
    ${run.state === "PAUSED" && html`<button class="main" onClick=${() => act("resume", "It waits for a worker.")}>Resume</button>`}
    ${run.state === "RUNNING" && run.kind !== "match" && run.kind !== "evaluate" && html`<button onClick=${() => act("checkpoint", "A checkpoint is being saved; it comes to the models.")}>Checkpoint now</button>`}
    ${!hasEnded(run) && run.kind !== "match" && run.kind !== "evaluate" && html`<button onClick=${() => setHyperparameters(run, reload)}>Set …</button>`}
    ${!hasEnded(run) &&
    html`<button onClick=${() => ask({ title: "Stop the run?", text: `${name} saves a last checkpoint, exports its models and ends as SUCCEEDED. It cannot be resumed afterwards; a new run can begin with its checkpoint.`, action: "Stop it", carryOut: () => act("stop", "It saves its last checkpoint, then ends.") })}>Stop …</button>
      <button class="danger" onClick=${() => ask({ title: "Cancel the run?", text: `${name} ends at once, without a last checkpoint. What it has learned since its newest checkpoint is lost.`, action: "Cancel it", danger: true, carryOut: () => act("cancel", "It is cancelled.") })}>Cancel …</button>`}
    <button onClick=${() => go(href("ui/new", { from: run.id }))} title="A new run with this configuration">Branch …</button>
    ${may("admin") && html`<button onClick=${() => share({ run: run.id })}>Share …</button>`}
    ${hasEnded(run) &&
    html`<button class="danger" onClick=${() => ask({ title: "Delete the run?", text: `${name} goes with its metrics, events, logs and checkpoints. This cannot be undone.`, action: "Delete it", danger: true, carryOut: async () => {
      await change("DELETE", path);
      go(href("ui/runs"));
    } })}>Delete …</button>`}
  `;
}

/** Change hyperparameters of a run that goes on. @param {any} run @param {() => void} reload */
function setHyperparameters(run, reload) {
  dialog("Set hyperparameters", ({ close }) => {
    const behaviors = Object.keys(run.config.behaviors);
    const [behavior, setBehavior] = useState(behaviors[0]);
    const section = run.config.behaviors[behavior];
    const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
    const [refusal, setRefusal] = useState("");
    const fields = { max_steps: section.max_steps, ...section.hyperparameters };
    const numeric = Object.entries(fields).filter(([, value]) => typeof value === "number");
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      const { max_steps, ...hyperparameters } = Object.fromEntries(Object.entries(values).filter(([, text]) => text !== "").map(([key, text]) => [key, Number(text)]));
      const body = { behaviors: { [behavior]: { ...(max_steps !== undefined && { max_steps }), ...(Object.keys(hyperparameters).length && { hyperparameters }) } } };
      try {
        await change("PATCH", `v1/runs/${run.id}`, body);
        toast("A live run goes on with them from its next update.");
        reload();
        close();
      } catch (/** @type {any} */ problem) {
        setRefusal([problem.message, ...(problem.errors ?? []).map((/** @type {any} */ each) => `${each.path}: ${each.message}`)].join("\n"));
      }
    };
    return html`<form onSubmit=${submit}>
      <p>Empty fields stay as they are. The change is an event in the timeline.</p>
      ${refusal && html`<p class="note" data-tone="bad" role="alert" style=${{ whiteSpace: "pre-wrap" }}>${refusal}</p>`}
      ${behaviors.length > 1 && html`<div class="field"><label>behavior <select value=${behavior} onChange=${(/** @type {any} */ event) => (setBehavior(event.target.value), setValues({}))}>${behaviors.map((each) => html`<option key=${each}>${each}</option>`)}</select></label></div>`}
      <div class="keys">${numeric.map(([key, value]) => html`<label for=${`set-${key}`} key=${key}>${key}</label><input id=${`set-${key}`} type="text" inputmode="decimal" placeholder=${String(value)} value=${values[key] ?? ""} onInput=${(/** @type {any} */ event) => setValues({ ...values, [key]: event.target.value })} />`)}</div>
      <div class="row"><button type="button" onClick=${close}>Leave it</button><button class="main" disabled=${!Object.values(values).some(Boolean)}>Set them</button></div>
    </form>`;
  });
}

/**
 * Make a link with which others can look at one run or ladder, and do nothing else.
 * @param {{run?: string, ladder?: string}} bound
 */
export function share(bound) {
  dialog("A link to look at this, and nothing else", ({ close }) => {
    const [days, setDays] = useState(7);
    const [link, setLink] = useState("");
    const [refusal, setRefusal] = useState("");
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      try {
        const made = await change("POST", "v1/tokens", { name: `link-to-${bound.run ?? bound.ladder}`, scopes: ["read"], ...bound, expires_in_seconds: 86400 * days });
        setLink(new URL(href("ui/share"), location.href).href + `#${made.token}`);
      } catch (/** @type {any} */ problem) {
        setRefusal(problem.message);
      }
    };
    if (link) {
      return html`<p>Whoever has this link sees ${bound.run ? "this run" : "this ladder"} for ${days} ${days === 1 ? "day" : "days"}. It is shown only now; the tokens in Admin end it earlier.</p>
        <input type="text" readonly aria-label="Link" value=${link} size="60" onFocus=${(/** @type {any} */ event) => event.target.select()} />
        <div class="row"><button onClick=${() => navigator.clipboard.writeText(link)}>Copy</button><button class="main" onClick=${close}>Done</button></div>`;
    }
    return html`<form onSubmit=${submit}>
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${refusal}</p>`}
      <div class="field"><label>It holds for <input type="number" min="1" max="3650" value=${days} onInput=${(/** @type {any} */ event) => setDays(Number(event.target.value))} /> days.</label></div>
      <div class="row"><button type="button" onClick=${close}>Leave it</button><button class="main">Make the link</button></div>
    </form>`;
  });
}

