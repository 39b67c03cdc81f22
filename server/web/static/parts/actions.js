// What can be done with a run. A button is there if the token may press it and the state allows it.
import { useState } from "preact/hooks";
import { Problem, change, may } from "../api.js";
import { plain } from "../format.js";
import { html, withValue } from "../html.js";
import { hasEnded } from "../runs.js";
import { go, href } from "../url.js";
import { Form, Secret, ask, dialog, toast } from "./dialog.js";

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
  const over = hasEnded(run);
  const running = ["RUNNING", "STARTING", "RECOVERING", "QUEUED"].includes(run.state) && !run.intent;
  const trains = run.kind !== "match" && run.kind !== "evaluate";
  const pause = () => act("pause", "It saves a checkpoint, then pauses.");
  const resume = () => act("resume", "It waits for a worker.");
  const checkpoint = () => act("checkpoint", "A checkpoint is being saved; it comes to the models.");
  const end = `${name} saves a last checkpoint, exports its models and ends as SUCCEEDED.`;
  const stop = () =>
    ask({ title: "Stop the run?", action: "Stop it",
      text: `${end} It cannot be resumed afterwards; a new run can begin with its checkpoint.`,
      carryOut: () => act("stop", "It saves its last checkpoint, then ends.") });
  const loss = "What it has learned since its newest checkpoint is lost.";
  const cancel = () =>
    ask({ title: "Cancel the run?", action: "Cancel it", danger: true,
      text: `${name} ends at once, without a last checkpoint. ${loss}`,
      carryOut: () => act("cancel", "It is cancelled.") });
  const remove = () =>
    ask({ title: "Delete the run?", action: "Delete it", danger: true,
      text: `${name} goes with its metrics, events, logs and checkpoints. This cannot be undone.`,
      carryOut: async () => (await change("DELETE", path), go(href("ui/runs"))) });
  const branch = () => go(href("ui/new", { from: run.id }));
  return html`${running && html`<button onClick=${pause}>Pause</button>`}
    ${run.state === "PAUSED" && html`<button class="main" onClick=${resume}>Resume</button>`}
    ${run.state === "RUNNING" && trains && html`<button onClick=${checkpoint}>Checkpoint now</button>`}
    ${!over && trains && html`<button onClick=${() => setHyperparameters(run, reload)}>Set …</button>`}
    ${!over && html`<button onClick=${stop}>Stop …</button>
      <button class="danger" onClick=${cancel}>Cancel …</button>`}
    <button onClick=${branch} title="A new run with this configuration">Branch …</button>
    ${may("admin") && html`<button onClick=${() => share({ run: run.id })}>Share …</button>`}
    ${over && html`<button class="danger" onClick=${remove}>Delete …</button>`}`;
}

/** Carry out a command for several runs, and say for how many it was refused, and why. */
async function forEach(/** @type {string[]} */ ids, /** @type {(path: string) => Promise<unknown>} */ command) {
  const refusals = [];
  for (const id of ids) {
    try {
      await command(`v1/runs/${id}`);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      refusals.push(problem.message);
    }
  }
  const done = `Done for ${ids.length - refusals.length} of ${ids.length} runs.`;
  toast(refusals.length ? `${done} ${plain(refusals[0], 200)}` : done);
}

/** What can be done with all selected runs. @param {{ids: string[], reload: () => void}} props */
export function Bulk({ ids, reload }) {
  if (!may("run") || !ids.length) return null;
  const all = ids.length === 1 ? "1 run" : `${ids.length} runs`;
  const bulk = (/** @type {string} */ verb, /** @type {string} */ text, /** @type {any} */ command) => () =>
    ask({ title: `${verb} ${all}?`, action: `${verb} ${all}`, danger: verb !== "Stop", text,
      carryOut: async () => (await forEach(ids, command), reload()) });
  const post = (/** @type {string} */ verb) => (/** @type {string} */ path) => change("POST", `${path}:${verb}`);
  const end = "Each saves a last checkpoint, exports its models and ends. Those that have ended stay as they are.";
  const loss = "Each ends at once; what it has learned since its newest checkpoint is lost.";
  const gone = "Those that have ended go with their metrics, events, logs and checkpoints. This cannot be undone.";
  const remove = (/** @type {string} */ path) => change("DELETE", path);
  return html`<button onClick=${() => tag(ids, reload)}>Tag …</button>
    <button onClick=${bulk("Stop", end, post("stop"))}>Stop …</button>
    <button class="danger" onClick=${bulk("Cancel", loss, post("cancel"))}>Cancel …</button>
    <button class="danger" onClick=${bulk("Delete", gone, remove)}>Delete …</button>`;
}

