// Toasts: short messages. Errors stay until they are dismissed, others disappear.

import { html, signal } from "../core/dom.js";
import { Icon } from "./icons.js";

const SHOWN_MS = 5000;
const MOST = 4;

/** @typedef {{id: number, text: string, kind: "info" | "error"}} Toast */
/** @type {import("../../vendor/signals.js").Signal<Toast[]>} */
const toasts = signal([]);
let newest = 0;

/** Show a toast. @param {string} text @param {"info" | "error"} kind */
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
      <div key=${id} class=${`toast ${kind}`}><${Icon} name=${kind === "error" ? "alert" : "check"} /><span>${text}</span><button type="button" class="plain" aria-label="Dismiss" onClick=${() => dismiss(id)}><${Icon} name="close" /></button></div>`)}
  </div>`;
}
