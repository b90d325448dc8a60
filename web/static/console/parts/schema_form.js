// A form generated from a JSON Schema, and an editor of the same value as JSON. A change of one updates the other.
// A field whose schema has no control of its own is edited as JSON.

import { createContext, html, useContext, useEffect, useId, useMemo, useState } from "../core/dom.js";
import { JsonEditor } from "./json_editor.js";
import { choicesOf, faultOf, initial, kindOf, titleOf } from "./schema.js";

/** @typedef {import("./schema.js").Schema} Schema */
/** @typedef {{name: string, label: string, schema: Schema, root: Schema, value: any, required: boolean, onChange: (value: any) => void}} FieldProps */

/** Collects the errors of the form's JSON editors, by the id of the editor. */
const Faults = createContext((/** @type {string} */ _id, /** @type {string|null} */ _error) => {});

/**
 * A form and a JSON editor of one value, shown one at a time or side by side. While a text is invalid JSON, `onChange` is
 * not called, and `onFault` receives the error.
 * @param {{schema: Schema|null|undefined, value: any, onChange: (value: any) => void, onFault?: (error: string|null) => void, label: string, omit?: string[]}} props
 */
export function SchemaEditor({ schema, value, onChange, onFault, label, omit = [] }) {
  const hasForm = Boolean(schema && kindOf(schema, schema).kind === "object");
  const report = useMemo(() => collector(onFault), []);
  const [view, setView] = useState(hasForm ? "form" : "json");
  const tabs = /** @type {[string, string][]} */ ([["form", "Form"], ["json", "JSON"], ["both", "Both"]]);
  return html`<${Faults.Provider} value=${report}><div class=${`schema-editor show-${hasForm ? view : "json"}`}>
    ${hasForm && html`<div class="schema-views" role="group" aria-label=${`${label}: view`}>
      ${tabs.map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${view === name ? "true" : "false"} onClick=${() => setView(name)}>${title}</button>`)}
    </div>`}
    ${hasForm && view !== "json" && html`<${SchemaForm} schema=${schema} value=${value} onChange=${onChange} label=${label} omit=${omit} />`}
    ${(!hasForm || view !== "form") && html`<${CheckedJson} label=${`${label} as JSON`} value=${value ?? {}} schema=${schema} onChange=${onChange} />`}
  </div><//>`;
}

/** Return a function that records the error of one editor and passes on the first of all errors. @param {((error: string|null) => void)|undefined} onFault */
function collector(onFault) {
  const faults = new Map();
  return (/** @type {string} */ id, /** @type {string|null} */ error) => {
    if (error) faults.set(id, error);
    else faults.delete(id);
    onFault?.([...faults.values()][0] ?? null);
  };
}

/** A JSON editor that reports only valid values. @param {{label: string, value: any, schema: Schema|null|undefined, rows?: number, onChange: (value: any) => void}} props */
function CheckedJson({ label, value, schema, rows, onChange }) {
  const id = useId();
  const report = useContext(Faults);
  useEffect(() => () => report(id, null), []);
  const change = (/** @type {any} */ to, /** @type {any} */ state) => {
    report(id, state?.error ?? null);
    if (!state?.error) onChange(to);
  };
  return html`<${JsonEditor} label=${label} value=${value} schema=${schema ?? undefined} rows=${rows} onChange=${change} />`;
}

/** @param {{schema: Schema, value: any, onChange: (value: any) => void, label: string, omit?: string[]}} props */
export function SchemaForm({ schema, value, onChange, label, omit = [] }) {
  return html`<div role="group" aria-label=${label}>
    <${Properties} schema=${schema} root=${schema} value=${value} onChange=${onChange} omit=${omit} />
  </div>`;
}

