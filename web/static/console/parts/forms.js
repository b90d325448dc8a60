// Buttons and form fields.

import { html, useEffect, useId, useRef, useState } from "../core/dom.js";
import { Icon } from "./icons.js";
import { notify } from "./toasts.js";

/**
 * A button. While the promise of its handler is pending it is disabled; a rejection becomes a toast.
 * @param {{onClick?: (event: any) => any, kind?: "primary" | "danger" | "plain", icon?: Parameters<typeof Icon>[0]["name"], busy?: boolean, disabled?: boolean, title?: string, type?: "button" | "submit", label?: string, pressed?: boolean, children?: any}} props
 */
export function Button({ onClick, kind, icon, busy = false, disabled = false, title, type = "button", label, pressed, children }) {
  const [isPending, setPending] = useState(false);
  const isMounted = useRef(true);
  useEffect(() => () => void (isMounted.current = false), []);
  const click = async (/** @type {any} */ event) => {
    const result = onClick?.(event);
    if (!(result instanceof Promise)) return;
    setPending(true);
    try {
      await result;
    } catch (error) {
      notify(/** @type {any} */ (error).detail ?? String(error), "error");
    } finally {
      if (isMounted.current) setPending(false);
    }
  };
  const isBusy = busy || isPending;
  return html`<button type=${type} class=${kind ?? ""} title=${title} aria-label=${label} aria-pressed=${pressed === undefined ? undefined : String(pressed)}
    aria-busy=${isBusy ? "true" : undefined} disabled=${disabled || isBusy} onClick=${click}>${icon && html`<${Icon} name=${icon} />`}${children}</button>`;
}

/** A control with its label above it and its hint or error below it. @param {{label: any, hint?: any, error?: any, children?: any}} props */
export function Field({ label, hint, error, children }) {
  return html`
    <div class=${error ? "field wrong" : "field"}>
      <label><span class="label">${label}</span>${children}</label>
      ${error ? html`<p class="error" role="alert">${error}</p>` : hint && html`<p class="hint">${hint}</p>`}
    </div>`;
}

/**
 * @param {{label: any, value: string, onInput: (value: string) => void, hint?: any, error?: any, type?: string, placeholder?: string, required?: boolean, disabled?: boolean, autofocus?: boolean}} props
 */
export function TextField({ label, value, onInput, hint, error, type = "text", ...more }) {
  return html`<${Field} label=${label} hint=${hint} error=${error}>
    <input type=${type} value=${value} autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)} ...${more} />
  <//>`;
}

/** @param {{label: any, value: string, onInput: (value: string) => void, hint?: any, error?: any, rows?: number, placeholder?: string, mono?: boolean, disabled?: boolean}} props */
export function TextArea({ label, value, onInput, hint, error, rows = 4, mono = false, ...more }) {
  return html`<${Field} label=${label} hint=${hint} error=${error}>
    <textarea class=${mono ? "mono" : ""} rows=${rows} value=${value} spellcheck=${!mono} onInput=${(/** @type {any} */ event) => onInput(event.currentTarget.value)} ...${more}></textarea>
  <//>`;
}

/** @param {{label: any, checked: boolean, onChange: (checked: boolean) => void, disabled?: boolean}} props */
export function Check({ label, checked, onChange, disabled }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} disabled=${disabled} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.checked)} /> ${label}</label>`;
}

/**
 * @typedef {string | {value: string, label: string}} Choice
 * @param {{label: string, value: string, options: Choice[], onChange: (value: string) => void, isLabelHidden?: boolean, disabled?: boolean}} props
 */
export function Select({ label, value, options, onChange, isLabelHidden = false, disabled }) {
  const id = useId();
  return html`
    <span class="select">
      <label for=${id} class=${isLabelHidden ? "unseen" : "label"}>${label}</label>
      <select id=${id} value=${value} disabled=${disabled} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
        ${options.map((option) => (typeof option === "string" ? { value: option, label: option } : option)).map(choice)}
      </select>
    </span>`;

  /** @param {{value: string, label: string}} option */
  function choice(option) {
    return html`<option key=${option.value} value=${option.value} selected=${option.value === value}>${option.label}</option>`;
  }
}

/**
 * A search field; `onInput` is called `delay` milliseconds after the last key, or at once on Enter.
 * @param {{label: string, value: string, onInput: (value: string) => void, placeholder?: string, delay?: number}} props
 */
export function SearchBox({ label, value, onInput, placeholder, delay = 250 }) {
  const [typed, setTyped] = useState(value);
  const timer = useRef(0);
  const reported = useRef(value);
  useEffect(() => {
    if (value === reported.current) return; // the text that this field reported
    reported.current = value;
    setTyped(value);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const report = (/** @type {string} */ text) => {
    clearTimeout(timer.current);
    reported.current = text;
    onInput(text);
  };
  const type = (/** @type {any} */ event) => {
    const text = event.currentTarget.value;
    setTyped(text);
    clearTimeout(timer.current);
    timer.current = window.setTimeout(() => report(text), delay);
  };
  return html`<input type="search" class="search" aria-label=${label} placeholder=${placeholder ?? label} value=${typed} spellcheck=${false}
    onInput=${type} onKeyDown=${(/** @type {any} */ event) => event.key === "Enter" && report(event.currentTarget.value)} />`;
}
