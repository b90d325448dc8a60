// A chart of figures over time. The first chart loads the library uPlot, which draws it.

import { html, useEffect, useRef, useState } from "../core/dom.js";
import { NOTHING, count } from "../core/format.js";

const HOUR = 3_600, DAY = 86_400; // seconds
const DAY_LENGTH = "2026-01-31".length;

/**
 * @typedef {{label: string, points: [string | number, number | null][], format?: (value: number | null) => string, color?: string}} Series
 *   `color`: name of a custom property in base.css: "series-1" … "series-6", "good", "bad" or "warn"
 * @param {{series: Series[], kind?: "line" | "bars" | "area", height?: number, label?: string, format?: (value: number | null) => string}} props
 */
export function Chart({ series, kind = "line", height = 160, label = "Chart", format = count }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const [isBroken, setBroken] = useState(false);
  const theme = useTheme();
  const isByDay = series.every((one) => one.points.every(([time]) => isDay(time)));
  const shape = JSON.stringify([kind, height, theme, series.map((one) => [one.label, one.color]), isByDay]);
  const data = columns(series);
  const newest = useRef(data);
  newest.current = data;
  const current = () => /** @type {any} */ (drawnData(newest.current, kind));

  useEffect(() => {
    let isMounted = true;
    void import("../../vendor/uplot.js").then(({ default: Plot }) => {
      if (!isMounted || !box.current) return;
      plot.current = new Plot(options(Plot, box.current, { series, kind, height, format, isByDay, onCursor: setAt }), current(), box.current);
    }).catch(() => setBroken(true));
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: box.current?.clientWidth ?? 300, height }));
    if (box.current) resized.observe(box.current);
    return () => {
      isMounted = false;
      resized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(current()), [JSON.stringify(data)]);

  const legend = legendOf(data, kind, at);
  return html`
    <figure class="chart" aria-label=${label}>
      <figcaption><span class="chart-label">${label}</span>${series.map((one, index) => html`
        <span key=${one.label} class="chart-key"><i class=${`swatch ${colorOf(one, index)}`}></i>${one.label} <b>${(one.format ?? format)(legend.values[index])}</b></span>`)}
        <span class="chart-key">${legend.at === null ? legend.isSum && "in total" : `at ${timeText(legend.at, isByDay ? DAY : 0, isByDay)}`}</span>
      </figcaption>
      ${isBroken && html`<p class="quiet">The chart could not be loaded. Reload the page to try again.</p>`}
      <div ref=${box} class="chart-box" aria-hidden="true" style=${{ height: `${height}px` }}></div>
    </figure>`;
}

/** @param {Series} one @param {number} index */
const colorOf = (one, index) => one.color ?? `series-${(index % 6) + 1}`;

/**
 * Return the values for the legend: those under the cursor. Without a cursor, bars have their sums, and lines have the values
 * of the newest point with a value, because a sum of percentiles has no meaning. `at` is the time of the values, null for sums.
 * @param {any[]} data
 * @param {string} kind
 * @param {number | null} cursor
 * @returns {{values: (number | null)[], at: number | null, isSum: boolean}}
 */
export function legendOf([times, ...columns], kind, cursor) {
  if (kind === "bars" && cursor === null) return { values: columns.map(sumOf), at: null, isSum: true };
  const place = cursor ?? times.findLastIndex((/** @type {number} */ _time, /** @type {number} */ index) => columns.some((values) => values[index] !== null));
  return { values: columns.map((values) => values[place] ?? null), at: times[place] ?? null, isSum: false };
}

/** Return the sum of the known values, or null if there is none. @param {(number | null)[]} values @returns {number | null} */
const sumOf = (values) => values.reduce((sum, value) => (value === null ? sum : (sum ?? 0) + value), null);

/** Return whether a time is a date without a time of day. Dates are in UTC. @param {string | number} at */
const isDay = (at) => typeof at === "string" && at.length === DAY_LENGTH;

/** Return the values to draw. Bars are stacked: the first series is drawn first, with the sum of all. @param {any[]} data @param {string} kind */
function drawnData([times, ...values], kind) {
  if (kind !== "bars") return [times, ...values];
  const stacked = values.map((_, at) => times.map((/** @type {number} */ _time, /** @type {number} */ index) => values.slice(at).reduce((sum, one) => sum + (one[index] ?? 0), 0)));
  return [times, ...stacked];
}

