// Preact with templates in plain JavaScript: html`<b>${text}</b>` makes elements. Texts are escaped by construction.
// A line break beside a tag or an expression leaves no space in the page; ${" "} at the end of a line does.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);

/** A handler of a field that hands on its text: onInput=${withValue(setName)}. @param {(text: string) => void} take */
export function withValue(take) {
  return (/** @type {any} */ event) => take(event.target.value);
}

/** The choices of a select. @param {Record<string, string>} words by value */
export function choices(words) {
  return Object.entries(words).map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`);
}
