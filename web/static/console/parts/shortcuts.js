// Keyboard shortcuts of a page.

import { useEffect, useRef } from "../core/dom.js";

/**
 * Run a function when its key is pressed, unless the user types in a control or a dialog is open.
 * @param {Record<string, (event: KeyboardEvent) => void>} shortcuts by `KeyboardEvent.key`
 */
export function useShortcuts(shortcuts) {
  const newest = useRef(shortcuts);
  newest.current = shortcuts;
  useEffect(() => {
    const press = (/** @type {KeyboardEvent} */ event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event) || document.querySelector("dialog[open]")) return;
      const run = newest.current[event.key];
      if (!run) return;
      event.preventDefault();
      run(event);
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
}

/** Return whether the focused control uses the key itself. @param {KeyboardEvent} event */
function isTyping({ target, key }) {
  if (!(target instanceof Element)) return false;
  if (target.matches("textarea, select, [contenteditable], input:not([type=checkbox])")) return true;
  return key === "Enter" && target.matches("button, summary, input, a:not([data-row])");
}
