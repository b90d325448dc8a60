// Small parts: statuses, times, ids, empty states and errors.

import { html, signal, useState } from "../core/dom.js";
import { NOTHING, ago, duration, iso, short } from "../core/format.js";
import { standingOf } from "./standing.js";
import { notify } from "./toasts.js";
import { Icon } from "./icons.js";
import { Skeleton } from "./skeleton.js";

const GOOD = new Set(["success", "idle", "ready", "deployed", "delivered", "enabled", "active", "completed", "serving", "ok", "done", "same", "passed"]);
const BUSY = new Set(["pending", "running", "busy", "building", "deploying", "awaiting_build", "awaiting_deploy", "creating", "queued", "awaiting_database", "preparing"]);
const WARN = new Set(["interrupted", "draining", "awaiting_delete", "skipped", "expired", "paused", "revoked", "disabled", "unknown", "cancelled", "changed", "diverged", "stopped"]);

/** @type {Record<string, any>} */
const ICON_OF = { good: "check", busy: "clock", warn: "paused", bad: "failed" };

/** The kind of a status: `good`, `busy`, `warn`, `bad`, or empty. @param {string} status */
export function kindOf(status) {
  const word = status.toLowerCase();
  if (GOOD.has(word)) return "good";
  if (BUSY.has(word)) return "busy";
  if (WARN.has(word)) return "warn";
  return word === "error" || word === "timeout" || word === "silent" || word.endsWith("failed") ? "bad" : "";
}

/** A status of a run, thread, revision, delivery or worker, with an icon and a colour for its kind. @param {{status: string | null | undefined, title?: string}} props */
export function Pill({ status, title }) {
  if (!status) return html`<span class="quiet">${NOTHING}</span>`;
  const kind = kindOf(status);
  return html`<span class=${`pill ${kind}`} title=${title}>${kind && html`<${Icon} name=${ICON_OF[kind]} />`}<span>${status.toLowerCase().replaceAll("_", " ")}</span></span>`;
}

/** The statuses of a deployment. @param {Parameters<typeof standingOf>[0]} props */
export const Standing = (props) => html`${standingOf(props).map(({ status, title }) => html`<${Pill} key=${title} status=${status} title=${title} /> `)}`;

const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 10_000);

/** A time relative to now; the tooltip is the exact time. @param {{at: string | number | null | undefined}} props */
export function Ago({ at }) {
  if (!at) return html`<span class="quiet">${NOTHING}</span>`;
  return html`<time datetime=${iso(at)} title=${iso(at)}>${ago(at, Math.max(now.value, Date.now()))}</time>`;
}

/** @param {{seconds: number | null | undefined}} props */
export const Duration = ({ seconds }) => html`<span class="number">${duration(seconds)}</span>`;

/** An id in its short form, or `whole`. A click copies the whole id. @param {{value: string | null | undefined, whole?: boolean}} props */
export function Id({ value, whole = false }) {
  if (!value) return html`<span class="quiet">${NOTHING}</span>`;
  return html`<button type="button" class="id" title=${`${value} – click to copy`} onClick=${() => copy(value)}>${whole ? value : short(value)}</button>`;
}

/** A button that copies a text. @param {{text: string, label?: string}} props */
export function Copy({ text, label = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const click = async () => {
    await copy(text, false);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="plain copy" onClick=${click}>${isDone ? "Copied" : label}</button>`;
}

/**
 * Copy a text. The clipboard API exists only at secure addresses; elsewhere a selection is copied.
 * @param {string} text @param {boolean} notifies whether a toast reports it
 */
export async function copy(text, notifies = true) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  if (notifies) notify("Copied.");
}

/** The placeholder of an empty list: why it is empty, and what to do next. @param {{title: string, text?: any, action?: any, icon?: Parameters<typeof Icon>[0]["name"]}} props */
export function Empty({ title, text, action, icon }) {
  return html`<div class="empty">${icon && html`<${Icon} name=${icon} />`}<h2>${title}</h2>${text && html`<p>${text}</p>`}${action && html`<div class="actions">${action}</div>`}</div>`;
}

/** Advice for a refused call, by its status. @type {Record<number, string>} */
const ADVICE = {
  0: "Check your connection and whether the service is running. The page tries again by itself.",
  403: "You may need another role. An admin of your organization can change it.",
  404: "It may have been deleted, or it belongs to another organization.",
  409: "Somebody else may have changed it. Reload the page to see its current state.",
  429: "You have sent too many requests. The page tries again by itself.",
  500: "The log of the service has the reason.",
  502: "The page tries again by itself.",
  503: "The page tries again by itself.",
  504: "The page tries again by itself.",
};

/** The text of an error. The bare phrase of a status is replaced by a sentence. @param {any} error */
function errorInWords(error) {
  const detail = String(error.detail ?? error.message ?? error);
  return detail === "Not Found" ? "There is nothing at this address." : detail.slice(0, 5000);
}

/** An error in words with advice, and a button to try again. @param {{error: any, retry?: () => void}} props */
export function ErrorBox({ error, retry }) {
  if (!error) return null;
  const advice = ADVICE[error.status];
  return html`<div class="error-box" role="alert"><p>${errorInWords(error)}</p>${advice && html`<p class="hint">${advice}</p>`}
    ${retry && html`<button type="button" onClick=${retry}><${Icon} name="refresh" />Try again</button>`}</div>`;
}

/** The placeholder of a page while its content loads. @param {{shape?: "table" | "facts" | "text", lines?: number}} props */
export const Loading = ({ shape = "table", lines }) => html`<${Skeleton} shape=${shape} lines=${lines} />`;
