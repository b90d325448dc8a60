// Short notes of what happened; they go by themselves, but for errors.

import { html, signal } from "../core/dom.js";

const SHOWN_MS = 5000;
const MOST = 4;

/** @typedef {{id: number, text: string, kind: "info" | "error"}} Toast */
/** @type {import("../../vendor/signals.js").Signal<Toast[]>} */
const toasts = signal([]);
let newest = 0;

/** Say what happened. @param {string} text @param {"info" | "error"} kind */
export function notify(text, kind = "info") {
  const toast = { id: ++newest, text: String(text).slice(0, 2000), kind };
  toasts.value = [...toasts.value, toast].slice(-MOST);
  if (kind === "info") setTimeout(() => dismiss(toast.id), SHOWN_MS);
}

/** @param {number} id */
function dismiss(id) {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(({ id, text, kind }) => html`
      <div key=${id} class=${`toast ${kind}`}><span>${text}</span><button type="button" class="plain" aria-label="Dismiss" onClick=${() => dismiss(id)}>×</button></div>`)}
  </div>`;
}
