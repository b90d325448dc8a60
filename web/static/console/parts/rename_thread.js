// The button that renames a thread, and the form that it opens.

import { deployment } from "../core/api.js";
import { canRunAt } from "../core/deployments.js";
import { html, useEffect, useRef, useState } from "../core/dom.js";
import { Button, notify } from "./index.js";

const LONGEST_TITLE = 120;

/**
 * Renames a thread in place. The title is stored as `metadata.title`; with an empty one, the first message is the title again.
 * @param {{name: string, thread: Record<string, any>, onDone: () => void}} props
 */
export function RenameThread({ name, thread, onDone }) {
  const [draft, setDraft] = useState(/** @type {string | null} */ (null));
  const [isSaving, setSaving] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const isEditing = draft !== null;
  useEffect(() => {
    if (isEditing) input.current?.select();
  }, [isEditing]);
  if (!canRunAt(name)) return null;
  if (!isEditing) return html`<${Button} kind="plain" label="Rename the thread" onClick=${() => setDraft(thread.title || "")}>Rename<//>`;
  const save = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setSaving(true);
    try {
      await deployment(name).call("PATCH", `/threads/${encodeURIComponent(thread.thread_id)}`, { body: { metadata: { title: draft.trim() } } });
      setDraft(null);
      onDone();
    } catch (error) {
      notify(`The thread was not renamed: ${/** @type {Error} */ (error).message}`, "error");
    }
    setSaving(false);
  };
  return html`
    <form class="thread-rename" onSubmit=${save} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Escape" && setDraft(null)}>
      <input ref=${input} aria-label="Title of the thread" maxlength=${LONGEST_TITLE} placeholder="Empty: the first message" value=${draft}
        onInput=${(/** @type {Event} */ event) => setDraft(/** @type {HTMLInputElement} */ (event.currentTarget).value)} />
      <${Button} kind="primary" type="submit" busy=${isSaving}>Save<//>
      <${Button} kind="plain" onClick=${() => setDraft(null)}>Cancel<//>
    </form>`;
}
