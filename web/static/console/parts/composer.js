// The input of a run: a message, or a form of the graph's input schema, with options for debugging.

import { html, useEffect, useMemo, useRef, useState } from "../core/dom.js";
import { can } from "../core/session.js";
import { Button, Select } from "./index.js";
import { newId } from "./messages.js";
import { initial, missingIn } from "./schema.js";
import { SchemaEditor, SchemaForm } from "./schema_form.js";

const PAUSES = [
  { value: "", label: "never" }, { value: "before", label: "before each node" }, { value: "after", label: "after each node" },
];

/** @param {{schemas: any, control: import("./run_control.js").RunControl, run: (body: Record<string, any>, message?: any) => Promise<boolean>}} props */
export function Composer({ schemas, control, run }) {
  const input = schemas.input_schema ?? {};
  const isChat = Boolean(input.properties?.messages);
  const others = useMemo(() => withoutMessages(input), [input]);
  const [way, setWay] = useState(isChat ? "chat" : "form");
  const [text, setText] = useState("");
  const [value, setValue] = useState(() => (isChat ? {} : initial(input, input)) ?? {});
  const [pause, setPause] = useState("");
  const [context, setContext] = useState(/** @type {any} */ ({}));
  const [fault, setFault] = useState(/** @type {string|null} */ (null));
  const phase = control.view.phase.value;
  const isIdle = phase === "idle";
  const missing = way === "form" ? missingIn(value, input) : [];
  const canSend = isIdle && fault === null && (way === "form" ? true : text.trim() !== "");

  const send = async () => {
    if (!canSend) return;
    const { messages: _messages, ...rest } = value;
    const message = way === "chat" ? { type: "human", content: text, id: newId() } : undefined;
    const body = { input: message ? { ...rest, messages: [message] } : value, ...pausing(pause), ...(Object.keys(context ?? {}).length > 0 && { context }) };
    if (message) setText("");
    if (!(await run(body, message)) && message) setText((now) => now || text);
  };

  if (!can("run")) return html`<p class="hint">Your role can read this page, but not start runs.</p>`;
  return html`<form class="composer" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void send())}>
    ${isChat && html`<div class="schema-views" role="group" aria-label="Input">
      ${[["chat", "Chat"], ["form", "Form"]].map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${way === name ? "true" : "false"} onClick=${() => setWay(name)}>${title}</button>`)}
    </div>`}
    ${way === "chat" ? html`
        <${MessageBox} text=${text} onInput=${setText} onSend=${send} />
        ${others && html`<details class="composer-more"><summary>More input</summary><${SchemaForm} schema=${others} value=${value} onChange=${setValue} label="More input" /></details>`}`
      : html`<div class="composer-form"><${SchemaEditor} schema=${input} value=${value} onChange=${setValue} onFault=${setFault} label="Input" /></div>`}
    <div class="composer-foot">
      <details class="composer-more"><summary>Options${pause || Object.keys(context ?? {}).length ? " (set)" : ""}</summary>
        <${Select} label="Pause" value=${pause} options=${PAUSES} onChange=${setPause} />
        <p class="part-label">Context of these runs</p>
        <p class="hint">Replaces the assistant's values.</p>
        <${SchemaEditor} schema=${contextSchema(schemas)} value=${context} onChange=${setContext} onFault=${setFault} label="Context" />
      </details>
      <span class="composer-send">
        ${isIdle && missing.length > 0 && html`<span class="hint">without ${missing.join(", ")}</span>`}
        ${isIdle ? html`<${Button} kind="primary" type="submit" disabled=${!canSend}>${way === "chat" ? "Send" : "Run"}<//>`
          : html`<${Button} kind="danger" disabled=${phase === "stopping"} onClick=${() => control.stop()}>Stop<//>`}
      </span>
    </div>
  </form>`;
}

/** A text box that grows with its text. Enter sends it. @param {{text: string, onInput: (text: string) => void, onSend: () => void}} props */
function MessageBox({ text, onInput, onSend }) {
  const box = useRef(/** @type {HTMLTextAreaElement|null} */ (null));
  useEffect(() => {
    const area = /** @type {HTMLTextAreaElement} */ (box.current);
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 200)}px`;
  }, [text]);
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    onSend();
  };
  return html`<textarea ref=${box} class="composer-text" rows="1" aria-label="Message" placeholder="Message (Enter sends, Shift+Enter breaks the line)" value=${text} onKeyDown=${onKey}
    onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)}></textarea>`;
}

/** @param {string} pause */
function pausing(pause) {
  return pause === "before" ? { interrupt_before: "*" } : pause === "after" ? { interrupt_after: "*" } : {};
}

/** The schema of the input without its messages; null if it has no other fields. @param {any} schema */
function withoutMessages(schema) {
  const { messages: _messages, ...properties } = schema.properties ?? {};
  if (!Object.keys(properties).length) return null;
  return { ...schema, properties, required: (schema.required ?? []).filter((/** @type {string} */ name) => name !== "messages") };
}

/** @param {any} schemas */
function contextSchema(schemas) {
  const schema = schemas.context_schema ?? schemas.config_schema;
  return Object.keys(schema?.properties ?? {}).length ? schema : null;
}