/** Add tags to runs, and remove others. @param {string[]} ids @param {() => void} reload */
function tag(ids, reload) {
  dialog("Tags of the selected runs", () => {
    const [add, setAdd] = useState("");
    const [remove, setRemove] = useState("");
    const list = (/** @type {string} */ text) => text.split(/[\s,]+/).filter(Boolean);
    const body = { add_tags: list(add), remove_tags: list(remove) };
    const save = async () => (await forEach(ids, (path) => change("PATCH", path, body)), reload());
    return html`<${Form} action="Change the tags" disabled=${!(add.trim() || remove.trim())} carryOut=${save}>
      <div class="field"><label>add <input type="text" value=${add} onInput=${withValue(setAdd)} /></label></div>
      <div class="field"><label>remove <input type="text" value=${remove} onInput=${withValue(setRemove)} /></label>
      </div><//>`;
  });
}

/** Change hyperparameters of a run that goes on. @param {any} run @param {() => void} reload */
function setHyperparameters(run, reload) {
  dialog("Set hyperparameters", () => {
    const behaviors = Object.keys(run.config.behaviors);
    const [behavior, setBehavior] = useState(behaviors[0]);
    const section = run.config.behaviors[behavior] ?? {};
    const [values, setValues] = useState(/** @type {Record<string, string>} */ ({}));
    const fields = { max_steps: section.max_steps, ...section.hyperparameters };
    const numeric = Object.entries(fields).filter(([, value]) => typeof value === "number");
    const given = Object.entries(values).filter(([, text]) => text !== "");
    const choose = (/** @type {string} */ name) => (setBehavior(name), setValues({}));
    const carryOut = async () => {
      const { max_steps, ...hyperparameters } = Object.fromEntries(given.map(([key, text]) => [key, Number(text)]));
      const steps = max_steps !== undefined && { max_steps };
      const others = Object.keys(hyperparameters).length && { hyperparameters };
      await change("PATCH", `v1/runs/${run.id}`, { behaviors: { [behavior]: { ...steps, ...others } } });
      toast("A live run goes on with them from its next update.");
      reload();
    };
    return html`<${Form} text="Empty fields stay as they are. The change is an event in the timeline."
      action="Set them" disabled=${!given.length} carryOut=${carryOut}>
      ${behaviors.length > 1 &&
      html`<div class="field"><label>behavior <select value=${behavior} onChange=${withValue(choose)}>
        ${behaviors.map((each) => html`<option key=${each}>${each}</option>`)}
      </select></label></div>`}
      <div class="keys">
        ${numeric.map(
          ([key, value]) => html`<label for=${`set-${key}`} key=${key}>${key}</label>
            <input id=${`set-${key}`} type="text" inputmode="decimal" placeholder=${String(value)}
              value=${values[key] ?? ""} onInput=${withValue((text) => setValues({ ...values, [key]: text }))} />`,
        )}
      </div><//>`;
  });
}

/** Names of this machine itself. */
const LOOPBACK = /^(localhost|127\.[\d.]+|\[::1\])$/;

/**
 * Make a link with which others can look at one run or ladder, and do nothing else.
 * @param {{run?: string, ladder?: string}} bound
 */
export function share(bound) {
  dialog("A link to look at this, and nothing else", () => {
    const [days, setDays] = useState(7);
    const [link, setLink] = useState("");
    const make = async () => {
      const name = `link-to-${bound.run ?? bound.ladder}`;
      const token = { name, scopes: ["read"], ...bound, expires_in_seconds: 86400 * days };
      const made = await change("POST", "v1/tokens", token);
      setLink(new URL(href("ui/share"), location.href).href + `#${made.token}`);
    };
    if (link) {
      const what = bound.run ? "this run" : "this ladder";
      const sees = `Whoever has this link sees ${what} for ${days} ${days === 1 ? "day" : "days"}. `;
      return html`<p>${sees}It is shown only now; the tokens in Admin end it earlier.</p>
        ${LOOPBACK.test(location.hostname) && html`<p class="note">
          ${location.hostname} is every machine itself: the link opens only in a browser on this one.
          For colleagues, serve at an address of the network with tokens
          (docs/security.md), open these pages there, and share again.</p>`}
        <${Secret} label="Link" text=${link} />`;
    }
    return html`<${Form} action="Make the link" stays carryOut=${make}>
      <div class="field"><label>It holds for <input type="number" min="1" max="3650" value=${days}
        onInput=${withValue((text) => setDays(Number(text)))} /> days.</label></div>
    <//>`;
  });
}
