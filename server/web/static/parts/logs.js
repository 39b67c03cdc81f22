// Log files of a run's attempts: open at the end, follow it, scroll up for earlier parts, search, download.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { href, set, text } from "../url.js";
import { ago, bytes, logLine, plain } from "../format.js";
import { html, withValue } from "../html.js";
import { useGet, useLive } from "../live.js";
import { Missing } from "./signs.js";

/** Bytes of a part. */
const PART = 64 * 1024;
/** Parts in the page at once: more would make it slow. */
const MOST_PARTS = 24;

/** @param {{run: string, live: boolean}} props */
export function Logs({ run, live }) {
  const { data, problem } = useGet(`v1/runs/${run}/logs`, {}, { seconds: live ? 10 : null });
  const logs = /** @type {any[]} */ (data?.logs ?? []);
  const chosen = text("log");
  const names = logs.map((each) => `${each.attempt}/${each.name}`);
  if (!logs.length) {
    const none = "There is no log yet. A worker writes one as soon as it trains the run.";
    return html`<${Missing} data=${data} problem=${problem}>${none}<//>`;
  }
  const usual = names.findLast((each) => each.includes("trainer")) ?? names[names.length - 1];
  const name = names.includes(chosen) ? chosen : usual;
  const log = logs[names.indexOf(name)];
  const path = `v1/runs/${run}/attempts/${log.attempt}/logs/${encodeURIComponent(log.name)}`;
  return html`<div class="row" style=${{ marginBottom: "10px" }}>
      <select aria-label="Log" value=${name} onChange=${withValue((file) => set({ log: file }))}>
        ${logs.map((each, i) => {
          const words = `attempt ${each.attempt} · ${each.name}`;
          return html`<option key=${names[i]} value=${names[i]}>${words}</option>`;
        })}
      </select>
      <small>${bytes(log.size)}, written ${ago(log.updated_at)}</small>
      <a class="button" href=${href(`${path}/file`)} download=${log.name}>Download</a>
    </div>
    <${LogFile} key=${name} path=${path} live=${live} />`;
}

/** @param {{path: string, live: boolean}} props */
function LogFile({ path, live }) {
  const [parts, setParts] = useState(/** @type {{offset: number, next: number, text: string}[]} */ ([]));
  const words = text("find");
  const place = useRef(/** @type {HTMLPreElement|null} */ (null));
  const atEnd = useRef(true);
  const end = parts.at(-1)?.next;
  const { problem } = useLive(
    async () => {
      const part = await get(path, end === undefined ? { tail: PART, limit: PART } : { offset: end, limit: PART });
      if (!part.text || !atEnd.current) return part; // who reads earlier lines keeps them
      setParts((old) => [...old, { offset: part.offset, next: part.next_offset, text: part.text }].slice(-MOST_PARTS));
      return part;
    },
    { seconds: live ? 3 : null },
  );
  useEffect(() => {
    if (atEnd.current && place.current) place.current.scrollTop = place.current.scrollHeight;
  }, [parts]);
  const earlier = async () => {
    let loaded = parts;
    do {
      const [{ offset: next }, offset] = [loaded[0], Math.max(0, loaded[0].offset - PART)];
      const { text } = await get(path, { offset, limit: next - offset });
      loaded = [{ offset, next, text }, ...loaded].slice(0, MOST_PARTS);
    } while (wanted && loaded[0].offset > 0 && !loaded[0].text.toLowerCase().includes(wanted));
    const before = place.current?.scrollHeight ?? 0;
    setParts(loaded);
    requestAnimationFrame(() => place.current && (place.current.scrollTop += place.current.scrollHeight - before));
  };
  const lines = useMemo(() => parts.map((part) => part.text).join("").split("\n").map(logLine), [parts]);
  const wanted = words.toLowerCase();
  const found = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
  const scrolled = (/** @type {any} */ { target: { scrollTop, scrollHeight, clientHeight } }) => {
    atEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  return html`<div class="row" style=${{ marginBottom: "8px" }}>
      <input type="search" placeholder="Search the loaded part" aria-label="Search the log" value=${words}
        onInput=${withValue((find) => set({ find }))} />
      ${wanted && html`<small>${found.length} lines</small>`}
      ${parts[0]?.offset > 0 && html`<button onClick=${earlier}>${wanted ? "Search" : "Load"} earlier lines</button>`}
    </div>
    ${problem && html`<p class="note" data-tone="bad">${problem.message}</p>`}
    <pre class="log" tabindex="0" aria-label="Log" ref=${place} onScroll=${scrolled}>${
      plain(found.join("\n"), 4_000_000) || "The log is empty."}</pre>`;
}
