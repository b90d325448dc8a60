// The organizations of this installation. Operators create, rename and delete them, and may act in any of them.

import { control } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { actFor, can, me } from "../core/session.js";
import { FormDialog, TypedConfirm, useForm } from "../parts/form_dialog.js";
import { Ago, Button, Empty, ErrorBox, Id, Loading, Page, Pager, Table, TextField, notify } from "../parts/index.js";

const PAGE = 50;
const DEFAULT = "default"; // exists from the start and cannot be deleted

export const title = () => "Organizations";

/** @param {{query: Record<string, string>}} props */
export default function OrganizationsPage({ query }) {
  const offset = Number(query.offset ?? 0);
  const mine = me.value?.organization;
  const isOperator = can("operator");
  const found = useResource((signal) => control("GET", "/v2/organizations", { query: { limit: PAGE, offset }, signal }), [offset, mine?.id]);
  const [dialog, setDialog] = useState(/** @type {{what: "create" | "rename" | "delete", of?: any} | null} */ (null));
  const rows = found.data?.resources;
  const close = () => setDialog(null);
  const save = async (/** @type {string} */ name) => {
    if (dialog?.of) await control("PATCH", `/v2/organizations/${dialog.of.id}`, { body: { name } });
    else await control("POST", "/v2/organizations", { body: { name } });
    found.reload();
  };
  return html`
    <${Page} title="Organizations" actions=${isOperator && html`<${Button} kind="primary" onClick=${() => setDialog({ what: "create" })}>New organization<//>`}>
      <p class="quiet">You act in <b>${mine?.name}</b>: all pages show its data. No organization can read the data of another one.</p>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!rows && !found.error && html`<${Loading} />`}
      ${rows && html`
        <${Table} label="Organizations" rows=${rows} rowKey="id" columns=${columns(isOperator, setDialog)} empty=${html`<${Empty} title="No organizations" />`} />
        <${Pager} offset=${offset} limit=${PAGE} count=${rows.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
      ${dialog?.what === "create" && html`<${NameDialog} title="New organization" label="Create" hint="To create its first key, act in the organization and open the page of keys." onClose=${close} onSubmit=${save} />`}
      ${dialog?.what === "rename" && html`<${NameDialog} title="Rename ${dialog.of.name}" label="Rename" name=${dialog.of.name} onClose=${close} onSubmit=${save} />`}
      ${dialog?.what === "delete" && html`<${DeleteOrganization} it=${dialog.of} onClose=${close} onDone=${found.reload} />`}
    <//>`;
}

/** @param {boolean} isOperator @param {(dialog: any) => void} ask */
function columns(isOperator, ask) {
  const isHere = (/** @type {any} */ row) => row.id === me.value?.organization.id;
  const actions = (/** @type {any} */ row) => html`<span class="row-actions">
    ${!isHere(row) && html`<${Button} kind="plain" label="Act here: ${row.name}" onClick=${() => actIn(row.id)}>Act here<//>`}
    ${row.name !== DEFAULT && html`
      <${Button} kind="plain" label="Rename ${row.name}" onClick=${() => ask({ what: "rename", of: row })}>Rename<//>
      <${Button} kind="plain" label="Delete ${row.name}" onClick=${() => ask({ what: "delete", of: row })}>Delete<//>`}</span>`;
  return [
    { title: "Name", key: "name", cell: (/** @type {any} */ row) => html`<b>${row.name}</b>${isHere(row) && html` <span class="quiet">(you act here)</span>`}` },
    { title: "Id", key: "id", cell: (/** @type {any} */ row) => html`<${Id} value=${row.id} />` },
    { title: "Created", key: "created", cell: (/** @type {any} */ row) => html`<${Ago} at=${row.created_at} />` },
    { title: "", key: "actions", align: /** @type {"right"} */ ("right"), cell: actions, hidden: !isOperator },
  ];
}

/** @param {string} organization its id or name */
function actIn(organization) {
  actFor(organization);
  location.reload(); // the loaded data belongs to the other organization
}

/** @param {{title: string, label: string, name?: string, hint?: string, onClose: () => void, onSubmit: (name: string) => Promise<void>}} props */
function NameDialog({ title: heading, label, name = "", hint, onClose, onSubmit }) {
  const form = useForm({ name });
  return html`
    <${FormDialog} title=${heading} label=${label} onClose=${onClose} onSubmit=${() => onSubmit(form.values.name)}>
      ${(/** @type {any} */ errorOf) => html`<${TextField} label="Name" hint=${hint} error=${errorOf("name")} ...${form.bind("name")} required maxlength="128" autofocus />`}
    <//>`;
}

/** @param {{it: any, onClose: () => void, onDone: () => void}} props */
function DeleteOrganization({ it, onClose, onDone }) {
  const remove = async () => {
    await control("DELETE", `/v2/organizations/${it.id}`);
    notify(`The organization ${it.name} is being deleted.`);
    if (it.id === me.value?.organization.id) actIn(DEFAULT);
    onDone();
  };
  return html`
    <${TypedConfirm} title="Delete ${it.name}?" name=${it.name} onClose=${onClose} onSubmit=${remove}>
      <p>Its keys and deployments stop at once. Then all its data is removed: threads, runs, stores, secrets. Nothing can be restored.</p>
    <//>`;
}
