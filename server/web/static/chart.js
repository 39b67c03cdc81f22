// One chart: curves with bands, zoom, a shared cursor, marks, and the table of its values. The only user of uPlot.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { html } from "./html.js";
import { clock, count, duration, number, ticks } from "./format.js";
import { csv, nearest, rangeOf } from "./series.js";
import { theme } from "./theme.js";

/** @typedef {import("./series.js").Curve & {color: string}} ColoredCurve */
/** @typedef {"step"|"time"|"relative"} AxisKind */
/** A vertical line. @typedef {{x: number, label: string, kind: string}} Mark */

/** With more curves than this, bands would cover each other. */
const MOST_BANDS = 8;
const MOST_ROWS = 10;
/** Screens around the visible part in which charts are drawn. */
const AHEAD = "300px";

/** Show x as text. @param {AxisKind} kind @param {number|null|undefined} x */
export function xText(kind, x) {
  if (x === null || x === undefined) return "–";
  return kind === "step" ? count(x) : kind === "time" ? clock(1000 * x) : duration(x);
}

/** Whether an element is on the screen, or nearly. @param {{current: HTMLElement|null}} ref */
function useNearScreen(ref) {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: AHEAD });
    if (ref.current) observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return near;
}

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} [props.meaning] shown with the title
 * @param {number[]} props.x shared by all curves, ascending
 * @param {ColoredCurve[]} props.curves
 * @param {AxisKind} [props.kind]
 * @param {boolean} [props.log] logarithmic y axis
 * @param {boolean} [props.clip] leave out outliers
 * @param {[number, number]|null} [props.window] part of x that is shown; null: all
 * @param {(window: [number, number]|null) => void} [props.onWindow] the reader has chosen another part
 * @param {Mark[]} [props.marks]
 * @param {string} [props.cursor] charts with the same name share their cursor
 * @param {any} [props.actions] buttons of the page's own
 * @param {string} [props.empty] the sentence where there is nothing to draw
 * @param {number} [props.height]
 * @param {(near: boolean) => void} [props.onNear] the chart has come near the screen, or gone from there
 */
export function Chart(props) {
  const { title, x, curves, kind = "step", height = 220, empty = "No values yet.", onNear } = props;
  const frame = useRef(/** @type {HTMLElement|null} */ (null));
  const plot = useRef(/** @type {uPlot|null} */ (null));
  const [table, setTable] = useState(false);
  const near = useNearScreen(frame);
  useEffect(() => onNear?.(near), [near]);
  const some = x.length > 0 && curves.length > 0;
  const filled = some && (!props.log || curves.some((each) => each.values.some((value) => Number(value) > 0)));
  const last = curves.map((each) => each.values.findLast((value) => value !== null));
  const label = `${title}: ${curves
    .slice(0, MOST_ROWS)
    .map((each, i) => `${each.label} ${number(last[i])}`)
    .join(", ")}`;
  const bands = [...new Set(curves.map((each) => each.band))].join("; ");
  return html`<figure class="chart" ref=${frame}>
    <figcaption>
      <span class="title" title=${props.meaning ? `${title}: ${props.meaning}` : title}>${title}</span>
      <span class="tools">
        ${props.actions}
        <button class="quiet" aria-pressed=${table} onClick=${() => setTable(!table)} title="Table of values">≣</button>
        <button class="quiet" onClick=${() => saveCsv(title, kind, x, curves)} title="Save as CSV">CSV</button>
        <button class="quiet" onClick=${() => savePng(title, plot.current)} title="Save as PNG" disabled=${!filled}
          >PNG</button></span></figcaption>
    ${!filled && html`<p class="empty" style=${{ minHeight: `${height}px` }}>
      ${some ? "No value is above 0: a logarithmic axis shows none." : empty}</p>`}
    ${filled && table && html`<${Values} kind=${kind} x=${x} curves=${curves} />`}
    ${filled && !table && html`<div class="canvas" style=${{ height: `${height}px` }}>
      ${near && html`<${Drawing} ...${props} kind=${kind} height=${height} plot=${plot} label=${label} />`}
    </div>`}
    ${filled && html`<div class="legend">
      ${curves.slice(0, MOST_ROWS).map(({ label, color }, i) => {
        const words = html`${label} <b>${number(last[i])}</b>`;
        return html`<span key=${label}><i style=${{ background: color }}></i>${words}</span>`;
      })}
      ${curves.length > MOST_ROWS && html`<span>and ${curves.length - MOST_ROWS} more</span>`}
      ${bands && curves.length <= MOST_BANDS && html`<small>${bands}</small>`}
    </div>`}
  </figure>`;
}