/** @param {{schema: Schema, root: Schema, value: any, onChange: (value: any) => void, omit?: string[]}} props */
function Properties({ schema: reference, root, value, onChange, omit = [] }) {
  const { schema } = kindOf(reference, root);
  const required = new Set(schema.required ?? []);
  const object = value && typeof value === "object" && !Array.isArray(value) ? value : {};
  const set = (/** @type {string} */ name, /** @type {any} */ to) => {
    const { [name]: _before, ...others } = object;
    onChange(to === undefined ? others : { ...object, [name]: to });
  };
  return Object.entries(schema.properties ?? {}).filter(([name]) => !omit.includes(name)).map(([name, each]) => html`<${Field}
    key=${name} name=${name} schema=${each} root=${root} label=${titleOf(name, kindOf(/** @type {Schema} */ (each), root).schema)}
    value=${object[name]} required=${required.has(name)} onChange=${(/** @type {any} */ to) => set(name, to)} />`);
}

/** One field of any kind, with its description and its error. @param {FieldProps} props */
function Field({ name, label, schema: reference, root, value, required, onChange }) {
  const { kind, nullable, schema } = kindOf(reference, root);
  const id = useId();
  const fault = value === undefined || value === null ? "" : faultOf(value, schema);
  const isGroup = kind === "object" || kind === "array";
  const isEmptiable = !required || nullable;
  const described = [schema.description ? `${id}-hint` : "", fault ? `${id}-fault` : ""].filter(Boolean).join(" ") || null;
  const props = { id, name, label, kind, schema, root, value, required, nullable, onChange, described };
  const head = html`<span class="field-name">${label}${required && html`<abbr title="required" aria-hidden="true">*</abbr>`}</span>
    <span class="field-kind">${kindName(kind, schema)}</span>`;
  return html`<div class=${`schema-field kind-${kind}`} data-field=${name} role=${isGroup ? "group" : null} aria-labelledby=${isGroup ? `${id}-label` : null}>
    <div class="field-head">
      ${isGroup || kind === "json" ? html`<span class="field-label" id=${`${id}-label`}>${head}</span>` : html`<label class="field-label" for=${id}>${head}</label>`}
      ${isEmptiable && value !== undefined && value !== null && html`<button type="button" class="field-clear" title=${`Clear ${label}`} aria-label=${`Clear ${label}`}
        onClick=${() => onChange(nullable && required ? null : undefined)}>×</button>`}
    </div>
    ${schema.description && html`<p class="hint" id=${`${id}-hint`}>${schema.description}</p>`}
    <${Control} ...${props} />
    ${fault && html`<p class="field-fault" id=${`${id}-fault`} role="alert">${fault}</p>`}
  </div>`;
}

/** @param {any} props */
function Control(props) {
  const { kind, value } = props;
  if (kind === "object") return html`<${ObjectControl} ...${props} />`;
  if (kind === "array" && (value === undefined || value === null || Array.isArray(value))) return html`<${ListControl} ...${props} />`;
  if (kind === "json" || !fits(kind, value)) return html`<${JsonControl} ...${props} />`;
  if (kind === "boolean") return html`<${BooleanControl} ...${props} />`;
  if (kind === "enum") return html`<${EnumControl} ...${props} />`;
  if (kind === "number" || kind === "integer") return html`<${NumberControl} ...${props} />`;
  return html`<${TextControl} ...${props} />`;
}

/** Return whether the control of a kind can show a value. The JSON editor may set a value of any type. @param {string} kind @param {any} value */
function fits(kind, value) {
  if (value === undefined || value === null || kind === "enum") return true;
  const types = /** @type {Record<string, string>} */ ({ string: "string", text: "string", number: "number", integer: "number", boolean: "boolean" });
  return typeof value === types[kind];
}

/** @param {any} props */
function TextControl({ id, schema, kind, value, described, required, onChange }) {
  const isLong = kind === "text" || (typeof value === "string" && (value.length > 80 || value.includes("\n")));
  const placeholder = typeof schema.default === "string" ? schema.default : schema.examples?.[0] ?? "";
  const change = (/** @type {any} */ event) => onChange(event.currentTarget.value);
  return html`<textarea id=${id} rows=${isLong ? 4 : 1} value=${value ?? ""} placeholder=${placeholder} aria-describedby=${described} aria-required=${required ? "true" : null} onInput=${change}></textarea>`;
}

