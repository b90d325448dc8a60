// Dialogs, and questions before what cannot be undone.

import { html, signal, useEffect, useId, useRef } from "../core/dom.js";
import { Button } from "./forms.js";

/** @param {{title: string, open: boolean, onClose: () => void, actions?: any, children?: any, wide?: boolean}} props */
export function Dialog({ title, open, onClose, actions, children, wide = false }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    if (open && dialog && !dialog.open) dialog.showModal();
  }, [open]);
  if (!open) return null;
  const cancel = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
  };
  const clickOutside = (/** @type {any} */ event) => event.target === element.current && onClose();
  return html`
    <dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel} onMouseDown=${clickOutside}>
      <div class="dialog">
        <header><h2 id=${id}>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}>×</button></header>
        <div class="dialog-body">${children}</div>
        ${actions && html`<footer class="actions">${actions}</footer>`}
      </div>
    </dialog>`;
}

/**
 * @param {{title: string, open: boolean, action: string, onConfirm: () => any, onClose: () => void, kind?: "primary" | "danger", children?: any}} props
 */
export function Confirm({ title, open, action, onConfirm, onClose, kind = "primary", children }) {
  const confirm = async () => {
    await onConfirm();
    onClose();
  };
  const actions = html`<${Button} onClick=${onClose}>Cancel<//><${Button} kind=${kind} onClick=${confirm}>${action}<//>`;
  return html`<${Dialog} title=${title} open=${open} onClose=${onClose} actions=${actions}>${children}<//>`;
}

/** @typedef {{title: string, text?: any, action: string, kind?: "primary" | "danger", answer: (is: boolean) => void}} Question */
/** @type {import("../../vendor/signals.js").Signal<Question | null>} */
const question = signal(null);

/**
 * Ask before something is done: `if (await ask({title: "Delete it?", action: "Delete", kind: "danger"})) …`.
 * @param {{title: string, text?: any, action: string, kind?: "primary" | "danger"}} asked
 * @returns {Promise<boolean>}
 */
export function ask(asked) {
  question.peek()?.answer(false);
  return new Promise((answer) => {
    question.value = { ...asked, answer };
  });
}

/** Where `ask` asks. */
export function Questions() {
  const asked = question.value;
  if (!asked) return null;
  const answer = (/** @type {boolean} */ is) => {
    question.value = null;
    asked.answer(is);
  };
  const actions = html`<${Button} onClick=${() => answer(false)}>Cancel<//><${Button} kind=${asked.kind ?? "primary"} onClick=${() => answer(true)}>${asked.action}<//>`;
  return html`<${Dialog} title=${asked.title} open=${true} onClose=${() => answer(false)} actions=${actions}>${asked.text}<//>`;
}
