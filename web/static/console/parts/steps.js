// The steps of a run in the playground: each node with its output, its custom events and the steps of its subgraph.

import { html, useMemo, useRef, useState } from "../core/dom.js";
import { duration, text as oneLine } from "../core/format.js";
import { MessageView } from "./chat.js";
import { ErrorBox, Json } from "./index.js";

const SHOWN = 60; // newest items that are drawn at first
const NONE = { value: new Map() };
const NO_TOOLS = { value: {} };
const NO_EDIT = { current: undefined };
const WORDS = /** @type {Record<string, string>} */ ({ working: "running", done: "done", failed: "failed", asks: "asks", stopped: "stopped" });

/**
 * @typedef {import("./run_view.js").Step} Step
 * @typedef {import("./run_view.js").Told} Told
 */

/** @param {{items: (Step|Told)[], phase: any}} props */
export function Steps({ items, phase }) {
  const [limit, setLimit] = useState(SHOWN);
  const drawn = useRef(new WeakMap()); // a drawn item updates by its own signals
  const draw = (/** @type {Step|Told} */ item) => {
    if (!drawn.current.has(item)) drawn.current.set(item, item.kind === "step" ? html`<${StepView} key=${item.key} step=${item} phase=${phase} />` : html`<${ToldView} key=${item.key} data=${item.data} />`);
    return drawn.current.get(item);
  };
  return html`<ol class="steps">
    ${items.length > limit && html`<li key="earlier"><button type="button" class="plain" onClick=${() => setLimit(limit + SHOWN * 4)}>${items.length - limit} earlier ones</button></li>`}
    ${items.slice(-limit).map(draw)}
  </ol>`;
}

/** @param {{step: Step, phase: any}} props */
function StepView({ step, phase }) {
  const status = step.status.value;
  const inner = step.items.value;
  const hasInner = inner.some((/** @type {any} */ item) => item.kind === "step");
  const [isOpen, setOpen] = useState(/** @type {boolean|null} */ (null)); // null: not chosen by the user
  const shown = isOpen ?? (hasInner && status === "working");
  return html`<li class=${`step ${status}`} data-step=${step.path} data-state=${status}>
    <button type="button" class="step-head" aria-expanded=${shown ? "true" : "false"} onClick=${() => setOpen(!shown)}>
      <span class="step-mark" aria-hidden="true"></span>
      <code>${step.name}</code>
      <span class="step-status">${WORDS[status]}</span>
      ${step.seconds.value !== null && html`<span class="step-seconds">${duration(step.seconds.value)}</span>`}
    </button>
    ${status === "failed" && html`<${ErrorBox} error=${errorOf(step.error.value)} />`}
    ${shown && html`<${StepBody} step=${step} inner=${inner} phase=${phase} />`}
  </li>`;
}

/** @param {{step: Step, inner: (Step|Told)[], phase: any}} props */
function StepBody({ step, inner, phase }) {
  const said = step.said.value;
  return html`<div class="step-body">
    ${inner.length > 0 && html`<${Steps} items=${inner} phase=${phase} />`}
    ${said.map((/** @type {any} */ entry) => html`<${MessageView} key=${entry.key} entry=${entry} results=${NONE} tools=${NO_TOOLS} phase=${phase} edit=${NO_EDIT} />`)}
    ${step.result.value !== undefined && html`<${Json} value=${step.result.value} label=${`What ${step.name} wrote`} />`}
    ${step.input !== undefined && html`<details><summary>Input</summary><${Json} value=${step.input} collapsed=${true} label=${`What ${step.name} was given`} /></details>`}
  </div>`;
}

/** @param {{data: any}} props */
function ToldView({ data }) {
  const isSmall = useMemo(() => data === null || typeof data !== "object" || JSON.stringify(data).length < 120, [data]);
  return html`<li class="told"><span class="told-label">told</span> ${isSmall ? html`<code>${oneLine(data, 120)}</code>` : html`<${Json} value=${data} collapsed=${true} />`}</li>`;
}

/** @param {any} error */
function errorOf(error) {
  if (!error) return null;
  if (typeof error === "string") return { detail: error };
  return { detail: [error.error, error.message].filter(Boolean).join(": ") };
}
