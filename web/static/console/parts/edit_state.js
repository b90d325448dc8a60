// The form that writes values into a thread's state at a checkpoint, and so forks the thread from there.

import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { idOf } from "./checkpoints.js";
import { isSame } from "./diff.js";
import { Button, Dialog, ErrorBox, Field, JsonEditor } from "./index.js";

/** @typedef {import("./checkpoints.js").State} State */

const LONGEST_TEXT = 200_000;
const PUSH = "__pregel_push"; // begins the path of a task that was sent its input

/**
 * The keys of `after` that are not as they were, which are those that are sent.
 * @param {any} before
 * @param {any} after
 */
export function changedKeys(before, after) {
  const object = typeof after === "object" && after !== null && !Array.isArray(after) ? after : {};
  return Object.fromEntries(Object.entries(object).filter(([key, value]) => !isSame(before?.[key], value)));
}

/**
 * What comes after a checkpoint that was written over `edited`, in comparison with what came before. `lost` are nodes that
 * do not come any more: a node that a `Command(goto)` chose is not chosen again by an update. Nodes that were sent an input
 * of their own are no part of it, for their input is not known.
 * @param {State} edited
 * @param {string[]} next nodes that come after the new checkpoint
 */
export function followers(edited, next) {
  const pulled = edited.tasks.filter((task) => task.path?.[0] !== PUSH && task.name !== "__start__");
  const lost = new Set(pulled.map((task) => task.name).filter((name) => !next.includes(name)));
  return { next: [...new Set(next)], lost: [...lost] };
}

/**
 * `onSave` is given the body of the update; `andRun`: what follows is to be run.
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
    <${Button} kind="primary" disabled=${cannot} busy=${busy} onClick=${() => save(true)}>Save and run on<//>`;
  return html`
    <${Dialog} title="Edit the state and fork" open=${true} onClose=${onClose} actions=${actions} wide=${true}>
      <p class="quiet">The checkpoint stays as it is: a new one follows it. Only keys that you change are written, through their
        reducers: a list that grows by what nodes return grows by what you write.${isLarge && " The state is too large to be edited whole: name the keys to write."}</p>
      <${JsonEditor} label="Values" value=${start} onChange=${setValue} rows=${16} />
      <${Field} label="As if written by" hint="Decides which node comes next">
        <select value=${asNode} onChange=${(/** @type {Event} */ event) => setAsNode(/** @type {HTMLSelectElement} */ (event.currentTarget).value)}>
          <option value="">the node that wrote last</option>
          ${nodes.map((node) => html`<option key=${node} value=${node}>${plain(node.slice(0, 100))}</option>`)}
        </select>
      <//>
      <p aria-live="polite">${keys.length ? html`Writes ${keys.slice(0, 20).map((key) => html`<code key=${key}>${plain(key.slice(0, 60))}</code> `)}` : html`<span class="quiet">Nothing is changed yet.</span>`}</p>
      ${error && html`<${ErrorBox} error=${error} />`}
    <//>`;
}
