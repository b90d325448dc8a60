// OAuth providers and the grants of users. Secrets and tokens can be set, and are never shown.

import { addressOf, control } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { can, me } from "../core/session.js";
import { FormDialog, useForm } from "../parts/form_dialog.js";
import { Ago, Button, Check, Code, Empty, ErrorBox, Field, Id, Loading, Page, Pill, SearchBox, Select, Table, Tabs, TextField, ask, notify } from "../parts/index.js";

const AUTH_METHODS = ["client_secret_post", "client_secret_basic", "none"];
const RIGHT = /** @type {const} */ ("right");

export const title = () => "OAuth providers";

/** @param {{query: Record<string, string>}} props */
export default function ProvidersPage({ query }) {
  const organization = me.value?.organization.id;
  const found = useResource((signal) => control("GET", "/v2/auth/providers", { signal }), [organization]);
  const tab = query.tab === "grants" ? "grants" : "providers";
  const tabs = [{ id: "providers", label: "Providers" }, { id: "grants", label: "Grants" }];
  return html`
    <${Page} title="OAuth providers">
      <${Tabs} tabs=${tabs} current=${tab} label="Providers and grants" onChange=${(/** @type {string} */ id) => setQuery({ tab: id === "grants" ? id : null })}>
        <${ErrorBox} error=${found.error} retry=${found.reload} />
        ${!found.data && !found.error && html`<${Loading} />`}
        ${found.data && tab === "providers" && html`<${Providers} providers=${found.data} reload=${found.reload} />`}
        ${found.data && tab === "grants" && html`<${Grants} providers=${found.data} query=${query} organization=${organization} />`}
      <//>
    <//>`;
}

/** @param {{providers: any[], reload: () => void}} props */
function Providers({ providers, reload }) {
  const [dialog, setDialog] = useState(/** @type {{what: "create" | "discover" | "change", of?: any} | null} */ (null));
  const close = () => setDialog(null);
  const create = can("deploy") && html`
    <${Button} kind="primary" onClick=${() => setDialog({ what: "create" })}>New provider<//>
    <${Button} onClick=${() => setDialog({ what: "discover" })}>From an MCP server<//>`;
  return html`
    ${providers.length > 0 && html`<div class="actions">${create}</div>`}
    <${Table} label="OAuth providers" rows=${providers} rowKey="id" columns=${columns((/** @type {any} */ it) => setDialog({ what: "change", of: it }), reload)}
      empty=${html`<${Empty} title="No providers yet" text="Agents that act for a user, for example read mail, need the user's consent at an OAuth provider. Register the provider here." action=${create} />`} />
    ${dialog?.what === "discover" && html`<${Discover} onClose=${close} onDone=${reload} />`}
    ${(dialog?.what === "create" || dialog?.what === "change") && html`<${ProviderForm} it=${dialog.of} onClose=${close} onDone=${reload} />`}`;
}

/** @param {(provider: any) => void} change @param {() => void} reload */
const columns = (change, reload) => [
  { title: "Provider", key: "provider_id", cell: (/** @type {any} */ it) => html`<b>${text(it.name, 100)}</b> <code>${it.provider_id}</code>` },
  { title: "Client", key: "client", cell: (/** @type {any} */ it) => html`<code title=${it.client_id}>${text(it.client_id, 40)}</code>` },
  {
    title: "Addresses", key: "addresses",
    cell: (/** @type {any} */ it) => html`<span class="stacked"><span title=${it.auth_url}>${text(it.auth_url, 60)}</span><span class="quiet" title=${it.token_url}>${text(it.token_url, 60)}</span></span>`,
  },
  { title: "Authentication", key: "how", cell: howOf },
  { title: "Created", key: "created", cell: (/** @type {any} */ it) => html`<${Ago} at=${it.created_at} />` },
  {
    title: "", key: "actions", align: RIGHT, hidden: !can("deploy"),
    cell: (/** @type {any} */ it) => html`<span class="row-actions">
      <${Button} kind="plain" label="Change ${text(it.name, 60)}" onClick=${() => change(it)}>Change<//>
      <${Button} kind="plain" label="Delete ${text(it.name, 60)}" onClick=${() => remove(it, reload)}>Delete<//></span>`,
  },
];

/** @param {any} it */
function howOf(it) {
  const said = [it.uses_pkce && `PKCE ${it.code_challenge_method ?? ""}`, it.token_endpoint_auth_method, it.is_dynamic_client && "registered dynamically"].filter(Boolean).join(", ");
  return html`<span class="stacked"><span>${said}</span>${it.mcp_server_url && html`<span class="quiet" title=${it.mcp_server_url}>MCP ${text(it.mcp_server_url, 50)}</span>`}</span>`;
}

