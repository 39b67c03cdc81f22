// Arithmetic of curves: pure functions on arrays, without the page. Tests call them in a browser.

/**
 * One curve of a chart, ascending in x. Gaps are null.
 * @typedef {object} Curve
 * @property {string} label
 * @property {(number|null)[]} values the mean of each bucket, or of a group in each bucket
 * @property {(number|null)[]} low lower edge of the band
 * @property {(number|null)[]} high upper edge of the band
 * @property {(number|null)[]|null} smoothed null where no smoothing is chosen
 * @property {number[]} counts points behind each bucket
 * @property {string} band what the band is, for the legend
 */

/** Resamples of the bootstrap behind an interval. */
const RESAMPLES = 400;
/** Resamples by number of runs: sorted places, drawn with replacement, the same at each call. */
const drawn = new Map();

/** @param {number} n runs @returns {Uint16Array[]} */
function resamples(n) {
  let state = 1; // a linear congruential generator (Numerical Recipes): the band of a chart must not flicker
  const place = () => Math.floor((n * (state = (Math.imul(state, 1664525) + 1013904223) >>> 0)) / 2 ** 32);
  if (!drawn.has(n)) drawn.set(n, Array.from({ length: RESAMPLES }, () => new Uint16Array(n).map(place).sort()));
  return drawn.get(n);
}

/**
 * Interquartile mean of numbers and its 95 % bootstrap interval, as `ludus compare` has them (arXiv 2108.13264): no end
 * lies beyond the numbers. Null where there is none; one number has no interval.
 * @param {(number|null|undefined)[]} numbers those that are null are left out
 * @returns {{n: number, mean: number|null, low: number|null, high: number|null}}
 */
export function interval(numbers) {
  const known = /** @type {number[]} */ (numbers.filter((each) => each !== null && each !== undefined));
  const sorted = Float64Array.from(known).sort();
  const n = sorted.length;
  const cut = Math.floor(n / 4); // a quarter of the runs, rounded down, is left out at each end
  const middle = (/** @type {(place: number) => number} */ at) => {
    let sum = 0;
    for (let place = cut; place < n - cut; place += 1) sum += at(place);
    return sum / (n - 2 * cut);
  };
  if (n < 2) return { n, mean: n ? sorted[0] : null, low: null, high: null };
  const means = Float64Array.from(resamples(n), (places) => middle((place) => sorted[places[place]])).sort();
  const [low, high] = [means[0.025 * RESAMPLES], means[0.975 * RESAMPLES - 1]];
  return { n, mean: middle((place) => sorted[place]), low, high };
}

/**
 * Interquartile mean and 95 % band of a group of series that have common steps. A run that has ended, or has not begun,
 * does not count in a bucket; where one run is left, the band has no width.
 * @param {string} label
 * @param {{values: (number|null)[], smoothed: (number|null)[]|null, counts: number[]}[]} members
 * @returns {Curve}
 */
export function group(label, members) {
  const length = members.length ? members[0].values.length : 0;
  const buckets = Array.from({ length }, (_, i) => interval(members.map((each) => each.values[i])));
  const smooth = members.length > 0 && members.every((each) => each.smoothed);
  return {
    label: `${label} (n = ${members.length})`,
    values: buckets.map(({ mean }) => mean),
    low: buckets.map(({ mean, low }) => low ?? mean),
    high: buckets.map(({ mean, high }) => high ?? mean),
    smoothed: smooth
      ? Array.from({ length }, (_, i) => interval(members.map((each) => each.smoothed?.[i])).mean)
      : null,
    counts: Array.from({ length }, (_, i) => members.reduce((sum, each) => sum + each.counts[i], 0)),
    band: "interquartile mean of the runs, band: its 95 % interval",
  };
}

/**
 * The range of y that a chart shows: all of the bands, or, to clip outliers, the 2nd to the 98th percentile of the
 * curves with a tenth of room at either end. On a logarithmic axis only what is above 0 counts. Null: nothing to show.
 * @param {Curve[]} curves
 * @param {{clip?: boolean, log?: boolean}} [how]
 * @returns {[number, number]|null}
 */
export function rangeOf(curves, { clip = false, log = false } = {}) {
  const shown = /** @type {number[]} */ (
    curves
      .flatMap((each) => (clip ? [each.values] : [each.low, each.high, each.values]))
      .flat()
      .filter((each) => each !== null && (!log || each > 0))
  );
  if (!shown.length) return null;
  if (!clip) {
    return shown.reduce(([low, high], each) => [Math.min(low, each), Math.max(high, each)], [Infinity, -Infinity]);
  }
  const sorted = shown.sort((one, other) => one - other);
  const at = (/** @type {number} */ share) => sorted[Math.round(share * (sorted.length - 1))];
  const room = log ? 0 : (at(0.98) - at(0.02)) / 10;
  return [at(0.02) - room, at(0.98) + room];
}

/**
 * Align curves that have an x of their own on all x together, ascending. Entries that a curve does not have are null.
 * @param {number[][]} axes ascending @param {(number|null)[][]} columns one for each axis
 * @returns {[number[], (number|null)[][]]}
 */
export function align(axes, columns) {
  const all = [...new Set(axes.flat())].sort((one, other) => one - other);
  const index = new Map(all.map((x, i) => [x, i]));
  const aligned = columns.map((column, which) => {
    const found = /** @type {(number|null)[]} */ (new Array(all.length).fill(null));
    axes[which].forEach((x, i) => (found[/** @type {number} */ (index.get(x))] = column[i]));
    return found;
  });
  return [all, aligned];
}

/**
 * The window of a chart that follows new points: as wide as it was chosen, and moved until its end shows the newest.
 * @param {[number, number]|null} window null: everything is shown
 * @param {number} newest x of the newest point
 * @returns {[number, number]|null}
 */
export function followed(window, newest) {
  if (window === null || newest <= window[1]) return window;
  return [window[0] + newest - window[1], newest];
}

/**
 * Index of the curve nearest to a value at an entry, and at most `count` curves around it, for a tooltip.
 * @param {(number|null|undefined)[]} values of all curves at the entry @param {number} at @param {number} count
 * @returns {number[]} the nearest first
 */
export function nearest(values, at, count) {
  return values
    .map((value, i) => ({ i, distance: value === null || value === undefined ? Infinity : Math.abs(value - at) }))
    .filter(({ distance }) => distance < Infinity)
    .sort((one, other) => one.distance - other.distance)
    .slice(0, count)
    .map(({ i }) => i);
}

/** A table as comma-separated values (RFC 4180). @param {(string|number|null)[][]} rows */
export function csv(rows) {
  const cell = (/** @type {string|number|null} */ value) => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}