/** The canvas: made while the chart is near the screen, made again where its form changes. @param {any} props */
function Drawing(props) {
  const { x, curves, kind, log, clip, window, marks = [], cursor, height, plot } = props;
  const place = useRef(/** @type {HTMLDivElement|null} */ (null));
  const tip = useRef(/** @type {HTMLDivElement|null} */ (null));
  const latest = /** @type {Latest} */ (useRef(props));
  latest.current = props;
  const colors = curves.map((/** @type {ColoredCurve} */ each) => each.color).join();
  const smoothed = curves.some((/** @type {ColoredCurve} */ each) => each.smoothed);
  const form = [colors, smoothed, kind, Boolean(log), cursor, height, theme.value].join("|");

  useEffect(() => {
    const target = /** @type {HTMLDivElement} */ (place.current);
    const made = new uPlot(options(latest, tip, target.clientWidth), columns(x, curves, smoothed), target);
    plot.current = made;
    show(made, latest.current);
    const observer = new ResizeObserver(() => made.setSize({ width: target.clientWidth, height }));
    observer.observe(target);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [form]);
  useEffect(() => {
    const made = plot.current;
    if (!made || latest.dragging) return;
    made.setData(columns(x, curves, smoothed), false);
    show(made, latest.current);
  }, [x, curves, clip, window, marks]);

  const label = `${props.label}. Left and right move the cursor, Escape shows everything again.`;
  return html`<div ref=${place} class="drawing" tabindex="0" role="application" aria-label=${label}
    onKeyDown=${(/** @type {KeyboardEvent} */ event) => moveCursor(event, plot.current, props)}>
    <div ref=${tip} class="tip" role="status" hidden></div>
  </div>`;
}

/** uPlot's columns: x, then for each curve its line, its smoothed line, and the edges of its band.
 * @param {number[]} x @param {ColoredCurve[]} curves @param {boolean} smoothed @returns {any} */
function columns(x, curves, smoothed) {
  const banded = curves.length <= MOST_BANDS;
  return [
    x,
    ...curves.flatMap((each) => [
      each.values,
      ...(smoothed ? [each.smoothed ?? each.values.map(() => null)] : []),
      ...(banded ? [each.high, each.low] : []),
    ]),
  ];
}

/** Set the scales as the page says. @param {uPlot} plot @param {any} props */
function show(plot, { x, curves, log, clip, window }) {
  const whole = [x[0], x.at(-1)];
  const [from, to] = window ?? whole;
  const room = from === to ? 1 : 0;
  const within = (/** @type {(number|null)[]} */ values) => values.filter((_, i) => x[i] >= from && x[i] <= to);
  const inside = curves.map((/** @type {ColoredCurve} */ each) => ({
    ...each,
    values: within(each.values),
    low: within(curves.length <= MOST_BANDS ? each.low : each.values),
    high: within(curves.length <= MOST_BANDS ? each.high : each.values),
  }));
  const range = rangeOf(inside, { clip, log }) ?? [log ? 1 : 0, log ? 10 : 1];
  plot.batch(() => {
    plot.setScale("x", { min: from - room, max: to + room });
    plot.setScale("y", padded(range, log));
  });
}

/** @param {[number, number]} range @param {boolean} log */
function padded([low, high], log) {
  if (log) return low === high ? { min: low / 2, max: high * 2 } : { min: low, max: high };
  const room = low === high ? Math.abs(low) / 10 || 1 : (high - low) * 0.06;
  return { min: low - room, max: high + room };
}

/** What a drawing was last asked to show. @typedef {{current: any, dragging?: boolean}} Latest */

/** @param {Latest} latest @param {{current: HTMLElement|null}} tip @param {number} width @returns {any} */
function options(latest, tip, width) {
  const { curves, kind, log, cursor, height } = latest.current;
  const banded = curves.length <= MOST_BANDS;
  const smoothed = curves.some((/** @type {ColoredCurve} */ each) => each.smoothed);
  const style = getComputedStyle(document.documentElement);
  const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--faint"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
  const series = [{}];
  const bands = [];
  for (const each of curves) {
    const known = each.values.filter((/** @type {number|null} */ value) => value !== null).length;
    const line = { spanGaps: true, points: { show: known === 1 }, stroke: each.color };
    series.push({ ...line, width: smoothed ? 1 : 1.5, alpha: smoothed ? 0.35 : 1 });
    if (smoothed) series.push({ ...line, width: 1.75 });
    if (banded) {
      const edge = { show: true, stroke: "transparent", points: { show: false }, spanGaps: true };
      series.push(edge, { ...edge });
      bands.push({ series: [series.length - 2, series.length - 1], fill: `${each.color}26` }); // 15 %
    }
  }
  return {
    width,
    height,
    series,
    bands,
    legend: { show: false },
    scales: { x: { time: false }, y: { distr: log ? 3 : 1, auto: false } },
    axes: [
      {
        ...axis,
        size: 30,
        values: texts((values) => (kind === "step" ? ticks(values, count) : values.map((at) => xText(kind, at)))),
      },
      { ...axis, size: room, values: texts((values) => ticks(values)) },
    ],
    cursor: {
      sync: cursor ? { key: cursor, scales: ["x", null] } : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { show: curves.length <= MOST_BANDS && !smoothed, size: 6 },
      bind: {
        dblclick: () => () => latest.current.onWindow?.(null),
        mousedown: held(latest, true),
        mouseup: held(latest, false),
      },
    },
    hooks: {
      setSelect: [(/** @type {any} */ plot) => {
        const { left, width: chosen } = plot.select;
        if (chosen < 4) return;
        latest.current.onWindow?.([plot.posToVal(left, "x"), plot.posToVal(left + chosen, "x")]);
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [(/** @type {any} */ plot) => point(plot, /** @type {HTMLElement} */ (tip.current), latest.current)],
      draw: [(/** @type {any} */ plot) => drawMarks(plot, latest.current.marks ?? [], color("--muted"))],
    },
  };
}

/** Pixels for the texts of a vertical axis. @param {unknown} _plot @param {string[]|null} ticked null: none yet */
function room(_plot, ticked) {
  return Math.max(58, 14 + 7 * Math.max(0, ...(ticked ?? []).map((text) => text.length)));
}

/** The ticks of an axis as texts. @param {(values: (number|null)[]) => string[]} show */
function texts(show) {
  return (/** @type {unknown} */ _plot, /** @type {(number|null)[]} */ values) => show(values);
}

/** Note whether the reader drags: new data must not end it. @param {Latest} latest @param {boolean} dragging */
function held(latest, dragging) {
  return (/** @type {any} */ _plot, /** @type {any} */ _target, /** @type {(event: Event) => void} */ handle) => {
    return (/** @type {Event} */ event) => {
      latest.dragging = dragging;
      handle(event);
    };
  };
}

/** Show the nearest curves' values at the cursor. @param {any} plot @param {HTMLElement} tip @param {any} props */
function point(plot, tip, { x, curves, kind }) {
  const i = plot.cursor.idx;
  const focused = document.activeElement;
  const own = plot.root.matches(":hover") || plot.root.contains(focused) || plot.root.parentElement === focused;
  if (i === null || i === undefined || !own) {
    tip.hidden = true;
    return;
  }
  const chosen = curves.map((/** @type {ColoredCurve} */ each) => (each.smoothed ?? each.values)[i]);
  const rows = nearest(chosen, plot.posToVal(plot.cursor.top, "y"), MOST_ROWS);
  tip.replaceChildren(
    row("b", xText(kind, x[i])),
    ...rows.map((each) => {
      const { label, color, values, low, high, counts, smoothed } = curves[each];
      const raw = smoothed ? ` (raw ${number(values[i])})` : "";
      const band = low[i] !== high[i] ? ` [${number(low[i])}, ${number(high[i])}]` : "";
      const of = counts[i] > 1 ? ` of ${counts[i]}` : "";
      const line = row("div", `${label}  ${number(chosen[each])}${raw}${band}${of}`);
      line.style.borderLeft = `3px solid ${color}`;
      return line;
    }),
    ...(curves.length > rows.length ? [row("small", `nearest ${rows.length} of ${curves.length}`)] : []),
  );
  tip.hidden = rows.length === 0;
  const left = plot.cursor.left + plot.bbox.left / devicePixelRatio;
  const side = left > plot.width / 2;
  tip.style.left = side ? "auto" : `${left + 12}px`;
  tip.style.right = side ? `${plot.width - left + 12}px` : "auto";
}

/** @param {string} tag @param {string} text */
function row(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** @param {any} plot @param {Mark[]} marks @param {string} color */
function drawMarks(plot, marks, color) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.fillStyle = ctx.strokeStyle = color;
  ctx.lineWidth = devicePixelRatio;
  let until = -Infinity;
  for (const { x, label, kind } of marks) {
    const left = plot.valToPos(x, "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) continue;
    ctx.setLineDash(kind === "lesson" ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    if (left > until) {
      ctx.fillText(label, left + 4 * devicePixelRatio, bbox.top + 11 * devicePixelRatio);
      until = left + ctx.measureText(label).width + 8 * devicePixelRatio;
    }
  }
  ctx.restore();
}

/** @param {KeyboardEvent} event @param {uPlot|null} plot @param {any} props */
function moveCursor(event, plot, { x }) {
  if (!plot) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const i = Math.min(x.length - 1, Math.max(0, (plot.cursor.idx ?? (step > 0 ? -1 : x.length)) + step));
  plot.setCursor({ left: plot.valToPos(x[i], "x"), top: plot.height / 3 });
}

/** @param {{kind: AxisKind, x: number[], curves: ColoredCurve[]}} props */
function Values({ kind, x, curves }) {
  const every = Math.max(1, Math.ceil(x.length / 200));
  const rows = x.map((_, i) => i).filter((i) => i % every === 0 || i === x.length - 1);
  return html`<div class="scroll values" tabindex="0">
    <table>
      ${every > 1 && html`<caption>one row for ${every} points; CSV has all</caption>`}
      <thead><tr>
        <th scope="col">${kind}</th>
        ${curves.map((each) => html`<th scope="col" key=${each.label}>${each.label}</th>`)}
      </tr></thead>
      <tbody>
        ${rows.map((i) => html`<tr key=${i}>
          <th scope="row">${xText(kind, x[i])}</th>
          ${curves.map((each) => html`<td key=${each.label}>${number((each.smoothed ?? each.values)[i])}</td>`)}
        </tr>`)}
      </tbody></table></div>`;
}

/** @param {string} title @param {AxisKind} kind @param {number[]} x @param {ColoredCurve[]} curves */
function saveCsv(title, kind, x, curves) {
  const columns = curves.flatMap(({ label, values, low, high, smoothed }) => {
    const all = { [label]: values, [`${label} low`]: low, [`${label} high`]: high, [`${label} smoothed`]: smoothed };
    return Object.entries(all).filter(([, column]) => column);
  });
  const head = [kind, ...columns.map(([name]) => name)];
  const rows = x.map((at, i) => [at, ...columns.map(([, column]) => column?.[i] ?? null)]);
  save(new Blob([csv([head, ...rows])], { type: "text/csv" }), `${title}.csv`);
}

/** @param {string} title @param {uPlot|null} plot */
function savePng(title, plot) {
  if (!plot) return;
  const { canvas } = plot.ctx;
  const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
  const context = /** @type {CanvasRenderingContext2D} */ (copy.getContext("2d"));
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--surface");
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  copy.toBlob((picture) => picture && save(picture, `${title}.png`));
}

/** @param {Blob} content @param {string} name */
function save(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name.replaceAll(/[^A-Za-z0-9._-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
