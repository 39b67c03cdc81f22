// Signs in and out. Addresses are relative to <base>, so that the server may stand below any prefix.
import { h, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import htm from "htm";

const html = htm.bind(h);

/** The address of a page of this server. */
const page = (path) => new URL(path, document.baseURI);

/** The path of the page that is shown, from the server's root: "ui/login". */
const shown = () => location.pathname.slice(page("./").pathname.length);

/** Ask the server about the session. Resolves to the identity, null after signing out; throws an Error with its words. */
async function session(method, body) {
  const answer = await fetch(page("ui/session"), {
    method,
    headers: body && { "Content-Type": "application/json" },
    body: body && JSON.stringify(body),
  });
  if (answer.status === 204) return null;
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.detail), { status: answer.status });
  return content;
}

/** The page of what a token is bound to. */
function bound(identity) {
  if (identity.run_id) return page(`ui/runs/${identity.run_id}`);
  if (identity.ladder_id) return page(`ui/ladders/${identity.ladder_id}`);
  return page("./");
}

function SignIn({ problem }) {
  const [failure, setFailure] = useState(problem);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      await session("POST", { token: form.get("token"), project: form.get("project") || null });
      if (shown() === "ui/login") location.replace(page("./"));
      else location.reload();
    } catch (error) {
      setFailure(error.message);
    }
  };
  return html`
    <form onSubmit=${submit}>
      <h1>Ludus</h1>
      ${failure && html`<p role="alert">${failure}</p>`}
      <label>Token <input name="token" type="password" autocomplete="current-password" required autofocus /></label>
      <label>Project, if the token is for all <input name="project" autocomplete="off" /></label>
      <button>Sign in</button>
    </form>
  `;
}

function Welcome({ identity }) {
  const [failure, setFailure] = useState("");
  const leave = () =>
    session("DELETE").then(
      () => location.replace(page("ui/login")),
      (error) => setFailure(error.message),
    );
  return html`
    <main>
      <h1>Ludus</h1>
      ${failure && html`<p role="alert">${failure}</p>`}
      <p>You are <b>${identity.name}</b> in project <b>${identity.acts_in}</b> (${identity.scopes.join(", ")}).</p>
      <button onClick=${leave}>Sign out</button>
    </main>
  `;
}

/** A link with a token. A browser that is signed in already is asked first: the link could be anyone's. */
function Share({ token, identity }) {
  const [failure, setFailure] = useState("");
  const open = () =>
    session("POST", { token }).then(
      (signedIn) => location.replace(bound(signedIn)),
      (error) => setFailure(error.message),
    );
  useEffect(() => {
    if (!identity) open();
  }, []);
  if (failure) return html`<${SignIn} problem=${failure} />`;
  if (!identity) return html`<p>Signing in …</p>`;
  return html`
    <main>
      <h1>Ludus</h1>
      <p>You are signed in as <b>${identity.name}</b>. The link would sign you out and show what it is for.</p>
      <button onClick=${open}>Open the link</button>
    </main>
  `;
}

function App({ token, identity, problem }) {
  if (token) return html`<${Share} token=${token} identity=${identity} />`;
  if (!identity || shown() === "ui/login") return html`<${SignIn} problem=${problem} />`;
  return html`<${Welcome} identity=${identity} />`;
}

const token = shown() === "ui/share" ? location.hash.slice(1) : "";
if (token) history.replaceState(null, "", location.pathname); // neither the history nor a screen shows it any longer
let identity = null;
let problem = "";
try {
  identity = await session("GET");
} catch (error) {
  if (error.status !== 401) problem = error.message;
}
render(html`<${App} token=${token} identity=${identity} problem=${problem} />`, document.getElementById("app"));
