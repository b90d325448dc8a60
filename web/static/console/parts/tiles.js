// Tiles with a number and a sparkline, bars of a part of a whole, and panels.

import { html } from "../core/dom.js";

const WIDTH = 100, HEIGHT = 24; // units of the drawing, which is stretched to the tile

/**
 * A number with its label. With `href` the whole tile is a link.
 * @param {{label: string, value: any, note?: any, href?: string, points?: (number | null)[], color?: string, title?: string}} props
 *   `points`: values of the sparkline, oldest first; `color`: as for charts
 */
export function Tile({ label, value, note, href, points, color = "series-1", title }) {
  const content = html`
    <span class="tile-label">${label}</span>
    <span class="tile-value">${value}</span>
    <span class="tile-note">${note || "\u00a0"}</span>
    ${points && html`<${Sparkline} points=${points} color=${color} />`}`;
  return href ? html`<a class="tile" href=${href} title=${title}>${content}</a>` : html`<div class="tile" title=${title}>${content}</div>`;
}

/** @param {{points: (number | null)[], color: string}} props */
function Sparkline({ points, color }) {
  const { line, area, dots } = pathsOf(points);
  return html`
    <svg class=${`sparkline ${color}`} viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path class="sparkline-area" d=${area} /><path class="sparkline-line" d=${line} /><path class="sparkline-dots" d=${dots} />
    </svg>`;
}

/**
 * The paths of a sparkline from 0 to the largest value. A missing value interrupts the line; a value between two missing ones
 * is a dot.
 * @param {(number | null)[]} points
 * @returns {{line: string, area: string, dots: string}}
 */
export function pathsOf(points) {
  const most = Math.max(...points.map((value) => value ?? 0), 0);
  const step = WIDTH / Math.max(points.length - 1, 1);
  const at = (/** @type {number} */ index) => `${round(index * step)} ${round(HEIGHT - 1 - ((points[index] ?? 0) / (most || 1)) * (HEIGHT - 2))}`;
  let line = "", area = "", dots = "";
  for (const [from, until] of spansOf(points)) {
    const places = Array.from({ length: until - from }, (_, index) => at(from + index));
    if (places.length === 1) dots += `M${places[0]}h0.01`;
    else {
      line += `M${places.join("L")}`;
      area += `M${round(from * step)} ${HEIGHT}L${places.join("L")}L${round((until - 1) * step)} ${HEIGHT}Z`;
    }
  }
  return { line, area, dots };
}

const round = (/** @type {number} */ value) => Math.round(value * 100) / 100;

/** The ranges of known values, as [first, after the last]. @param {(number | null)[]} points @returns {[number, number][]} */
function spansOf(points) {
  /** @type {[number, number][]} */
  const spans = [];
  points.forEach((value, index) => {
    if (value === null) return;
    const last = spans.at(-1);
    if (last && last[1] === index) last[1] = index + 1;
    else spans.push([index, index + 1]);
  });
  return spans;
}

/** A part of a whole as a bar. The text beside it has the numbers. @param {{part: number, kind?: "good" | "busy" | "warn" | "bad" | ""}} props */
export const Bar = ({ part, kind = "" }) => html`<span class="bar-track" aria-hidden="true"><span class=${`bar-part ${kind}`} style=${{ width: `${Math.min(Math.max(part, 0), 1) * 100}%` }}></span></span>`;

/** A framed part of a page with a heading. @param {{title: string, note?: any, children?: any}} props */
export function Panel({ title, note, children }) {
  return html`<section class="panel" aria-label=${title}><h2>${title}${note && html` <span class="panel-note">${note}</span>`}</h2>${children}</section>`;
}
