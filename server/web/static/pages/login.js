// Sign in with a token, or with a link that has one behind its `#`: the fragment of an address is never sent.
import { useEffect, useState } from "preact/hooks";
import { ANONYMOUS, Problem, identity, send, whoAmI } from "../api.js";
import { plain } from "../format.js";
import { html, withValue } from "../html.js";
import { runHref } from "../runs.js";
import { ROOT, go, href, set, text } from "../url.js";

/** The token of a link, as the page was opened with it. */
const shared = location.hash.slice(1);

/** Exchange a token for a session of this browser. @param {string} token */
async function signIn(token) {
  set({ project: null }); // another token may act in other projects
  await send("POST", "ui/session", { body: { token } });
  await whoAmI();
}

/** Where to go after signing in: only to pages of this server. */
function next() {
  const wanted = text("next");
  const to = new URL(wanted, ROOT);
  if (identity.value?.project !== "*") to.searchParams.delete("project");
  const here = to.origin === location.origin && to.pathname.startsWith(ROOT.pathname);
  return here && /^(ui(\/|$|\?)|$)/.test(wanted) ? to.pathname + to.search : href("");
}

/** @param {{page: string}} props */
export default function Login({ page }) {
  const [token, setToken] = useState("");
  const [refusal, setRefusal] = useState("");
  const [busy, setBusy] = useState(page === "share");
  const enter = async (/** @type {string} */ given, /** @type {() => string} */ to) => {
    setBusy(true);
    try {
      await signIn(given);
      go(to(), true);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      const advice = page === "share" ? " The link may have expired, or was revoked: ask for a new one." : "";
      setRefusal(problem.message + advice);
      setBusy(false);
    }
  };
  useEffect(() => {
    if (page !== "share") {
      if (identity.value) go(next(), true);
      return;
    }
    history.replaceState(null, "", location.pathname); // neither the history nor a screen shows the token any longer
    whoAmI().then(() => {
      if (identity.value && identity.value.name !== ANONYMOUS) setBusy(false);
      else open();
    });
  }, [page]);
  const open = () =>
    enter(shared, () => {
      const who = identity.value;
      if (who?.run_id) return runHref({ id: who.run_id });
      return who?.ladder_id ? href(`ui/ladders/${who.ladder_id}`) : href("");
    });
  if (busy && page === "share") return html`<p class="empty">Opening the link …</p>`;
  if (page === "share" && !refusal) {
    const who = `You are signed in as ${plain(identity.value?.name ?? "", 200)}. `;
    return html`<section class="card" style=${{ maxWidth: "460px", margin: "40px auto" }}>
      <h1>Open the link?</h1>
      <p class="sentence">${who}The link shows one run or ladder, and ends your session in this browser.</p>
      <button class="main" onClick=${open}>Open it</button> <a class="button" href=${href("")}>Stay signed in</a>
    </section>`;
  }
  const source = html`<code>ludus token create</code> makes one; its owner can revoke it at any time.`;
  return html`<section class="card" style=${{ maxWidth: "460px", margin: "40px auto" }}>
    <h1>Sign in</h1>
    <p class="sentence">With a token of this server. ${source}</p>
    ${refusal && html`<p class="note" data-tone="bad" role="alert">${refusal}</p>`}
    <form onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), enter(token.trim(), next))}>
      <div class="field"><label for="token">Token</label>
        <input id="token" type="password" autocomplete="current-password" required value=${token}
          onInput=${withValue(setToken)} /></div>
      <button class="main" disabled=${busy || !token.trim()}>Sign in</button>
    </form></section>`;
}