/** @param {any} it @param {() => void} reload */
async function remove(it, reload) {
  const warning = "All tokens of this provider are deleted. Agents have to ask their users for consent again.";
  if (!(await ask({ title: `Delete the provider ${text(it.name, 60)}?`, text: warning, action: "Delete", kind: "danger" }))) return;
  await control("DELETE", pathOf(it.provider_id));
  notify(`The provider ${text(it.name, 60)} was deleted.`);
  reload();
}

/** @param {string} providerId */
const pathOf = (providerId) => `/v2/auth/providers/${encodeURIComponent(providerId)}`;

/** The address that an operator registers at the provider. @param {{providerId: string}} props */
function RedirectAddress({ providerId }) {
  const address = addressOf(`/v2/auth/callback/${encodeURIComponent(providerId || "ID")}`);
  return html`<p>Register this redirect URI at the provider:</p><${Code} text=${address} label="Redirect URI" />`;
}

const NEW = {
  provider_id: "", name: "", client_id: "", client_secret: "", auth_url: "", token_url: "",
  uses_pkce: true, token_endpoint_auth_method: "client_secret_post",
};

/** @param {{it?: any, onClose: () => void, onDone: () => void}} props */
function ProviderForm({ it, onClose, onDone }) {
  const form = useForm(it ? { ...Object.fromEntries(Object.keys(NEW).map((name) => [name, it[name] ?? ""])), client_secret: "" } : NEW);
  const values = /** @type {any} */ (form.values);
  const save = async () => {
    const { provider_id, client_secret, ...others } = values;
    const body = { ...others, ...(client_secret && { client_secret }) };
    if (it) await control("PATCH", pathOf(it.provider_id), { body });
    else await control("POST", "/v2/auth/providers", { body: { provider_id, ...body } });
    onDone();
  };
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ more) =>
    html`<${TextField} label=${label} ...${/** @type {any} */ (form).bind(name)} required ...${more} />`;
  return html`
    <${FormDialog} title=${it ? `Change the provider ${text(it.name, 60)}` : "New provider"} onClose=${onClose} onSubmit=${save}>
      ${(/** @type {any} */ errorOf) => html`
        ${!it && field("provider_id", "Id", { hint: "The name by which agents refer to it, for example acme", error: errorOf("provider_id"), maxlength: 255, autofocus: true })}
        ${field("name", "Name", { error: errorOf("name"), maxlength: 255 })}
        ${field("auth_url", "Authorization URL", { type: "url", placeholder: "https://…/authorize", error: errorOf("auth_url") })}
        ${field("token_url", "Token URL", { type: "url", placeholder: "https://…/token", error: errorOf("token_url") })}
        ${field("client_id", "Client id", { error: errorOf("client_id") })}
        ${field("client_secret", "Client secret", {
          type: "password", required: false, autocomplete: "new-password", error: errorOf("client_secret"),
          hint: it ? "Stored encrypted. Empty: unchanged" : "Stored encrypted and not shown again. Empty for public clients",
        })}
        <${Field} label="Client authentication" error=${errorOf("token_endpoint_auth_method")}>
          <select value=${values.token_endpoint_auth_method} onChange=${(/** @type {any} */ event) => form.set(/** @type {any} */ ({ token_endpoint_auth_method: event.currentTarget.value }))}>
            ${AUTH_METHODS.map((method) => html`<option key=${method} value=${method} selected=${method === values.token_endpoint_auth_method}>${method}</option>`)}
          </select><//>
        <${Check} label="PKCE" checked=${values.uses_pkce} onChange=${(/** @type {boolean} */ uses_pkce) => form.set(/** @type {any} */ ({ uses_pkce }))} />
        <${RedirectAddress} providerId=${values.provider_id} />`}
    <//>`;
}

/** @param {{onClose: () => void, onDone: () => void}} props */
function Discover({ onClose, onDone }) {
  const form = useForm({ provider_id: "", name: "", mcp_server_url: "" });
  const discover = async () => {
    const found = await control("POST", "/v2/auth/providers/mcp-discover", { body: form.values });
    notify(`Registered at ${found.auth_url}.`);
    onDone();
  };
  return html`
    <${FormDialog} title="Provider of an MCP server" label="Find and register" onClose=${onClose} onSubmit=${discover}>
      ${(/** @type {any} */ errorOf) => html`
        <p class="quiet">The MCP server names its authorization server. This service registers there as a client.</p>
        <${TextField} label="Address of the MCP server" type="url" placeholder="https://…/mcp" error=${errorOf("mcp_server_url")} ...${form.bind("mcp_server_url")} required autofocus />
        <${TextField} label="Id" hint="The name by which agents refer to it" error=${errorOf("provider_id")} ...${form.bind("provider_id")} required maxlength="255" />
        <${TextField} label="Name" error=${errorOf("name")} ...${form.bind("name")} required maxlength="255" />`}
    <//>`;
}

