// Requests to the public API. An answer that is no success is a Problem, with the server's own sentence.
import { signal } from "@preact/signals";
import { ROOT, project } from "./url.js";

/** Who sends the requests of this page (`/v1/tokens/self`); null: not known yet, or nobody. */
export const identity = signal(/** @type {Identity|null} */ (null));
/** Whether the server wants a token first. */
export const signedOut = signal(false);

/** The name of everybody on a server that demands no token: there is no session to end. */
export const ANONYMOUS = "anonymous loopback";

/** @typedef {{name: string, token_id: string|null, scopes: string[], project: string, acts_in: string,
 *   run_id: string|null, ladder_id: string|null}} Identity */

/** A refused request, as RFC 9457 has it. */
export class Problem extends Error {
  /** @param {number} status 0: no answer @param {Record<string, any>} body */
  constructor(status, body) {
    super(body.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.code = body.code ?? "unknown";
    /** @type {{path: string, code: string, message: string, line?: number}[]} */
    this.errors = body.errors ?? [];
    this.requestId = body.request_id ?? "";
  }

  /** What a person can do about it, as a sentence; "" where the problem says it itself. */
  get next() {
    if (this.status === 0) return "The page tries again by itself. Is the server running, and is the network there?";
    if (this.status === 403) return "This token may not do that. Sign in with another one, or ask its owner.";
    if (this.status === 404) return "It may have been deleted, or it belongs to another project.";
    if (this.status === 429) return "Wait a moment; the page tries again by itself.";
    if (this.status >= 500) return `The page tries again by itself. The server's log has it under ${this.requestId}.`;
    return "";
  }
}

/**
 * Send a request. Raises Problem.
 * @param {string} method
 * @param {string} path below the server's address: `v1/runs`
 * @param {{query?: Record<string, any>, body?: unknown, yaml?: string, signal?: AbortSignal,
 *   headers?: Record<string, string>}} [what]
 */
export async function send(method, path, what = {}) {
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(what.query ?? {})) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") url.searchParams.append(name, String(each));
    }
  }
  const headers = new Headers(what.headers);
  if (project.value) headers.set("Ludus-Project", project.value);
  let content;
  if (what.yaml !== undefined) {
    headers.set("Content-Type", "application/yaml");
    content = what.yaml;
  } else if (what.body !== undefined) {
    headers.set("Content-Type", "application/json");
    content = JSON.stringify(what.body);
  }
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: content, signal: what.signal, credentials: "same-origin" });
  } catch (error) {
    if (what.signal?.aborted) throw error;
    throw new Problem(0, { code: "unreachable", detail: "The server does not answer." });
  }
  if (answer.ok) return answer;
  const problem = new Problem(answer.status, await answer.json().catch(() => ({})));
  if (answer.status === 401) [signedOut.value, identity.value] = [true, null];
  throw problem;
}

/** Requests that are on their way, by address: nobody asks for the same thing twice at once. */
const inFlight = new Map();

/** Get a JSON document. @param {string} path @param {Record<string, any>} [query] @returns {Promise<any>} */
export function get(path, query = {}) {
  const key = JSON.stringify([path, query, project.value]);
  let answer = inFlight.get(key);
  if (!answer) {
    answer = send("GET", path, { query })
      .then((found) => found.json())
      .finally(() => inFlight.delete(key));
    inFlight.set(key, answer);
  }
  return answer;
}

/**
 * Change something; returns the answer's document, null where it has none. A repetition has no second effect.
 * @param {string} method @param {string} path @param {unknown} [body] @param {Record<string, any>} [query]
 * @returns {Promise<any>}
 */
export async function change(method, path, body, query = {}) {
  const headers = /** @type {Record<string, string>} */ ({});
  if (method === "POST" || method === "PATCH") headers["Idempotency-Key"] = random();
  const answer = await send(method, path, { body, query, headers });
  return answer.status === 204 ? null : answer.json();
}

/** `crypto.randomUUID` is missing where a page came by plain http from another machine. */
function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
}

/** Find out who one is. Sets `identity`, or `signedOut`. */
export async function whoAmI() {
  try {
    identity.value = await get("v1/tokens/self");
    signedOut.value = false;
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
    identity.value = null;
  }
}

/** Whether the token of this page has a scope. @param {"read"|"run"|"admin"} scope */
export function may(scope) {
  return identity.value?.scopes.includes(scope) ?? false;
}