/** Return the series in uPlot's format: times in seconds, then the values of each series. @param {Series[]} series @returns {any} */
function columns(series) {
  const times = [...new Set(series.flatMap((one) => one.points.map(([at]) => seconds(at))))].sort((one, other) => one - other);
  const values = series.map((one) => {
    const known = new Map(one.points.map(([at, value]) => [seconds(at), value]));
    return times.map((time) => known.get(time) ?? null);
  });
  return [times, ...values];
}

/** @param {string | number} at */
const seconds = (at) => (typeof at === "number" ? at : new Date(at).getTime()) / 1000;

/** @param {any} Plot @param {HTMLElement} box @param {any} chart @returns {any} */
function options(Plot, box, { series, kind, height, format, isByDay, onCursor }) {
  const color = (/** @type {string} */ name) => colorFrom(box, name);
  const axis = { stroke: color("quiet"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: box.clientWidth || 300,
    height,
    ...(isByDay && { tzDate: (/** @type {number} */ at) => Plot.tzDate(new Date(at * 1000), "Etc/UTC") }),
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { setScale: false } },
    padding: [8, 20, 0, 0],
    scales: { ...(kind === "bars" && { x: { range: withRoomForBars } }), y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, size: 28, values: (/** @type {any} */ _, /** @type {number[]} */ splits, /** @type {any} */ __, /** @type {any} */ ___, /** @type {number} */ step) => splits.map((at) => timeText(at, step, isByDay)) }, { ...axis, size: 78, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((value) => (value === null ? NOTHING : format(value))) }],
    series: [{}, ...series.map((/** @type {Series} */ one, /** @type {number} */ index) => drawn(Plot, one, kind, color(colorOf(one, index))))],
    hooks: { setCursor: [(/** @type {any} */ self) => onCursor(self.cursor.idx ?? null)] },
  };
}

/** The range of times with half a step on both sides, so that the first and last bar are not cut. @param {any} plot @param {number | null} first @param {number | null} last */
function withRoomForBars(plot, first, last) {
  const times = plot.data[0];
  if (first === null || last === null || times.length < 2) return [(first ?? 0) - HOUR / 2, (last ?? 0) + HOUR / 2];
  const half = (times[1] - times[0]) / 2;
  return [first - half, last + half];
}

/** @param {any} Plot @param {Series} one @param {string} kind @param {string} stroke */
function drawn(Plot, one, kind, stroke) {
  if (kind === "bars") return { label: one.label, fill: stroke, width: 0, points: { show: false }, paths: Plot.paths.bars({ size: [0.85, 40] }) };
  const fill = kind === "area" ? stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.25)") : undefined;
  return { label: one.label, stroke, fill, width: 1.5, spanGaps: false, points: { show: true, size: 4, width: 0, fill: stroke, filter: alone } };
}

/** Return the values without neighbours, which are drawn as points because no line shows them. @param {any} plot @param {number} series */
function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((/** @type {number | null} */ value, /** @type {number} */ at) => (value !== null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

/** @param {number} at seconds @param {number} step seconds between two ticks @param {boolean} isByDay */
function timeText(at, step, isByDay) {
  const time = new Date(at * 1000);
  if (step >= DAY || isByDay) return time.toLocaleDateString("en", { month: "short", day: "numeric", ...(isByDay && { timeZone: "UTC" }) });
  return `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`;
}

/** Return the colour of a custom property in the current theme. @param {HTMLElement} box @param {string} name */
function colorFrom(box, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  box.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** Return a text that differs between themes. */
function useTheme() {
  const [theme, setTheme] = useState(currentTheme);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const update = () => setTheme(currentTheme());
    const observer = new MutationObserver(update);
    observer.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    dark.addEventListener("change", update);
    return () => {
      observer.disconnect();
      dark.removeEventListener("change", update);
    };
  }, []);
  return theme;
}

const currentTheme = () => `${document.documentElement.dataset.theme ?? ""} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
