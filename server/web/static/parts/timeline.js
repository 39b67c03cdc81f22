// What happened to a run, newest first: its events, as sentences.
import { useRef, useState } from "preact/hooks";
import { ago, moment, plain } from "../format.js";
import { choices, html, withValue } from "../html.js";
import { useEvents } from "../live.js";
import { set, text } from "../url.js";

const LEVELS = { "": "all levels", warning: "warnings and errors", error: "errors" };
/** Events that are shown at once. */
const MOST = 200;
/** Milliseconds for which events are collected before the page is drawn again. */
const BATCH = 500;

/** @typedef {Record<"at"|"type"|"level"|"message", string> & {seq: number, attempt: any, data: any}} RunEvent */

/** The events of a run, oldest first: what has happened, then each as it happens. @param {string|undefined} run */
export function useRunEvents(run) {
  const [events, setEvents] = useState(/** @type {RunEvent[]} */ ([]));
  const fresh = useRef(/** @type {RunEvent[]} */ ([]));
  const timer = useRef(0);
  useEvents(run ? `v1/runs/${run}/events:stream` : null, (event) => {
    fresh.current.push(event);
    timer.current ||= setTimeout(() => {
      timer.current = 0;
      const added = fresh.current.splice(0);
      setEvents((old) => [...old, ...added]);
    }, BATCH);
  });
  return events;
}

/** @param {{events: RunEvent[]}} props */
export function Timeline({ events }) {
  const [words, level] = [text("find"), text("level")];
  const [shown, setShown] = useState(MOST);
  const wanted = words.toLowerCase();
  const found = events.filter(
    (each) =>
      (!level || each.level === level || (level === "warning" && each.level === "error")) &&
      (!wanted || `${each.type} ${each.message}`.toLowerCase().includes(wanted)),
  );
  const rows = found.slice(-shown).reverse();
  return html`<div class="row" style=${{ marginBottom: "10px" }}>
      <input type="search" placeholder="Search events" aria-label="Search events" value=${words}
        onInput=${withValue((find) => set({ find }))} />
      <select aria-label="Level" value=${level} onChange=${withValue((chosen) => set({ level: chosen }))}>
        ${choices(LEVELS)}</select>
      <small>${found.length} of ${events.length} events</small>
    </div>
    <ol class="timeline">
      ${rows.map((each) => {
        const by = each.data?.by ? ` by ${plain(String(each.data.by), 80)}` : "";
        return html`<li key=${each.seq} data-level=${each.level}>
          <span class="small" title=${moment(each.at)}>
            ${moment(each.at)}<br />${ago(each.at)}${each.attempt ? ` · attempt ${each.attempt}` : ""}</span>
          <span><span class="type">${each.type.replaceAll("_", " ")}${by}</span><br />
            <span class="wrap">${plain(each.message)}</span></span></li>`;
      })}
    </ol>
    ${found.length > shown && html`<button onClick=${() => setShown(shown + MOST)}>
      Show ${Math.min(MOST, found.length - shown)} earlier ones</button>`}
    ${!found.length &&
    html`<p class="empty">${events.length ? "No event has these words." : "Loading …"}</p>`}`;
}

