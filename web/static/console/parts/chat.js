// The messages of a thread, with tool calls, their results, and the message that a model is writing.

import { html, useComputed, useLayoutEffect, useRef, useState } from "../core/dom.js";
import { text as oneLine } from "../core/format.js";
import { Json } from "./index.js";
import { Markdown } from "./markdown.js";
import { otherBlocks, textOf, thoughtOf } from "./messages.js";

const SHOWN = 100; // newest messages that are rendered at first
const NEAR = 60; // pixels from the end that count as the end
const NAMES = /** @type {Record<string, string>} */ ({ human: "You", ai: "Assistant", system: "System", tool: "Tool" });

/**
 * @typedef {import("./messages.js").Message} Message
 * @typedef {import("./run_view.js").Entry} Entry
 * @typedef {import("./run_view.js").RunView} RunView
 */

/**
 * @param {{view: RunView, onEdit?: (message: Message, text: string) => void, children?: any}} props
 */
export function Chat({ view, onEdit, children }) {
  const [limit, setLimit] = useState(SHOWN);
  const drawn = useRef(new WeakMap()); // rendered messages: an unchanged message costs no work
  const results = useComputed(() => resultsOf(view.entries.value));
  const tools = view.tools;
  const entries = view.entries.value.filter((entry) => !isFolded(entry, results.value));
  const shown = entries.slice(-limit);
  const latest = useRef(onEdit);
  latest.current = onEdit;
  const draw = (/** @type {Entry} */ entry) => {
    const cache = drawn.current;
    if (!cache.has(entry)) cache.set(entry, html`<${MessageView} key=${entry.key} entry=${entry} results=${results} tools=${tools} phase=${view.phase} edit=${latest} />`);
    return cache.get(entry);
  };
  return html`<${Scroller} label="Messages" isBusy=${view.phase.value !== "idle"}>
    ${entries.length > shown.length && html`<button type="button" class="earlier" onClick=${() => setLimit(limit + SHOWN)}>Show ${Math.min(SHOWN, entries.length - shown.length)} earlier of ${entries.length - shown.length}</button>`}
    ${shown.map(draw)}
    ${children}
  </${Scroller}>`;
}

/** A box that stays scrolled to its end while it grows, unless the reader scrolls up. @param {{label: string, isBusy: boolean, children?: any}} props */
function Scroller({ label, isBusy, children }) {
  const outer = useRef(/** @type {HTMLElement|null} */ (null));
  const inner = useRef(/** @type {HTMLElement|null} */ (null));
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    const box = /** @type {HTMLElement} */ (outer.current);
    const watcher = new ResizeObserver(() => {
      if (isAtEnd.current) box.scrollTop = box.scrollHeight;
    });
    watcher.observe(/** @type {HTMLElement} */ (inner.current));
    watcher.observe(box);
    return () => watcher.disconnect();
  }, []);
  const onScroll = () => {
    const box = /** @type {HTMLElement} */ (outer.current);
    isAtEnd.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  return html`<div class="chat" ref=${outer} onScroll=${onScroll} tabindex="0" role="log" aria-live="off" aria-label=${label} aria-busy=${isBusy ? "true" : "false"}>
    <div class="chat-inner" ref=${inner}>${children}</div>
  </div>`;
}

/** Tool messages by the id of their call. @param {Entry[]} entries @returns {Map<string, Entry>} */
function resultsOf(entries) {
  const found = new Map();
  const calls = new Set();
  for (const entry of entries) {
    const message = entry.message.peek(); // calls come before their results
    for (const call of message.tool_calls ?? []) if (call.id) calls.add(call.id);
    if (message.type === "tool" && calls.has(message.tool_call_id)) found.set(message.tool_call_id, entry);
  }
  return found;
}

/** Whether a message is shown inside its tool call. @param {Entry} entry @param {Map<string, Entry>} results */
function isFolded(entry, results) {
  const id = entry.message.peek().tool_call_id;
  return id !== undefined && results.get(id) === entry;
}

/**
 * @param {{entry: Entry, results: {value: Map<string, Entry>}, tools: any, phase: any, edit: {current: ((message: Message, text: string) => void)|undefined}}} props
 */