/** @param {any} props */
function NumberControl({ id, schema, kind, value, described, required, onChange }) {
  const change = (/** @type {any} */ event) => {
    const text = event.currentTarget.value;
    onChange(text === "" ? undefined : Number(text));
  };
  return html`<input id=${id} type="number" step=${kind === "integer" ? 1 : "any"} value=${value ?? ""} placeholder=${schema.default ?? ""}
    aria-describedby=${described} aria-required=${required ? "true" : null} onInput=${change} />`;
}

/** @param {any} props */
function BooleanControl({ id, value, described, onChange }) {
  return html`<input id=${id} type="checkbox" checked=${value === true} aria-describedby=${described}
    onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.checked)} />`;
}

/** @param {any} props */
function EnumControl({ id, schema, value, described, onChange }) {
  const choices = choicesOf(schema);
  const at = choices.findIndex((choice) => JSON.stringify(choice) === JSON.stringify(value));
  return html`<select id=${id} aria-describedby=${described} value=${String(at)} onChange=${(/** @type {any} */ event) => onChange(choices[Number(event.currentTarget.value)])}>
    <option value="-1">${at >= 0 || value === undefined || value === null ? "–" : `${JSON.stringify(value)} (not one of the options)`}</option>
    ${choices.map((choice, index) => html`<option key=${index} value=${String(index)}>${typeof choice === "string" ? choice : JSON.stringify(choice)}</option>`)}
  </select>`;
}

/** @param {any} props */
function ObjectControl({ schema, root, value, label, required, nullable, onChange }) {
  const isSet = value !== undefined && value !== null;
  if (!isSet && (nullable || !required)) return html`<button type="button" class="field-add" onClick=${() => onChange(initialObject(schema, root))}>Add ${label}</button>`;
  return html`<div class="field-nested"><${Properties} schema=${schema} root=${root} value=${value} onChange=${onChange} /></div>`;
}

/** @param {Schema} schema @param {Schema} root */
function initialObject(schema, root) {
  const { default: _default, ...rest } = schema;
  return initial(rest, root);
}

/** @param {any} props */
function ListControl({ schema, root, value, label, onChange }) {
  const items = value ?? [];
  const change = (/** @type {number} */ at, /** @type {any} */ to) => onChange(items.map((/** @type {any} */ item, /** @type {number} */ index) => (index === at ? to : item)));
  const { kind, nullable } = kindOf(schema.items, root);
  const first = nullable ? null : initial(schema.items, root);
  return html`<div>
    ${items.map((/** @type {any} */ item, /** @type {number} */ at) => html`<div class="field-item" key=${at}>
      <${Field} name=${String(at)} label=${`${label} ${at + 1}`} schema=${schema.items} root=${root} value=${item} required=${true}
        onChange=${(/** @type {any} */ to) => change(at, to === undefined ? (kind === "number" || kind === "integer" ? 0 : null) : to)} />
      <button type="button" class="field-clear" aria-label=${`Remove ${label} ${at + 1}`} title="Remove"
        onClick=${() => onChange(items.filter((/** @type {any} */ _item, /** @type {number} */ index) => index !== at))}>×</button>
    </div>`)}
    <button type="button" class="field-add" onClick=${() => onChange([...items, first])}>Add to ${label}</button>
  </div>`;
}

/** @param {any} props */
function JsonControl({ label, schema, value, onChange }) {
  return html`<${CheckedJson} label=${label} value=${value} schema=${schema} rows=${3} onChange=${onChange} />`;
}

/** @param {string} kind @param {Schema} schema */
function kindName(kind, schema) {
  if (kind === "json") return schema.type ?? "any JSON";
  if (kind === "enum") return "one of";
  if (kind === "text") return "string";
  return kind;
}
