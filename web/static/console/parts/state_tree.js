// A state as a tree: each value under its key. Lists of messages are shown as messages, other values as JSON.

import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { Json } from "./index.js";
import { Message, isMessages } from "./message.js";

const FIRST_MESSAGES = 20;

/**
 * The values of a state.
 * @param {{values: unknown}} props
 */
export function StateTree({ values }) {
  if (typeof values !== "object" || values === null || Array.isArray(values)) return html`<${Json} value=${values} />`;
  const entries = Object.entries(values);
  if (!entries.length) return html`<p class="quiet">The state is empty.</p>`;
  return html`
    <dl class="state-tree">
      ${entries.slice(0, 200).map(([name, value]) => html`
        <div class="state-value" key=${name}>
          <dt><code>${plain(name.slice(0, 200))}</code> <span class="quiet">${kindOf(value)}</span></dt>
          <dd>${isMessages(value) ? html`<${Messages} messages=${value} />` : html`<${Json} value=${value} collapsed=${isLarge(value) ? 0 : 2} label=${plain(name.slice(0, 200))} />`}</dd>
        </div>`)}
      ${entries.length > 200 && html`<div class="quiet">and ${entries.length - 200} more keys</div>`}
    </dl>`;
}

/**
 * The newest messages, and a button for earlier ones.
 * @param {{messages: any[]}} props
 */
export function Messages({ messages }) {
  const [shown, setShown] = useState(FIRST_MESSAGES);
  const hidden = Math.max(messages.length - shown, 0);
  return html`
    <div class="kept-messages">
      ${hidden > 0 && html`<button type="button" class="plain" onClick=${() => setShown(shown + 100)}>Show ${Math.min(hidden, 100)} of ${hidden} earlier messages</button>`}
      ${messages.slice(hidden).map((message, at) => html`<${Message} key=${message.id ?? hidden + at} message=${message} />`)}
    </div>`;
}

/** @param {unknown} value */
function kindOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return value.length === 1 ? "1 item" : `${value.length.toLocaleString("en")} items`;
  if (typeof value === "string") return `${value.length.toLocaleString("en")} characters`;
  return typeof value === "object" ? `${Object.keys(/** @type {object} */ (value)).length} keys` : typeof value;
}

/** @param {unknown} value */
const isLarge = (value) => typeof value === "object" && value !== null && Object.keys(value).length > 50;