export function MessageView({ entry, results, tools, phase, edit }) {
  const message = /** @type {Message} */ (entry.message.value);
  const [draft, setDraft] = useState(/** @type {string|null} */ (null));
  const said = textOf(message), thought = thoughtOf(message), others = otherBlocks(message);
  const calls = [...(message.tool_calls ?? []), ...(message.invalid_tool_calls ?? [])].filter((call) => call.name);
  const canEdit = message.type === "human" && edit.current && phase.value === "idle";
  const send = () => {
    edit.current?.(message, draft ?? "");
    setDraft(null);
  };
  return html`<article class=${`message ${message.type}`} data-type=${message.type} data-id=${message.id ?? null} aria-label=${NAMES[message.type] ?? message.type}>
    <header>
      <span class="message-by">${message.name && message.type !== "tool" ? message.name : (NAMES[message.type] ?? message.type)}${message.type === "tool" && message.name ? ` ${message.name}` : ""}</span>
      <${Tokens} usage=${message.usage_metadata} />
      ${canEdit && draft === null && html`<button type="button" class="plain" onClick=${() => setDraft(said)}>Edit</button>`}
    </header>
    ${thought && html`<details class="thought"><summary>Thoughts</summary><${Markdown} text=${thought} growing=${Boolean(message.growing)} /></details>`}
    ${draft !== null ? html`<div class="message-edit">
        <textarea rows="3" aria-label="Edited message" value=${draft} onInput=${(/** @type {any} */ event) => setDraft(event.currentTarget.value)}></textarea>
        <button type="button" class="primary" disabled=${!draft.trim()} onClick=${send}>Send from here</button>
        <button type="button" onClick=${() => setDraft(null)}>Cancel</button>
      </div>`
      : said || message.growing && !calls.length ? html`<${Markdown} text=${said} growing=${Boolean(message.growing)} />` : null}
    ${others.map((block, at) => html`<${OtherBlock} key=${at} block=${block} />`)}
    ${calls.map((call, at) => html`<${ToolCallView} key=${call.id ?? at} call=${call} results=${results} tools=${tools} phase=${phase} />`)}
  </article>`;
}

/** @param {{usage?: any}} props */
function Tokens({ usage }) {
  if (!usage?.total_tokens) return null;
  return html`<span title=${`${usage.input_tokens ?? 0} in, ${usage.output_tokens ?? 0} out`}>${usage.total_tokens} tokens</span>`;
}

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/;

/** @param {{block: any}} props */
function OtherBlock({ block }) {
  const given = block.image_url?.url ?? block.image_url ?? (block.type === "image" && block.base64 ? `data:${block.mime_type};base64,${block.base64}` : "");
  if (typeof given === "string" && PICTURE.test(given)) return html`<img class="message-picture" src=${given} alt="Picture of the message" />`;
  return html`<${Json} value=${block} collapsed=${true} />`;
}

/**
 * A tool call with its result, folded.
 * @param {{call: import("./messages.js").ToolCall, results: {value: Map<string, Entry>}, tools: any, phase: any}} props
 */
function ToolCallView({ call, results, tools, phase }) {
  const result = call.id ? results.value.get(call.id)?.message.value : undefined;
  const progress = call.id ? tools.value[call.id] : undefined;
  const status = result ? (result.status === "error" ? "failed" : "done") : (progress?.status ?? (phase.value === "idle" ? "open" : "working"));
  return html`<details class=${`tool-call ${status}`} data-tool=${call.name} data-state=${status}>
    <summary><span class="tool-mark" aria-hidden="true"></span><code>${call.name}</code> <span class="tool-args">${oneLine(call.args, 80)}</span> <span class="tool-status">${TOLD[status]}</span></summary>
    <div class="tool-body">
      <p class="part-label">Arguments</p>
      ${typeof call.args === "string" ? html`<pre tabindex="0">${call.args}</pre>` : html`<${Json} value=${call.args} />`}
      ${result ? html`<p class="part-label">Result</p><${ToolResult} message=${result} />` : progress?.output ? html`<p class="part-label">So far</p><pre tabindex="0">${progress.output.slice(-10_000)}</pre>` : null}
    </div>
  </details>`;
}

const TOLD = /** @type {Record<string, string>} */ ({ working: "working", done: "done", failed: "failed", open: "not run" });

/** @param {{message: Message}} props */
function ToolResult({ message }) {
  const said = textOf(message);
  const value = parsed(said);
  if (value !== undefined) return html`<${Json} value=${value} />`;
  return html`<${Markdown} text=${said} />${otherBlocks(message).map((block, at) => html`<${OtherBlock} key=${at} block=${block} />`)}`;
}

/** The value of a text that is a JSON object or array; else undefined. @param {string} text */
function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
