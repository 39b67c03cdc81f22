// A table of a list. On a phone each row is a card, with the names of its columns.
import { html } from "../html.js";

/** Name, what a row has there, class of its cells, width. */
/** @typedef {[string, (row: any, i: number) => any, string?, string?]} Column */

/** A table in a card; only columns that are there. @param {any[]} rows @param {(Column|false|undefined)[]} columns */
export function table(rows, columns, { frame = "scroll", style = {} } = {}) {
  const shown = columns.filter((each) => each !== undefined && each !== false);
  const heads = shown.map(([name, , kind, width], column) => {
    const look = kind === "number" ? kind : undefined;
    return html`<th scope="col" key=${column} class=${look} style=${{ width }}>${name}</th>`;
  });
  const body = rows.map((row, i) => {
    const cells = shown.map(
      ([name, show, kind], column) => html`<td key=${column} class=${kind} data-name=${name}>${show(row, i)}</td>`,
    );
    return html`<tr key=${row.id ?? row.session_id ?? row.seq ?? row.number ?? i}>${cells}</tr>`;
  });
  return html`<div class=${frame} tabindex="0" style=${style}>
    <table class="cards"><thead><tr>${heads}</tr></thead><tbody>${body}</tbody></table></div>`;
}

/** A table that is a card of its own. @param {any[]} rows @param {(Column|false|undefined)[]} columns */
export function cardTable(rows, columns) {
  return table(rows, columns, { frame: "scroll card", style: { padding: 0 } });
}
