// An item of the store: its dialog, its form, and its deletion.

import { deployment } from "../core/api.js";
import { html } from "../core/dom.js";
import { text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { FormDialog, useForm } from "./form_dialog.js";
import { Ago, Button, Dialog, Empty, ErrorBox, Json, JsonEditor, Loading, TextField, ask, notify } from "./index.js";

/** @param {{name: string, namespace: string[], key_: string, round: number, edit: (item: any) => void, remove: (item: any) => Promise<void>}} props */
export function ItemDialog({ name, namespace, key_: key, round, edit, remove }) {
  const query = new URLSearchParams({ namespace: namespace.join("."), key, refresh_ttl: "false" }); // viewing an item does not extend its time to live
  const found = useResource((signal) => deployment(name).call("GET", `/store/items?${query}`, { signal }), [name, String(query), round]);
  const close = () => setQuery({ item: null });
  const item = found.data;
  const actions = html`
    ${item && can("run") && html`
      <${Button} kind="danger" onClick=${() => remove(item)}>Delete<//>
      <${Button} onClick=${() => edit(item)}>Change<//>`}
    <${Button} kind="primary" onClick=${close}>Close<//>`;
  return html`
    <${Dialog} open=${true} wide=${true} title=${text(key, 100) || '""'} onClose=${close} actions=${actions}>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${found.loading && html`<${Loading} />`}
      ${item === null && html`<${Empty} title="There is no such item" text="The item was deleted, or it has expired." />`}
      ${item && html`
        <dl class="facts">
          <dt>Namespace</dt><dd><code>${item.namespace.join(".")}</code></dd>
          <dt>Created</dt><dd><${Ago} at=${item.created_at} /></dd>
          <dt>Changed</dt><dd><${Ago} at=${item.updated_at} /></dd>
          <dt>Expires</dt><dd>${item.expires_at ? html`<${Ago} at=${item.expires_at} />` : "never"}</dd>
        </dl>
        <${Json} value=${item.value} collapsed=${2} label="Value" />`}
    <//>`;
}

/** @param {{name: string, item?: any, namespace: string[], onClose: () => void, onDone: () => void}} props */
export function ItemForm({ name, item, namespace, onClose, onDone }) {
  const minutesLeft = item?.expires_at ? String(Math.max(1, Math.round((new Date(item.expires_at).getTime() - Date.now()) / 60_000))) : "";
  const form = useForm({ namespace: (item?.namespace ?? namespace).join("."), key: item?.key ?? "", value: item?.value ?? {}, minutes: minutesLeft });
  const { values } = form;
  const save = async () => {
    const ttl = values.minutes === "" ? {} : { ttl: Number(values.minutes) };
    const body = { namespace: values.namespace.split("."), key: values.key, value: values.value, ...ttl };
    await deployment(name).call("PUT", "/store/items", { body });
    onDone();
  };
  return html`
    <${FormDialog} title=${item ? `Change ${text(item.key, 60)}` : "New item"} wide disabled=${values.value === undefined} onClose=${onClose} onSubmit=${save}>
      ${() => html`
        ${!item && html`
          <${TextField} label="Namespace" hint="Labels joined by dots: users.42" ...${form.bind("namespace")} required autofocus=${!namespace.length} />
          <${TextField} label="Key" ...${form.bind("key")} required autofocus=${namespace.length > 0} />`}
        <${JsonEditor} label="Value" hint="A JSON object" rows=${12} value=${values.value} onChange=${(/** @type {any} */ value) => form.set({ value })} />
        <${TextField} label="Time to live in minutes" type="number" min="0" step="any" hint="From now. Empty: the default of langgraph.json" ...${form.bind("minutes")} />`}
    <//>`;
}

/** Delete an item after a confirmation. Returns whether it was deleted. @param {string} name @param {any} item @returns {Promise<boolean>} */
export async function removeItem(name, item) {
  const where = html`<p><code>${text(item.namespace.join("."), 200)}</code></p>`;
  if (!(await ask({ title: `Delete ${text(item.key, 60)}?`, text: where, action: "Delete", kind: "danger" }))) return false;
  await deployment(name).call("DELETE", "/store/items", { body: { namespace: item.namespace, key: item.key } });
  setQuery({ item: null });
  notify("The item was deleted.");
  return true;
}
