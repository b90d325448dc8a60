// A message of a state as plain text: its role, its content and its tool calls. Nothing in it becomes markup.

import { html } from "../core/dom.js";
import { plain } from "../core/format.js";
import { Json, LongText } from "./index.js";

const TYPES = new Set(["human", "ai", "system", "tool", "function", "remove", "developer", "HumanMessageChunk", "AIMessageChunk", "ToolMessageChunk", "SystemMessageChunk"]);
const SHOWN = 1_500;

/**
 * Whether a value is a message in the form that LangChain serializes.
 * @param {any} value
 * @returns {boolean}
 */
export function isMessage(value) {
  return typeof value === "object" && value !== null && TYPES.has(value.type) && "content" in value;
}

/**
 * Whether a value is a list of messages only.
 * @param {unknown} value
 * @returns {value is any[]}
 */
export const isMessages = (value) => Array.isArray(value) && value.length > 0 && value.every(isMessage);

/**
 * The text of a message's content, which may be blocks.
 * @param {unknown} content
 * @returns {string}
 */
export function textOf(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content == null ? "" : JSON.stringify(content);
  return content.map((block) => (typeof block === "string" ? block : block?.text ?? `[${block?.type ?? "block"}]`)).join("\n");
}

/**
 * A message. A long text is cut, with a button that shows all of it.
 * @param {{message: any}} props
 */
export function Message({ message }) {
  const who = String(message.type).replace(/MessageChunk$/, "").toLowerCase();
  const text = textOf(message.content);
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
  return html`
    <div class=${who === "human" ? "kept human" : "kept"}>
      <div class="kept-who">${plain(who.slice(0, 40))}${typeof message.name === "string" && message.name && html` <span class="quiet">${plain(message.name.slice(0, 100))}</span>`}${message.status === "error" && html` <span class="bad">error</span>`}</div>
      <div class="kept-text"><${LongText} text=${text} limit=${SHOWN} /></div>
      ${calls.slice(0, 50).map((/** @type {any} */ call, /** @type {number} */ at) => html`
        <details class="kept-call" key=${at}>
          <summary>calls <code>${plain(String(call?.name).slice(0, 200))}</code></summary>
          <${Json} value=${call?.args} />
        </details>`)}
    </div>`;
}
