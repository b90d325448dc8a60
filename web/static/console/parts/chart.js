// Figures over time, drawn by uPlot, which is loaded with the first chart.

import { html, useEffect, useRef, useState } from "../core/dom.js";
import { NOTHING, count } from "../core/format.js";

const DAY = 86_400; // seconds
const DAY_LENGTH = "2026-01-31".length;

/**
 * @typedef {{label: string, points: [string | number, number | null][], format?: (value: number | null) => string, color?: string}} Series
 *   `color` names a custom property of the styles: "series-1" … "series-6", "good", "bad", "warn"
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
    let isThere = true;
    void import("../../vendor/uplot.js").then(({ default: Plot }) => {
      if (!isThere || !box.current) return;
      plot.current = new Plot(options(Plot, box.current, { series, kind, height, format, isByDay, onCursor: setAt }), current(), box.current);
    }).catch(() => setBroken(true));
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: box.current?.clientWidth ?? 300, height }));
    if (box.current) resized.observe(box.current);
    return () => {
      isThere = false;
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
        <span class="chart-key">${legend.at === null ? legend.isSum && "in all" : `at ${timeText(legend.at, isByDay ? DAY : 0, isByDay)}`}</span>
      </figcaption>
      ${isBroken && html`<p class="quiet">This browser cannot draw it.</p>`}
      <div ref=${box} class="chart-box" aria-hidden="true" style=${{ height: `${height}px` }}></div>
    </figure>`;
}

/** @param {Series} one @param {number} index */
const colorOf = (one, index) => one.color ?? `series-${(index % 6) + 1}`;

/**
 * The values beside the series' names: those under the cursor; without one the sums of bars, and of lines the values of the
 * newest point that has any, for sums of percentiles mean nothing. `at` is the time of these values, null for sums.
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

/** Null where nothing is known. @param {(number | null)[]} values @returns {number | null} */
const sumOf = (values) => values.reduce((sum, value) => (value === null ? sum : (sum ?? 0) + value), null);

/** Whether a time is a day without a time, as the service has days: in UTC. @param {string | number} at */
const isDay = (at) => typeof at === "string" && at.length === DAY_LENGTH;

/** As they are drawn: bars stand on each other, the first at the back. @param {any[]} data @param {string} kind */
function drawnData([times, ...values], kind) {
  if (kind !== "bars") return [times, ...values];
  const stacked = values.map((_, at) => times.map((/** @type {number} */ _time, /** @type {number} */ index) => values.slice(at).reduce((sum, one) => sum + (one[index] ?? 0), 0)));
  return [times, ...stacked];
}

/** The series as uPlot takes them: times in seconds, then each one's values. @param {Series[]} series @returns {any} */
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
    padding: [8, 8, 0, 0],
    scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...axis, size: 28, values: (/** @type {any} */ _, /** @type {number[]} */ splits, /** @type {any} */ __, /** @type {any} */ ___, /** @type {number} */ step) => splits.map((at) => timeText(at, step, isByDay)) }, { ...axis, size: 68, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits.map((value) => (value === null ? NOTHING : format(value))) }],
    series: [{}, ...series.map((/** @type {Series} */ one, /** @type {number} */ index) => drawn(Plot, one, kind, color(colorOf(one, index))))],
    hooks: { setCursor: [(/** @type {any} */ self) => onCursor(self.cursor.idx ?? null)] },
  };
}

/** @param {any} Plot @param {Series} one @param {string} kind @param {string} stroke */
function drawn(Plot, one, kind, stroke) {
  if (kind === "bars") return { label: one.label, fill: stroke, width: 0, points: { show: false }, paths: Plot.paths.bars({ size: [0.85, 40] }) };
  const fill = kind === "area" ? stroke.replace(/^rgb\((.*)\)$/, "rgba($1, 0.25)") : undefined;
  return { label: one.label, stroke, fill, width: 1.5, spanGaps: false, points: { show: true, size: 4, width: 0, fill: stroke, filter: alone } };
}

/** Values with none before and after: no line would show them. @param {any} plot @param {number} series */
function alone(plot, series) {
  const values = plot.data[series];
  return values.flatMap((/** @type {number | null} */ value, /** @type {number} */ at) => (value !== null && values[at - 1] == null && values[at + 1] == null ? [at] : []));
}

/** @param {number} at in seconds @param {number} step between two of them @param {boolean} isByDay */
function timeText(at, step, isByDay) {
  const time = new Date(at * 1000);
  if (step >= DAY || isByDay) return time.toLocaleDateString("en", { month: "short", day: "numeric", ...(isByDay && { timeZone: "UTC" }) });
  return `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}`;
}

/** What a custom property of a colour comes to in the current theme. @param {HTMLElement} box @param {string} name */
function colorFrom(box, name) {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  box.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** Changes when colours do. */
function useTheme() {
  const [theme, setTheme] = useState(currentTheme);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const look = () => setTheme(currentTheme());
    const watch = new MutationObserver(look);
    watch.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    dark.addEventListener("change", look);
    return () => {
      watch.disconnect();
      dark.removeEventListener("change", look);
    };
  }, []);
  return theme;
}

const currentTheme = () => `${document.documentElement.dataset.theme ?? ""} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
