// Shows the server's version. Addresses are relative to <base>, so that the server may stand below any prefix.
import { h, render } from "preact";
import htm from "htm";

const html = htm.bind(h);

const answer = await fetch("version");
const { version } = await answer.json();
render(html`<main><h1>Ludus</h1><p>Release ${version}.</p></main>`, document.getElementById("app"));
