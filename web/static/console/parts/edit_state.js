// The dialog that updates a thread's state at a checkpoint. The update is a new checkpoint, which forks the thread.

import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { idOf } from "./checkpoints.js";
import { isSame } from "./diff.js";
import { Button, Dialog, ErrorBox, Field, JsonEditor } from "./index.js";

/** @typedef {import("./checkpoints.js").State} State */

const LONGEST_TEXT = 200_000;
const PUSH = "__pregel_push"; // begins the path of a task that was sent its input

/**
 * The keys of `after` whose values differ from `before`.
 * @param {any} before
 * @param {any} after
 */
export function changedKeys(before, after) {
  const object = typeof after === "object" && after !== null && !Array.isArray(after) ? after : {};
  return Object.fromEntries(Object.entries(object).filter(([key, value]) => !isSame(before?.[key], value)));
}

/**
 * The nodes that follow the checkpoint of an update (`next`), and those that followed `edited` and no longer do (`lost`): an update does not
 * repeat a `Command(goto)`. Nodes with an input of their own (`Send`) are left out, because their input is not known.
 * @param {State} edited
 * @param {string[]} next nodes that come after the new checkpoint
 */
export function followers(edited, next) {
  const pulled = edited.tasks.filter((task) => task.path?.[0] !== PUSH && task.name !== "__start__");
  const lost = new Set(pulled.map((task) => task.name).filter((name) => !next.includes(name)));
  return { next: [...new Set(next)], lost: [...lost] };
}

/**
 * `onSave` gets the body of the update. `andRun`: also start a run at the nodes that follow.
 * @param {{state: State, nodes: string[], onSave: (body: any, andRun: boolean) => Promise<void>, onClose: () => void}} props
 */
export function EditState({ state, nodes, onSave, onClose }) {
  const [isLarge] = useState(() => JSON.stringify(state.values ?? {}).length > LONGEST_TEXT);
  const [start] = useState(() => (isLarge ? {} : (state.values ?? {})));
  const [value, setValue] = useState(/** @type {any} */ (start));
  const [asNode, setAsNode] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const values = value === undefined ? {} : changedKeys(isLarge ? {} : state.values, value);
  const keys = Object.keys(values);
  const save = async (/** @type {boolean} */ andRun) => {
    setBusy(true);
    try {
      await onSave({ values: keys.length ? values : null, as_node: asNode || null, checkpoint: { checkpoint_id: idOf(state), checkpoint_ns: "" } }, andRun);
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const cannot = value === undefined || (!keys.length && !asNode);
  const actions = html`
    <${Button} kind="plain" onClick=${onClose}>Cancel<//>
    <${Button} disabled=${cannot} busy=${busy} onClick=${() => save(false)}>Save as a fork<//>
    <${Button} kind="primary" disabled=${cannot} busy=${busy} onClick=${() => save(true)}>Save and run<//>`;
  return html`
    <${Dialog} title="Edit the state and fork" open=${true} onClose=${onClose} actions=${actions} wide=${true}>
      <p class="quiet">The update is a new checkpoint after this one, which stays as it is. Only the keys that you change are written, through
        their reducers: for example, new messages are added to the old ones.${isLarge && " This state is too large for the editor: enter only the keys to write."}</p>
      <${JsonEditor} label="Values" value=${start} onChange=${setValue} rows=${16} />
      <${Field} label="As if written by" hint="Determines the next node">
        <select value=${asNode} onChange=${(/** @type {Event} */ event) => setAsNode(/** @type {HTMLSelectElement} */ (event.currentTarget).value)}>
          <option value="">the last node that wrote</option>
          ${nodes.map((node) => html`<option key=${node} value=${node}>${plain(node.slice(0, 100))}</option>`)}
        </select>
      <//>
      <p aria-live="polite">${keys.length ? html`Writes ${keys.slice(0, 20).map((key) => html`<code key=${key}>${plain(key.slice(0, 60))}</code> `)}` : html`<span class="quiet">No changes yet.</span>`}</p>
      ${error && html`<${ErrorBox} error=${error} />`}
    <//>`;
}
