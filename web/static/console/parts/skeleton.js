// Placeholders that hold the room of content while it loads, so that nothing moves when it comes.

import { html } from "../core/dom.js";

/**
 * A placeholder in the shape of a table with `lines` rows, of a list of facts, or of lines of text.
 * It becomes visible after a moment: content that comes at once replaces it before it is seen.
 * @param {{shape?: "table" | "facts" | "text", lines?: number}} props
 */
export function Skeleton({ shape = "text", lines = shape === "facts" ? 4 : 5 }) {
  return html`
    <div class=${`skeleton of-${shape}`} role="status">
      <span class="unseen">Loading…</span>
      ${Array.from({ length: lines }, (_, at) => html`<div key=${at} class="skeleton-line" aria-hidden="true">${shape !== "text" && html`<span class="bone short"></span>`}<span class="bone"></span></div>`)}
    </div>`;
}
