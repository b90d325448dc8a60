// Modal dialogs, and confirmations before an action that cannot be undone.

import { html, signal, useId, useLayoutEffect, useRef } from "../core/dom.js";
import { Button } from "./forms.js";
import { Icon } from "./icons.js";

/**
 * Show a dialog element as modal while `open`. Afterwards the element that had the focus gets it back.
 * @param {boolean} open @returns {{current: HTMLDialogElement | null}} the ref of the element
 */
export function useModal(open) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    if (!open) return;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    element.current?.showModal();
    return () => {
      element.current?.close();
      if (focused?.isConnected) focused.focus();
    };
  }, [open]);
  return element;
}

/** A modal dialog. Escape and a click beside it close it. @param {{title: string, open: boolean, onClose: () => void, actions?: any, children?: any, wide?: boolean}} props */
export function Dialog({ title, open, onClose, actions, children, wide = false }) {
  const element = useModal(open);
  const id = useId();
  if (!open) return null;
  const cancel = (/** @type {Event} */ event) => {
    event.preventDefault();
    onClose();
  };
  const clickOutside = (/** @type {any} */ event) => event.target === element.current && onClose();
  return html`
    <dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${cancel} onMouseDown=${clickOutside}>
      <div class="dialog">
        <header><h2 id=${id}>${title}</h2><button type="button" class="plain" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button></header>
        <div class="dialog-body">${children}</div>
        ${actions && html`<footer class="actions">${actions}</footer>`}
      </div>
    </dialog>`;
}

/**
 * A dialog with one action, which closes it.
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
 * Ask for a confirmation: `if (await ask({title: "Delete it?", action: "Delete", kind: "danger"})) …`.
 * @param {{title: string, text?: any, action: string, kind?: "primary" | "danger"}} text
 * @returns {Promise<boolean>}
 */
export function ask(text) {
  question.peek()?.answer(false);
  return new Promise((answer) => {
    question.value = { ...text, answer };
  });
}

/** Shows the confirmations of `ask`. */
export function Questions() {
  const shown = question.value;
  if (!shown) return null;
  const answer = (/** @type {boolean} */ is) => {
    question.value = null;
    shown.answer(is);
  };
  const actions = html`<${Button} onClick=${() => answer(false)}>Cancel<//><${Button} kind=${shown.kind ?? "primary"} onClick=${() => answer(true)}>${shown.action}<//>`;
  return html`<${Dialog} title=${shown.title} open=${true} onClose=${() => answer(false)} actions=${actions}>${shown.text}<//>`;
}
