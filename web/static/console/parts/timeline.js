// Spans of time one under the other, as bars on a common axis: which node worked when, and for how long.

import { html } from "../core/dom.js";
import { duration } from "../core/format.js";
import { Windowed } from "./windowed.js";

/** @typedef {import("./checkpoints.js").Span} Span */

const ROW_HEIGHT = 28;
const TICKS = 4;
/** @type {Record<string, string>} */
const WORDS = { error: "failed", asked: "asked", stopped: "stopped", lost: "lost", running: "works" };

/**
 * `now` (ms) is where bars of what still works end; `linkOf` gives the address of a span's checkpoint.
 * @param {{spans: Span[], now: number, linkOf?: (span: Span) => string | null}} props
 */
export function Timeline({ spans, now, linkOf }) {
  const start = spans.reduce((least, span) => Math.min(least, span.from), Infinity);
  const end = spans.reduce((most, span) => Math.max(most, span.until ?? now), start);
  const whole = Math.max(end - start, 1);
  const render = (/** @type {number} */ at) => html`<${Bar} key=${at} span=${spans[at]} start=${start} whole=${whole} now=${now} link=${linkOf?.(spans[at])} />`;
  return html`
    <div class="timeline">
      <div class="timeline-axis" aria-hidden="true">
        ${Array.from({ length: TICKS + 1 }, (_, tick) => html`<span key=${tick}>${duration((whole * tick) / TICKS / 1000)}</span>`)}
      </div>
      <${Windowed} class="timeline-rows" label="Nodes over time" count=${spans.length} rowHeight=${ROW_HEIGHT} render=${render} />
    </div>`;
}

/** @param {{span: Span, start: number, whole: number, now: number, link?: string | null}} props */
function Bar({ span, start, whole, now, link }) {
  const seconds = Math.max((span.until ?? now) - span.from, 0) / 1000;
  const left = ((span.from - start) / whole) * 100;
  const width = Math.max(((seconds * 1000) / whole) * 100, 0.4);
  const name = span.name.slice(0, 200);
  return html`
    <div class="timeline-row" role="listitem">
      <span class=${span.status === "rest" ? "timeline-name quiet" : "timeline-name"} title=${name}>${link ? html`<a href=${link}>${name}</a>` : name}</span>
      <span class="timeline-track"><span class=${`span-bar ${span.status}`} style=${{ left: `${Math.min(left, 99.6)}%`, width: `${Math.min(width, 100 - Math.min(left, 99.6))}%` }}></span></span>
      <span class="timeline-duration">${duration(seconds)}${WORDS[span.status] ? ` · ${WORDS[span.status]}` : ""}</span>
    </div>`;
}
