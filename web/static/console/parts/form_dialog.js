// A dialog with a form. It closes when the service accepts the form, and otherwise shows the service's errors at the fields.

import { html, useState } from "../core/dom.js";
import { Button, Dialog, ErrorBox, TextField } from "./index.js";

/**
 * The values of a form's fields; `bind` is for text fields: `<${TextField} ...${form.bind("name")} />`.
 * @template {Record<string, any>} T
 * @param {T} initial
 */
export function useForm(initial) {
  const [values, setValues] = useState(initial);
  const set = (/** @type {Partial<T>} */ changes) => setValues((/** @type {T} */ before) => ({ ...before, ...changes }));
  const bind = (/** @type {keyof T & string} */ name) => ({
    value: values[name],
    onInput: (/** @type {string} */ value) => set(/** @type {Partial<T>} */ ({ [name]: value })),
  });
  return { values, set, bind };
}

/**
 * @param {{
 *   title: string, label?: string, danger?: boolean, disabled?: boolean, wide?: boolean, onClose: () => void,
 *   onSubmit: () => Promise<any>, children: (errorOf: (name: string) => string | undefined) => any,
 * }} props
 */
export function FormDialog({ title, label = "Save", danger = false, disabled = false, wide = false, onClose, onSubmit, children }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (busy || disabled) return;
    setBusy(true);
    setError(null);
    try {
      await onSubmit();
      onClose();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const errorOf = (/** @type {string} */ name) =>
    error?.fields?.find((/** @type {any} */ field) => field.loc?.includes(name))?.msg;
  return html`
    <${Dialog} open=${true} title=${title} wide=${wide} onClose=${onClose}>
      <form class="form" onSubmit=${submit}>
        ${children(errorOf)}
        <${ErrorBox} error=${error} />
        <footer class="actions">
          <${Button} onClick=${onClose}>Cancel<//>
          <${Button} type="submit" kind=${danger ? "danger" : "primary"} busy=${busy} disabled=${disabled}>${label}<//>
        </footer>
      </form>
    <//>`;
}

/**
 * The confirmation of a deletion that cannot be undone: the name must be typed.
 * @param {{title: string, name: string, label?: string, children?: any, onClose: () => void, onSubmit: () => Promise<any>}} props
 */
export function TypedConfirm({ title, name, label = "Delete", children, onClose, onSubmit }) {
  const form = useForm({ typed: "" });
  return html`
    <${FormDialog} title=${title} label=${label} danger disabled=${form.values.typed !== name} onClose=${onClose} onSubmit=${onSubmit}>
      ${() => html`${children}<${TextField} label=${html`Type <b>${name}</b> to confirm`} ...${form.bind("typed")} autofocus />`}
    <//>`;
}
