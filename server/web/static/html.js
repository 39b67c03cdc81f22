// Preact with templates in plain JavaScript: html`<b>${text}</b>` makes elements. Texts are escaped by construction.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
