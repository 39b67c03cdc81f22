// One dialog at a time, questions before what cannot be undone, and short messages.
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { Problem } from "../api.js";
import { html } from "../html.js";

const open = signal(/** @type {{title: string, show: any}|null} */ (null));
const message = signal("");
let timer = 0;

/** Open a dialog. @param {string} title @param {() => any} show its content, a component */
export function dialog(title, show) {
  open.value = { title, show };
}

function close() {
  open.value = null;
}

/** Say something for a few seconds. @param {string} text */
export function toast(text) {
  message.value = text;
  clearTimeout(timer);
  timer = setTimeout(() => (message.value = ""), 6000);
}

/**
 * The form of a dialog: what is asked, a button that leaves it, and one that carries it out. A refusal is shown in the
 * form, which stays.
 * @param {{text?: string, children?: any, action: string, danger?: boolean, disabled?: boolean,
 *   stays?: boolean, carryOut: () => Promise<unknown>}} props `stays`: the dialog stays afterwards
 */
export function Form({ text, children, action, danger = false, disabled = false, stays = false, carryOut }) {
  const [busy, setBusy] = useState(false);
  const [refusal, setRefusal] = useState("");
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await carryOut();
      if (!stays) close();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setRefusal([problem.message, ...problem.errors.map((each) => `${each.path}: ${each.message}`)].join("\n"));
      setBusy(false);
    }
  };
  return html`<form onSubmit=${submit}>
    ${text && html`<p class="wrap">${text}</p>`}
    ${refusal && html`<p class="note" data-tone="bad" role="alert" style=${{ whiteSpace: "pre-wrap" }}>${refusal}</p>`}
    ${children}
    <div class="row">
      <button type="button" onClick=${close}>Leave it</button>
      <button class=${danger ? "danger" : "main"} disabled=${busy || disabled}>${action}</button>
    </div></form>`;
}

/**
 * Ask before an action, and carry it out.
 * @param {{title: string, text: string, action: string, danger?: boolean, carryOut: () => Promise<unknown>}} what
 */
export function ask({ title, ...form }) {
  dialog(title, () => html`<${Form} ...${form} />`);
}

/** Copy a text. @param {string} text @returns {Promise<boolean>} whether the browser allows it */
export async function copied(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else toast("Browsers copy only from pages that came by https: select the text, and copy it by hand.");
  return Boolean(navigator.clipboard);
}

/** A text that is shown this once, to be copied. @param {{label: string, text: string}} props */
export function Secret({ label, text }) {
  return html`<input type="text" readonly aria-label=${label} size="60" value=${text}
      onFocus=${(/** @type {any} */ event) => event.target.select()} />
    <div class="row"><button onClick=${() => copied(text)}>Copy</button>
      <button class="main" onClick=${close}>Done</button></div>`;
}

/** The place of dialogs and messages in the frame. */
export function Dialog() {
  const element = useRef(/** @type {HTMLDialogElement|null} */ (null));
  const now = open.value;
  useEffect(() => {
    if (now) element.current?.showModal();
  }, [now]);
  return html`${now &&
    html`<dialog ref=${element} onClose=${close} aria-label=${now.title}>
      <div class="head"><h2>${now.title}</h2></div>
      <${now.show} />
    </dialog>`}
    ${message.value && html`<div class="toast" role="alert">${message.value}</div>`}`;
}
