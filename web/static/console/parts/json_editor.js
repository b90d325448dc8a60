// A text area for JSON that says where it is wrong.

import { html, useEffect, useRef, useState } from "../core/dom.js";
import { Field } from "./forms.js";

/**
 * @param {{value: any, onChange: (value: any, state: {text: string, error: string | null}) => void, schema?: any, label: string, rows?: number, hint?: any}} props
 *   `onChange` gets undefined while the text is no JSON
 */
export function JsonEditor({ value, onChange, schema, label, rows = 10, hint }) {
  const [text, setText] = useState(() => written(value));
  const [error, setError] = useState(/** @type {string | null} */ (null));
  const said = useRef(value);
  useEffect(() => {
    if (value === said.current || value === undefined) return;
    said.current = value;
    setText(written(value));
    setError(null);
  }, [value]);
  const type = (/** @type {any} */ event) => {
    const now = event.currentTarget.value;
    setText(now);
    const read = parse(now);
    setError(read.error);
    said.current = read.value;
    onChange(read.value, { text: now, error: read.error });
  };
  const tab = (/** @type {any} */ event) => {
    if (event.key !== "Tab" || event.shiftKey || event.currentTarget.selectionStart === event.currentTarget.value.length) return;
    event.preventDefault();
    event.currentTarget.setRangeText("  ", event.currentTarget.selectionStart, event.currentTarget.selectionEnd, "end");
    type(event);
  };
  return html`<${Field} label=${label} error=${error} hint=${hint ?? (schema && outline(schema))}>
    <textarea class="mono" rows=${rows} spellcheck=${false} value=${text} aria-invalid=${error ? "true" : undefined} onInput=${type} onKeyDown=${tab}></textarea>
  <//>`;
}

/** @param {any} value */
const written = (value) => (value === undefined ? "" : JSON.stringify(value, null, 2));

/** A text's value, or what is wrong with it and in which line. @param {string} text @returns {{value: any, error: string | null}} */
export function parse(text) {
  if (!text.trim()) return { value: undefined, error: null };
  try {
    return { value: JSON.parse(text), error: null };
  } catch (error) {
    return { value: undefined, error: `Line ${lineOf(text, String(error))}: ${reason(String(error))}` };
  }
}

/** @param {string} text @param {string} message */
function lineOf(text, message) {
  const line = /line (\d+)/.exec(message);
  if (line) return Number(line[1]);
  const position = /position (\d+)/.exec(message);
  return text.slice(0, position ? Number(position[1]) : text.length).split("\n").length;
}

/** @param {string} message */
const reason = (message) => message.replace(/^SyntaxError: (JSON\.parse: )?/, "").replace(/,? (in JSON )?at (position|line) .*$/, "").replace(/^./, (first) => first.toUpperCase());

/** A summary of a schema in one line. @param {any} schema */
function outline(schema) {
  const names = Object.entries(schema.properties ?? {});
  if (!names.length) return null;
  const required = new Set(schema.required ?? []);
  return names.slice(0, 12).map(([name, one]) => `${name}${required.has(name) ? "" : "?"}: ${/** @type {any} */ (one).type ?? "any"}`).join(", ");
}
