// The organization's API keys: create, change and revoke. A new key is shown once, after its creation.

import { control } from "../core/api.js";
import { html, useEffect, useState } from "../core/dom.js";
import { count, iso, money, text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { can, me } from "../core/session.js";
import { FormDialog, useForm } from "../parts/form_dialog.js";
import { Ago, Button, Copy, Dialog, Empty, ErrorBox, Field, Id, Loading, Page, Pager, Pill, Table, TextField, ask, notify } from "../parts/index.js";

const PAGE = 50;
const ROLES = ["read", "run", "deploy", "admin", "operator"];
/** @type {Record<string, string>} */
const MAY = {
  read: "May read everything",
  run: "May also use deployments: assistants, threads, runs",
  deploy: "May also change deployments, secrets and OAuth providers",
  admin: "May also create, change and revoke keys",
  operator: "May also manage the installation: organizations, workers",
};
/** @type {Record<string, string>} */
const LIMITS = {
  max_concurrent_runs: "Concurrent runs", max_tokens_per_day: "Tokens per day", max_run_tokens: "Tokens per run",
  max_cost_per_day: "Cost per day, in US dollars", max_run_cost: "Cost per run, in US dollars",
};
const isCost = (/** @type {string} */ limit) => limit.includes("cost");

export const title = () => "API keys";

/** @param {{query: Record<string, string>}} props */
export default function KeysPage({ query }) {
  if (!can("admin")) {
    return html`<${Page} title="API keys">
      <${Empty} title="Only admins see the keys" text="Your role is ${me.value?.role}. Creating, changing and revoking keys needs the role admin." />
    <//>`;
  }
  return html`<${Keys} offset=${Number(query.offset ?? 0)} isNew=${query.new === "1"} />`;
}

/** @param {{offset: number, isNew: boolean}} props `isNew` opens the form for a new key */
function Keys({ offset, isNew }) {
  const organization = me.value?.organization;
  const found = useResource((signal) => control("GET", "/v2/keys", { query: { limit: PAGE, offset }, signal }), [offset, organization?.id]);
  const [changed, setChanged] = useState(/** @type {any} */ (null));
  const [isCreating, setCreating] = useState(false);
  const [created, setCreated] = useState(/** @type {any} */ (null));
  const keys = found.data?.resources;
  const newKey = html`<${Button} kind="primary" onClick=${() => setCreating(true)}>New key<//>`;
  useEffect(() => {
    if (!isNew) return;
    setCreating(true);
    setQuery({ new: null });
  }, [isNew]);
  const show = (/** @type {any} */ key) => {
    setCreated(key);
    found.reload();
  };
  return html`
    <${Page} title="API keys" actions=${newKey}>
      <p class="quiet">Keys of the organization <b>${organization?.name}</b>. Only a hash of each key is stored. Expired and revoked keys stay in the list for 90 days.</p>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!keys && !found.error && html`<${Loading} />`}
      ${keys && html`
        <${Table} label="API keys" rows=${keys} rowKey="id" columns=${columns(setChanged, found.reload)}
          empty=${html`<${Empty} title="No keys yet" text="A program or a person calls the API with a key. The role of the key says what the caller may do." action=${newKey} />`} />
        <${Pager} offset=${offset} limit=${PAGE} count=${keys.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
      ${isCreating && html`<${CreateKey} onClose=${() => setCreating(false)} onCreated=${show} />`}
      ${changed && html`<${ChangeKey} it=${changed} onClose=${() => setChanged(null)} onDone=${found.reload} />`}
      ${created && html`<${NewKey} created=${created} onClose=${() => setCreated(null)} />`}
    <//>`;
}

/** @param {(key: any) => void} change @param {() => void} reload */
const columns = (change, reload) => [
  { title: "Name", key: "name", cell: (/** @type {any} */ key) => html`<b class="cut" title=${text(key.name, 300)}>${text(key.name, 100)}</b>${isMine(key) && html` <span class="quiet">(yours)</span>`}` },
  { title: "Id", key: "id", cell: (/** @type {any} */ key) => html`<${Id} value=${key.id} />` },
  { title: "Role", key: "role", cell: (/** @type {any} */ key) => html`<span title=${MAY[key.role]}>${key.role}</span>` },
  { title: "State", key: "state", cell: (/** @type {any} */ key) => html`<${State} of=${key} />` },
  { title: "Last used", key: "used", cell: (/** @type {any} */ key) => (key.last_used_at ? html`<${Ago} at=${key.last_used_at} />` : html`<span class="quiet">never</span>`) },
  { title: "Created", key: "created", cell: (/** @type {any} */ key) => html`<${Ago} at=${key.created_at} />` },
  { title: "Limits", key: "limits", cell: limitsOf },
  {
    title: "", key: "actions", align: /** @type {"right"} */ ("right"),
    cell: (/** @type {any} */ key) => stateOf(key) === "active" && html`<span class="row-actions">
      <${Button} kind="plain" label="Change ${text(key.name, 60)}" onClick=${() => change(key)}>Change<//>
      <${Button} kind="plain" label="Revoke ${text(key.name, 60)}" onClick=${() => revoke(key, reload)}>Revoke<//></span>`,
  },
];

/** @param {any} key */
const isMine = (key) => key.id === me.value?.key?.id;

/** @param {any} key */
function stateOf(key) {
  if (key.revoked_at) return "revoked";
  return key.expires_at && new Date(key.expires_at).getTime() <= Date.now() ? "expired" : "active";
}

/** @param {{of: any}} props */
function State({ of: key }) {
  const state = stateOf(key);
  const end = key.revoked_at ?? key.expires_at;
  const word = state === "active" ? "expires " : "";
  return html`<${Pill} status=${state} />${end && html` <span class="quiet">${word}<${Ago} at=${end} /></span>`}`;
}

/** @param {any} key */
function limitsOf(key) {
  const set = Object.entries(LIMITS).filter(([limit]) => key[limit]).map(([limit, label]) => `${(isCost(limit) ? money : count)(key[limit])} ${label.split(",")[0].toLowerCase()}`);
  return set.length ? set.join(", ") : html`<span class="quiet">none</span>`;
}

/** @param {any} key @param {() => void} reload */
async function revoke(key, reload) {
  const warning = html`<p>Requests with this key are refused within seconds, and its open streams end. A revoked key cannot be restored.</p>
    ${isMine(key) && html`<p class="bad">This is the key you are signed in with.</p>`}`;
  if (!(await ask({ title: `Revoke the key ${text(key.name, 60)}?`, text: warning, action: "Revoke", kind: "danger" }))) return;
  await control("DELETE", `/v2/keys/${encodeURIComponent(key.id)}`);
  notify(`The key ${text(key.name, 60)} was revoked.`);
  reload();
}

/** @param {{onClose: () => void, onCreated: (key: any) => void}} props */
function CreateKey({ onClose, onCreated }) {
  const form = useForm({ name: "", role: "run", lifetime_days: "", ...Object.fromEntries(Object.keys(LIMITS).map((limit) => [limit, ""])) });
  const values = /** @type {Record<string, string>} */ (form.values);
  const roles = ROLES.slice(0, ROLES.indexOf(me.value?.role ?? "read") + 1);
  const create = async () => {
    const numbers = ["lifetime_days", ...Object.keys(LIMITS)].filter((name) => values[name]).map((name) => [name, Number(values[name])]);
    onCreated(await control("POST", "/v2/keys", { body: { name: values.name, role: values.role, ...Object.fromEntries(numbers) } }));
  };
  return html`
    <${FormDialog} title="New key" label="Create key" onClose=${onClose} onSubmit=${create}>
      ${(/** @type {any} */ errorOf) => html`
        <${TextField} label="Name" hint="The program or person that uses the key" error=${errorOf("name")} ...${form.bind("name")} required maxlength="255" autofocus />
        <${Field} label="Role" hint=${MAY[values.role]} error=${errorOf("role")}>
          <select value=${values.role} onChange=${(/** @type {any} */ event) => form.set({ role: event.currentTarget.value })}>
            ${roles.map((role) => html`<option key=${role} value=${role} selected=${role === values.role}>${role}</option>`)}
          </select><//>
        <${TextField} type="number" min="1" max="3650" label="Lifetime in days" hint="Empty: the key does not expire" error=${errorOf("lifetime_days")} ...${form.bind("lifetime_days")} />
        <${LimitFields} form=${form} errorOf=${errorOf} />`}
    <//>`;
}

/** @param {{form: any, errorOf: (name: string) => string | undefined}} props */
function LimitFields({ form, errorOf }) {
  return Object.entries(LIMITS).map(([limit, label]) => html`
    <${TextField} key=${limit} type="number" min="0" step=${isCost(limit) ? "any" : "1"} label=${label} hint="Empty: no limit for this key" error=${errorOf(limit)} ...${form.bind(limit)} />`);
}

/** @param {{it: any, onClose: () => void, onDone: () => void}} props */
function ChangeKey({ it: key, onClose, onDone }) {
  const before = Object.fromEntries(Object.keys(LIMITS).map((limit) => [limit, key[limit] ? String(key[limit]) : ""]));
  const form = useForm(/** @type {Record<string, string>} */ ({ name: key.name, ...before }));
  const change = async () => {
    const limits = Object.keys(LIMITS).filter((limit) => form.values[limit] !== before[limit]);
    const body = { name: form.values.name, ...Object.fromEntries(limits.map((limit) => [limit, Number(form.values[limit])])) }; // 0 removes a limit
    await control("PATCH", `/v2/keys/${encodeURIComponent(key.id)}`, { body });
    onDone();
  };
  return html`
    <${FormDialog} title="Change the key ${text(key.name, 60)}" onClose=${onClose} onSubmit=${change}>
      ${(/** @type {any} */ errorOf) => html`
        <${TextField} label="Name" error=${errorOf("name")} ...${form.bind("name")} required maxlength="255" autofocus />
        <${LimitFields} form=${form} errorOf=${errorOf} />`}
    <//>`;
}

/** @param {{created: any, onClose: () => void}} props */
function NewKey({ created, onClose }) {
  return html`
    <${Dialog} open=${true} title="The key ${text(created.name, 60)}" onClose=${onClose} actions=${html`<${Button} kind="primary" onClick=${onClose}>I have stored the key<//>`}>
      <p>Copy the key now. It is not shown again.</p>
      <p class="new-key"><code>${created.key}</code> <${Copy} text=${created.key} /></p>
      ${created.expires_at && html`<p class="quiet">The key expires at ${iso(created.expires_at)}.</p>`}
    <//>`;
}
