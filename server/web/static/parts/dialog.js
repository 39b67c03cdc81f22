// One dialog at a time, questions before what cannot be undone, and short messages.
import { useEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { Problem } from "../api.js";
import { html } from "../html.js";

const open = signal(/** @type {{title: string, show: any}|null} */ (null));
const message = signal("");
let timer = 0;

/**
 * Open a dialog. @param {string} title @param {(props: {close: () => void}) => any} show its content, a component
 */
export function dialog(title, show) {
  open.value = { title, show };
}

/** Say something for a few seconds. @param {string} text */
export function toast(text) {
  message.value = text;
  clearTimeout(timer);
  timer = setTimeout(() => (message.value = ""), 6000);
}

/**
 * Ask before an action, and carry it out. A refusal is shown in the dialog, which stays.
 * @param {{title: string, text: string, action: string, danger?: boolean, carryOut: () => Promise<unknown>}} what
 */
export function ask({ title, text, action, danger = false, carryOut }) {
  dialog(title, ({ close }) => {
    const [busy, setBusy] = useState(false);
    const [refusal, setRefusal] = useState("");
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault();
      setBusy(true);
      try {
        await carryOut();
        close();
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        setRefusal(problem.message);
        setBusy(false);
      }
    };
    return html`<form onSubmit=${submit}>
      <p class="wrap">${text}</p>
      ${refusal && html`<p class="note" data-tone="bad" role="alert">${refusal}</p>`}
      <div class="row">
        <button type="button" onClick=${close}>Leave it</button>
        <button class=${danger ? "danger" : "main"} disabled=${busy}>${action}</button>
      </div>
    </form>`;
  });
}

/** The place of dialogs and messages in the frame. */
export function Dialog() {
  const element = useRef(/** @type {HTMLDialogElement|null} */ (null));
  const now = open.value;
  useEffect(() => {
    if (now) element.current?.showModal();
  }, [now]);
  const close = () => (open.value = null);
  return html`
    ${now &&
    html`<dialog ref=${element} onClose=${close} aria-label=${now.title}>
      <div class="head"><h2>${now.title}</h2></div>
      <${now.show} close=${close} />
    </dialog>`}
    ${message.value && html`<div class="toast" role="alert">${message.value}</div>`}
  `;
}
