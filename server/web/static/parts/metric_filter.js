// Which metrics a page shows: a regular expression in the address, and pinned ones, which come first.
import { html, withValue } from "../html.js";
import { list, set, text } from "../url.js";

/** A field for a regular expression. @param {{keys: string[]}} props */
export function MetricFilter({ keys }) {
  const found = MetricFilter.chosen(keys, []).length;
  const words = expression(text("keys"))
    ? `${found} of ${keys.length} metrics`
    : "this is no regular expression; all metrics are shown";
  return html`<div class="row" style=${{ marginBottom: "12px" }}>
    <input type="search" size="34" placeholder="Metrics, as in: Reward|Entropy" value=${text("keys")}
      aria-label="Filter of metrics (a regular expression)" onInput=${withValue((keys) => set({ keys }))} />
    <small>${words}</small>
  </div>`;
}

/** The metrics to show, pinned ones first. @param {string[]} keys @param {string[]} pinned */
MetricFilter.chosen = (keys, pinned) => {
  const wanted = expression(text("keys")) ?? /(?:)/;
  const fitting = keys.filter((key) => wanted.test(key));
  return [...fitting.filter((key) => pinned.includes(key)), ...fitting.filter((key) => !pinned.includes(key))];
};

/** @param {string} words @returns {RegExp|null} null: it is not one */
function expression(words) {
  try {
    return new RegExp(words, "i");
  } catch {
    return null;
  }
}

/** Pinned metrics, from the address, and the button that pins one. @returns {[string[], (key: string) => any]} */
export function usePins() {
  const pinned = list("pins");
  const button = (/** @type {string} */ key) => {
    const on = pinned.includes(key);
    const turn = () => set({ pins: on ? pinned.filter((each) => each !== key) : [...pinned, key] });
    return html`<button class="quiet" aria-pressed=${on} title=${on ? "Let it go" : "Keep it first"} onClick=${turn}>
      ${on ? "★" : "☆"}</button>`;
  };
  return [pinned, button];
}
