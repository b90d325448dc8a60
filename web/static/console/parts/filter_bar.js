// Filters above a list. The address contains them, so links and the back button keep them.

import { html, useEffect, useRef, useState } from "../core/dom.js";
import { setQuery } from "../core/router.js";

/**
 * A row of filters: `TextFilter` and `ChoiceFilter`.
 * @param {{label: string, children?: any}} props
 */
export function FilterBar({ label, children }) {
  return html`<form class="filter-bar" role="search" aria-label=${label} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>${children}</form>`;
}

/**
 * A text filter. It applies on Enter or when the field loses the focus; reloads of the list do not reset what is typed.
 * @param {{label: string, name: string, value?: string, placeholder?: string, error?: string | null, wide?: boolean}} props
 */
export function TextFilter({ label, name, value = "", placeholder, error, wide }) {
  const [typed, setTyped] = useState(value);
  const known = useRef(value);
  useEffect(() => {
    if (value === known.current) return;
    known.current = value;
    setTyped(value);
  }, [value]);
  const input = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.currentTarget).value;
  return html`
    <label class=${wide ? "filter wide" : "filter"}>
      <span>${label}</span>
      <input type="search" name=${name} value=${typed} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
        aria-invalid=${error ? "true" : undefined} onInput=${(/** @type {Event} */ event) => setTyped(input(event))} onChange=${(/** @type {Event} */ event) => change(name, input(event).trim())} />
      ${error && html`<span class="filter-error" role="alert">${error}</span>`}
    </label>`;
}

/**
 * A filter with a fixed set of values.
 * @param {{label: string, name: string, value?: string, options: {value: string, label: string}[]}} props
 */
export function ChoiceFilter({ label, name, value = "", options }) {
  const isKnown = options.some((option) => option.value === value);
  return html`
    <label class="filter">
      <span>${label}</span>
      <select name=${name} value=${value} onChange=${(/** @type {Event} */ event) => change(name, /** @type {HTMLSelectElement} */ (event.currentTarget).value)}>
        ${!isKnown && html`<option value=${value}>${value.slice(0, 60)}</option>`}
        ${options.map((option) => html`<option key=${option.value} value=${option.value} selected=${option.value === value}>${option.label}</option>`)}
      </select>
    </label>`;
}

/** Set a filter and go to the first page. @param {string} name @param {string} value */
const change = (name, value) => setQuery({ [name]: value || null, offset: null });

/**
 * Buttons for the previous and the next page of a list. `found` is the number of rows on this page, `total` null if it is not known.
 * @param {{offset: number, limit: number, found: number, total: number | null}} props
 */
export function PageBar({ offset, limit, found, total }) {
  const hasNext = total === null ? found === limit : offset + found < total;
  if (!offset && !hasNext) return null;
  const go = (/** @type {number} */ to) => setQuery({ offset: to > 0 ? String(to) : null });
  return html`
    <nav class="pager" aria-label="Pages">
      <button type="button" disabled=${!offset} onClick=${() => go(offset - limit)}>Previous</button>
      <span class="quiet">${(offset + 1).toLocaleString("en")}–${(offset + found).toLocaleString("en")}${total === null ? "" : ` of ${total.toLocaleString("en")}`}</span>
      <button type="button" disabled=${!hasNext} onClick=${() => go(offset + limit)}>Next</button>
    </nav>`;
}