/** @param {{providers: any[], query: Record<string, string>, organization?: string}} props */
function Grants({ providers, query, organization }) {
  const filters = { user_id: query.user, provider_id: query.provider };
  const found = useResource((signal) => control("GET", "/v2/auth/tokens", { query: filters, signal }), [query.user, query.provider, organization]);
  const choices = [{ value: "", label: "Any provider" }, ...providers.map((it) => ({ value: it.provider_id, label: it.name }))];
  const isFiltered = Boolean(query.user || query.provider);
  const empty = isFiltered
    ? html`<${Empty} title="No such grant" text="No user with this id has given consent to this provider." action=${html`<${Button} onClick=${() => setQuery({ user: null, provider: null })}>Show all<//>`} />`
    : html`<${Empty} title="No grants yet" text="A grant appears when a user gives consent. Runs of agents, and POST /v2/auth/authenticate, return the address of the consent page." />`;
  return html`
    <div class="filters">
      <${Select} label="Provider" value=${query.provider ?? ""} options=${choices} onChange=${(/** @type {string} */ provider) => setQuery({ provider })} />
      <${SearchBox} label="User" placeholder="User's id" value=${query.user ?? ""} onInput=${(/** @type {string} */ user) => setQuery({ user: user.trim() })} />
      ${query.provider && can("run") && found.data?.length > 0 && html`<${Button} kind="danger" onClick=${() => revokeAll(query, found)}>Revoke ${found.data.length === 1 ? "it" : `all ${found.data.length}`}<//>`}
    </div>
    <${ErrorBox} error=${found.error} retry=${found.reload} />
    ${!found.data && !found.error && html`<${Loading} />`}
    ${found.data && html`<${Table} label="Grants" rows=${found.data} rowKey="id" columns=${grantColumns(found.reload)} empty=${empty} />`}`;
}

/** @param {() => void} reload */
const grantColumns = (reload) => [
  { title: "User", key: "user", cell: (/** @type {any} */ grant) => html`<b title=${grant.user_id}>${text(grant.user_id, 50)}</b>` },
  { title: "Provider", key: "provider", cell: (/** @type {any} */ grant) => html`<code>${grant.provider_id}</code>${grant.provider_account_label && html` <span class="quiet">${text(grant.provider_account_label, 50)}</span>`}` },
  { title: "Agent", key: "agent", cell: (/** @type {any} */ grant) => (grant.agent_id ? text(grant.agent_id, 40) : html`<span class="quiet">any</span>`) },
  { title: "Scopes", key: "scopes", cell: (/** @type {any} */ grant) => html`<span title=${grant.scopes.join(" ")}>${text(grant.scopes.join(" "), 60) || html`<span class="quiet">unknown</span>`}</span>` },
  { title: "Token expires", key: "expires", cell: (/** @type {any} */ grant) => (grant.expires_at ? html`<${Ago} at=${grant.expires_at} />` : html`<span class="quiet">unknown</span>`) },
  { title: "Granted", key: "granted", cell: (/** @type {any} */ grant) => html`<${Ago} at=${grant.created_at} />` },
  { title: "Default", key: "default", cell: (/** @type {any} */ grant) => grant.is_default && html`<${Pill} status="default" title="Used if a request names no other grant" />` },
  { title: "Id", key: "id", cell: (/** @type {any} */ grant) => html`<${Id} value=${grant.id} />` },
  {
    title: "", key: "actions", align: RIGHT, hidden: !can("run"),
    cell: (/** @type {any} */ grant) => html`<${Button} kind="plain" label="Revoke ${text(grant.user_id, 60)}" onClick=${() => revoke(grant, reload)}>Revoke<//>`,
  },
];

/** @param {any} grant @param {() => void} reload */
async function revoke(grant, reload) {
  const warning = html`<p>Agents that need it have to ask <b>${text(grant.user_id, 100)}</b> for consent again.</p>`;
  if (!(await ask({ title: `Revoke the grant at ${grant.provider_id}?`, text: warning, action: "Revoke", kind: "danger" }))) return;
  await control("DELETE", `/v2/auth/tokens/${grant.id}`);
  notify("The grant was revoked.");
  reload();
}

/** @param {Record<string, string>} query @param {{data?: any, reload: () => void}} found */
async function revokeAll(query, found) {
  const whose = query.user ? ` of ${text(query.user, 60)}` : " of all users";
  if (!(await ask({ title: `Revoke the grants${whose} at ${query.provider}?`, text: "Agents that need them have to ask for consent again.", action: "Revoke", kind: "danger" }))) return;
  const { message } = await control("DELETE", "/v2/auth/tokens", { query: { provider_id: query.provider, user_id: query.user } });
  notify(message);
  found.reload();
}
