// Fresh data while somebody looks: polls and one event stream per tab, and neither while the tab is hidden.
import { useEffect, useRef, useState } from "preact/hooks";
import { effect, signal } from "@preact/signals";
import { Problem, get, send } from "./api.js";
import { project } from "./url.js";

/** Whether the tab can be seen. */
export const visible = signal(document.visibilityState === "visible");
document.addEventListener("visibilitychange", () => {
  visible.value = document.visibilityState === "visible";
});

/** @typedef {"live"|"paused"|"disconnected"} Freshness */
/** Whether what is on the page is fresh, for the mark in its header. */
export const connection = signal({ state: /** @type {Freshness} */ ("live"), since: Date.now() });

/** @param {Freshness} state */
function connected(state) {
  if (connection.peek().state !== state) connection.value = { state, since: Date.now() };
}

effect(() => connected(visible.value ? "live" : "paused"));

/**
 * Load something, and again every so often while the tab is visible and the component is there. The next request
 * begins after the answer to the last one, so that a slow server gets fewer of them.
 * @template T
 * @param {() => Promise<T>} load
 * @param {{seconds?: number|null, again?: unknown[], wanted?: boolean}} [when] seconds null: once; `again`: load
 *   at once if one of these changes; `wanted` false: load nothing for now, and keep what there is
 * @returns {{data: T|undefined, problem: Problem|null, reload: () => void}}
 */
export function useLive(load, { seconds = 5, again = [], wanted = true } = {}) {
  const [answer, setAnswer] = useState(/** @type {{data?: T, problem: Problem|null}} */ ({ problem: null }));
  const latest = useRef(load);
  latest.current = load;
  const wake = useRef(() => {});
  useEffect(() => {
    if (!wanted) return undefined;
    let over = false;
    let timer = 0;
    let failures = 0;
    let newest = 0;
    const round = async () => {
      clearTimeout(timer);
      if (over || !visible.value) return;
      const mine = (newest += 1);
      try {
        const data = await latest.current();
        if (over || mine !== newest) return; // a later request has been sent: its answer counts
        failures = 0;
        if (visible.value) connected("live");
        setAnswer({ data, problem: null });
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        if (over || mine !== newest) return;
        failures += 1;
        if (problem.status === 0 && visible.value) connected("disconnected");
        setAnswer((old) => ({ data: old.data, problem }));
        if (problem.status === 401 || problem.status === 403) return;
      }
      const pause = failures ? Math.min(30, 2 ** failures) : seconds;
      if (pause !== null) timer = setTimeout(round, 1000 * pause);
    };
    wake.current = round;
    const stop = effect(() => {
      if (visible.value) setTimeout(round, 0);
      else clearTimeout(timer);
    });
    return () => {
      over = true;
      clearTimeout(timer);
      stop();
    };
  }, [seconds, project.value, wanted, ...again]);
  return { ...answer, data: answer.data, reload: () => wake.current() };
}

/**
 * Get a document, and again every so often; at once if its path or query changes, or what is in `again`.
 * @param {string} path @param {Record<string, any>} [query]
 * @param {{seconds?: number|null, again?: unknown[], wanted?: boolean}} [when] as `useLive` has it
 */
export function useGet(path, query = {}, { again = [], ...when } = {}) {
  return useLive(() => get(path, query), { ...when, again: [JSON.stringify([path, query]), ...again] });
}

/** A number that grows every so often while the tab is visible. @param {number|null} seconds null: it does not */
export function useTick(seconds) {
  const [tick, setTick] = useState(0);
  useEffect(() => {
    if (seconds === null) return undefined;
    const timer = setInterval(() => visible.value && setTick((old) => old + 1), 1000 * seconds);
    return () => clearInterval(timer);
  }, [seconds]);
  return tick;
}

/**
 * A value that follows another one at most every so often: a thousand events in a second are one reason to look again.
 * @template T
 * @param {T} value @param {number} [seconds]
 */
export function useCalm(value, seconds = 3) {
  const [shown, setShown] = useState(value);
  const changed = useRef(0);
  useEffect(() => {
    if (value === shown) return undefined;
    const change = () => {
      changed.current = Date.now();
      setShown(value);
    };
    const timer = setTimeout(change, Math.max(0, changed.current + 1000 * seconds - Date.now()));
    return () => clearTimeout(timer);
  }, [value, shown]);
  return shown;
}

/**
 * Parse server-sent events from text that arrives in pieces.
 * @param {(event: {type: string, id: string, data: string}) => void} take
 * @returns {(text: string) => void} call it with each piece
 */
export function parser(take) {
  let rest = "";
  let event = { type: "message", id: "", data: "" };
  return (text) => {
    const lines = (rest + text).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const [name, value] = [line.split(":", 1)[0], line.slice(line.indexOf(":") + 1).replace(/^ /, "")];
      if (line === "") {
        if (event.data) take(event);
        event = { type: "message", id: event.id, data: "" };
      } else if (name === "event") event.type = value;
      else if (name === "data") event.data += value;
      else if (name === "id") event.id = value;
    }
  };
}

/**
 * Follow an event stream while the component is there and the tab is visible. Continues after the last event when the
 * tab comes back or the server is back. Gives each event once: by the run and its number.
 * @param {string|null} path `v1/events:stream`; null: none
 * @param {(event: any) => void} take
 * @param {() => void} [reset] called where events may be missing: read everything again
 */
export function useEvents(path, take, reset = () => {}) {
  const latest = useRef({ take, reset });
  latest.current = { take, reset };
  useEffect(() => {
    if (path === null) return undefined;
    /** @type {Map<string, number>} newest number by run */
    const seen = new Map();
    let position = "";
    let over = false;
    let newest = 0; // a loop that began later replaces those before it
    let stream = /** @type {AbortController|null} */ (null);

    const take = (/** @type {{type: string, id: string, data: string}} */ message) => {
      if (message.type === "reset") latest.current.reset();
      if (message.type === "end") over = true;
      if (message.type !== "message") return;
      position = message.id;
      const event = JSON.parse(message.data);
      if (event.seq <= (seen.get(event.run_id ?? "") ?? 0)) return;
      seen.set(event.run_id ?? "", event.seq);
      latest.current.take(event);
    };

    const follow = async () => {
      let failures = 0;
      const mine = (newest += 1);
      while (!over && visible.value && mine === newest) {
        stream = new AbortController();
        try {
          const headers = { Accept: "text/event-stream", ...(position && { "Last-Event-ID": position }) };
          const answer = await send("GET", path, { headers, signal: stream.signal });
          connected("live");
          if (answer.status === 204 || !answer.body) return;
          failures = 0;
          const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
          const feed = parser(take);
          for (let piece = await reader.read(); !piece.done; piece = await reader.read()) feed(piece.value);
        } catch (problem) {
          if (stream.signal.aborted || (problem instanceof Problem && [401, 403, 404].includes(problem.status))) return;
        }
        if (over || !visible.value || mine !== newest) return;
        connected("disconnected");
        failures += 1;
        await new Promise((done) => setTimeout(done, 1000 * Math.min(15, 2 ** (failures - 1))));
      }
    };
    const stop = effect(() => {
      if (visible.value) setTimeout(follow, 0); // outside of the effect, which would depend on all that it reads
      else stream?.abort();
    });
    return () => {
      over = true;
      stream?.abort();
      stop();
    };
  }, [path, project.value]);
}
